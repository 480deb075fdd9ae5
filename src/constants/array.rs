//! The array of a measurement, in any kind of memory.

use std::fmt;
use std::ops::DerefMut;
#[cfg(feature = "nccl")]
use std::sync::Arc;
use std::time::Instant;

#[cfg(feature = "nccl")]
use cudarc::driver::{CudaSlice, CudaStream};

use crate::Communicator;
use crate::call::{Call, Memory, Ran};
use crate::collective::Collective as _;
use crate::dtype::Element;
use crate::error::Result;
#[cfg(feature = "nccl")]
use crate::gpu::cuda;
use crate::select::Choice;

/// An array that is filled, reduced and checked.
pub enum Array<T> {
    /// A slice, or registered memory.
    OnHost(Box<dyn DerefMut<Target = [T]>>),
    /// Memory of this rank's GPU.
    #[cfg(feature = "nccl")]
    OnDevice {
        /// A copy of it on the host.
        host: Vec<T>,
        /// The memory.
        device: CudaSlice<u8>,
        /// The stream of its calls.
        stream: Arc<CudaStream>,
    },
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
            Memory::Device => {
                let device = comm.alloc_device::<u8>(count * size_of::<T>())?;
                let stream = comm.device()?.new_stream().map_err(cuda("a stream"))?;
                Self::OnDevice { host: vec![T::zeroed(); count], device, stream }
            }
            #[cfg(not(feature = "nccl"))]
            Memory::Device => {
                let text = "this program was built without the feature `nccl`, and does not support GPUs";
                return Err(crate::Error::Unsupported(text.to_owned()));
            }
        })
    }

    /// Fills the whole array.
    pub fn fill(&mut self, fill: impl FnOnce(&mut [T])) -> Result<()> {
        match self {
            Self::OnHost(elements) => fill(elements),
            #[cfg(feature = "nccl")]
            Self::OnDevice { host, device, stream } => {
                fill(host);
                let bytes: &[u8] = bytemuck::cast_slice(&host[..]);
                let copied = stream.memcpy_htod(bytes, device).and_then(|()| stream.synchronize());
                copied.map_err(cuda("a copy to the GPU"))?;
            }
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
            Self::OnDevice { device, stream, .. } => {
                let ran = comm.run_on_device(&choice, call, device, stream)?;
                comm.synchronize(stream)?;
                ran
            }
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
            Self::OnDevice { host, device, stream } => {
                let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut host[..]);
                let copied = stream.memcpy_dtoh(&*device, bytes).and_then(|()| stream.synchronize());
                copied.map_err(cuda("a copy from the GPU"))?;
                Ok(host)
            }
        }
    }
}
