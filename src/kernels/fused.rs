//! Loops over two arrays, which may convert between half precision and `f32`.

use std::marker::PhantomData;

use super::halves::Half;
use super::lanes::{Convert, Lanes, Portable};
use super::level::Pass;

/// An operation on a block of elements of one array and the corresponding elements of another.
pub(super) trait Fused {
    /// The type that is converted.
    type Half: Half;
    type Element: bytemuck::Pod;
    type Beside: bytemuck::Pod;

    fn block<C: Convert<Self::Half, N>, const N: usize>(
        converter: C,
        array: &mut [Self::Element; N],
        beside: &mut [Self::Beside; N],
    );
}

/// The pass that leaves the second array unchanged.
pub(super) struct Reading<F>(PhantomData<F>);

impl<F: Fused> Pass for Reading<F> {
    type Beside<'a> = &'a [u8];

    #[inline(always)]
    fn run<L: Lanes>(lanes: L, array: &mut [u8], beside: &[u8]) {
        let mut array: &mut [F::Element] = bytemuck::cast_slice_mut(array);
        let mut beside: &[F::Beside] = bytemuck::cast_slice(beside);
        assert_eq!(array.len(), beside.len(), "both arrays must have the same length");
        if let Some(converter) = F::Half::converter(lanes) {
            let (blocks, rest) = array.as_chunks_mut();
            let (blocks_beside, rest_beside) = beside.as_chunks();
            for (block, beside) in blocks.iter_mut().zip(blocks_beside) {
                F::block(converter, block, &mut { *beside });
            }
            (array, beside) = (rest, rest_beside);
        }
        for (element, &beside) in array.iter_mut().zip(beside) {
            F::block(Portable, std::array::from_mut(element), &mut [beside]);
        }
    }
}

pub(super) struct Writing<F>(PhantomData<F>);

impl<F: Fused> Pass for Writing<F> {
    type Beside<'a> = &'a mut [u8];

    #[inline(always)]
    fn run<L: Lanes>(lanes: L, array: &mut [u8], beside: &mut [u8]) {
        let mut array: &mut [F::Element] = bytemuck::cast_slice_mut(array);
        let mut beside: &mut [F::Beside] = bytemuck::cast_slice_mut(beside);
        assert_eq!(array.len(), beside.len(), "both arrays must have the same length");
        if let Some(converter) = F::Half::converter(lanes) {
            let (blocks, rest) = array.as_chunks_mut();
            let (blocks_beside, rest_beside) = beside.as_chunks_mut();
            for (block, beside) in blocks.iter_mut().zip(blocks_beside) {
                F::block(converter, block, beside);
            }
            (array, beside) = (rest, rest_beside);
        }
        for (element, beside) in array.iter_mut().zip(beside) {
            F::block(Portable, std::array::from_mut(element), std::array::from_mut(beside));
        }
    }
}
