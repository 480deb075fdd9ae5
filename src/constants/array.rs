//! The array of a measurement, in any kind of memory.

use std::fmt;
use std::ops::DerefMut;
use std::time::Instant;

use crate::Communicator;
use crate::call::Memory;
use crate::call::{Call, Ran};
use crate::collective::Collective as _;
use crate::dtype::Element;
use crate::error::Result;
use crate::select::Choice;

/// An array that is filled, reduced and checked.
pub enum Array<T> {
    /// A slice, or registered memory.
    OnHost(Box<dyn DerefMut<Target = [T]>>),
    #[cfg(feature = "nccl")]
    /// Memory of this rank's GPU.
    OnDevice(device::Array<T>),
}

impl<T> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Array").finish_non_exhaustive()
    }
}

impl<T: Element> Array<T> {
    /// Allocates an array of zeros.
    pub fn new(memory: Memory, comm: &Communicator, count: usize) -> Result<Self> {
        Ok(match memory {
            Memory::Slice => Self::OnHost(Box::new(vec![T::zeroed(); count])),
            Memory::Registered => Self::OnHost(Box::new(comm.alloc(count)?)),
            #[cfg(feature = "nccl")]
            Memory::Device => Self::OnDevice(device::Array::new(comm, count)?),
            #[cfg(not(feature = "nccl"))]
            Memory::Device => return Err(no_device()),
        })
    }

    /// Fills the whole array.
    pub fn fill(&mut self, fill: impl FnOnce(&mut [T])) -> Result<()> {
        match self {
            Self::OnHost(elements) => fill(elements),
            #[cfg(feature = "nccl")]
            Self::OnDevice(array) => array.fill(fill)?,
        }
        Ok(())
    }

    /// Executes a call on the first elements, after a barrier. Returns the method and this rank's time.
    pub fn timed(&mut self, comm: &mut Communicator, choice: &Choice, call: &Call) -> Result<(Ran, f64)> {
        comm.barrier()?;
        let choice = choice.clone();
        let began = Instant::now();
        let ran = match self {
            Self::OnHost(elements) => {
                comm.collective(choice)?.run(call, bytemuck::cast_slice_mut(&mut elements[..call.count]))?
            }
            #[cfg(feature = "nccl")]
            Self::OnDevice(array) => array.reduce(comm, &choice, call)?,
        };
        let time_us = began.elapsed().as_secs_f64() * 1e6;
        // A rank that finishes first would keep a core that another rank may need to finish.
        if comm.is_oversubscribed() {
            comm.barrier()?;
        }
        Ok((ran, time_us))
    }

    /// Returns the current contents.
    pub fn elements(&mut self) -> Result<&[T]> {
        match self {
            Self::OnHost(elements) => Ok(elements),
            #[cfg(feature = "nccl")]
            Self::OnDevice(array) => array.elements(),
        }
    }
}

#[cfg(not(feature = "nccl"))]
fn no_device() -> crate::Error {
    let text = "this program was built without the feature `nccl`, and does not support GPUs";
    crate::Error::Unsupported(text.to_owned())
}

#[cfg(feature = "nccl")]
mod device {
    use std::sync::Arc;

    use cudarc::driver::{CudaSlice, CudaStream};

    use crate::Communicator;
    use crate::call::{Call, Ran};
    use crate::dtype::Element;
    use crate::error::Result;
    use crate::gpu::cuda;
    use crate::select::Choice;

    /// An array on a GPU, and a copy of it on the host.
    #[derive(Debug)]
    pub struct Array<T> {
        host: Vec<T>,
        device: CudaSlice<u8>,
        stream: Arc<CudaStream>,
    }

    impl<T: Element> Array<T> {
        pub(super) fn new(comm: &Communicator, count: usize) -> Result<Self> {
            let device = comm.alloc_device::<u8>(count * size_of::<T>())?;
            let stream = comm.device()?.new_stream().map_err(cuda("a stream"))?;
            Ok(Self { host: vec![T::zeroed(); count], device, stream })
        }

        pub(super) fn fill(&mut self, fill: impl FnOnce(&mut [T])) -> Result<()> {
            fill(&mut self.host);
            let bytes: &[u8] = bytemuck::cast_slice(&self.host);
            let copied =
                self.stream.memcpy_htod(bytes, &mut self.device).and_then(|()| self.stream.synchronize());
            copied.map_err(cuda("a copy to the GPU"))
        }

        /// Executes a call on the array, and returns once the GPU has completed it.
        pub(super) fn reduce(
            &mut self,
            comm: &mut Communicator,
            choice: &Choice,
            call: &Call,
        ) -> Result<Ran> {
            let ran = comm.run_on_device(choice, call, &mut self.device, &self.stream)?;
            comm.synchronize(&self.stream)?;
            Ok(ran)
        }

        pub(super) fn elements(&mut self) -> Result<&[T]> {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.host);
            self.stream.memcpy_dtoh(&self.device, bytes).map_err(cuda("a copy from the GPU"))?;
            self.stream.synchronize().map_err(cuda("a copy from the GPU"))?;
            Ok(&self.host)
        }
    }
}
