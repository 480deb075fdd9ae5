//! Copies to a GPU while it computes, through a ring of pinned buffers and on a separate stream.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{
    CudaEvent, CudaSlice, CudaStream, DevicePtrMut, DeviceRepr, DriverError, PinnedHostSlice, result,
};
use unisono_collectives::Rank;

use super::pinned::{LAST_COPIES, NAP, have_ended};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::gpu::{cuda, keep_freed, nothing};
use crate::kernels;

/// Copies arrays to a GPU ahead of the work that reads them, while the GPU does other work.
/// [`Communicator::host_to_device`](crate::Communicator::host_to_device) creates it.
///
/// An array is first copied into one of a few buffers of pinned memory. From there the GPU copies it, on a stream for copies.
/// Events order the stream of the reading work after the copy. The host waits only for a free buffer.
#[derive(Debug)]
pub struct HostToDevice {
    rank: Rank,
    timeout: Duration,
    copies: Arc<CudaStream>,
    reader: Arc<CudaStream>,
    ring: Vec<Buffer>,
    /// The index of the next buffer in the ring, which has the oldest copy.
    next: usize,
}

/// Pinned memory, as large as the largest array copied through it.
#[derive(Debug)]
struct Buffer {
    memory: Option<PinnedHostSlice<u8>>,
    /// The end of the last copy from it.
    copied: CudaEvent,
}

impl HostToDevice {
    /// Creates this many buffers, for work on the stream `reader`. `timeout` limits the wait for a free one.
    pub(crate) fn new(
        rank: Rank,
        timeout: Duration,
        reader: &Arc<CudaStream>,
        buffers: usize,
    ) -> Result<Self> {
        assert!(buffers > 0, "copies to a GPU need at least one buffer");
        let context = reader.context();
        keep_freed(context).map_err(cuda("the GPU's memory pool"))?;
        let buffer =
            || Ok(Buffer { memory: None, copied: context.new_event(None).map_err(cuda("an event"))? });
        Ok(Self {
            rank,
            timeout,
            copies: context.new_stream().map_err(cuda("a stream"))?,
            reader: Arc::clone(reader),
            ring: (0..buffers).map(|_| buffer()).collect::<Result<_>>()?,
            next: 0,
        })
    }

    /// Starts to copy an array to the GPU, and returns it there. Work that is queued on the reading stream from now on finds the values;
    /// so does any other stream where cudarc tracks arrays. `values` may change as soon as this returns.
    ///
    /// The array belongs to the reading stream, which frees it after the work queued by then.
    ///
    /// # Errors
    /// [`Error::Overdue`] if no buffer becomes free before the [timeout](crate::Communicator::set_timeout), and
    /// [`Error::HostToDevice`] if CUDA reports an error, which may be one of earlier work.
    pub fn copy<T: Element + DeviceRepr>(&mut self, values: &[T]) -> Result<CudaSlice<T>> {
        let failed = self.failed();
        self.copies.context().bind_to_thread().map_err(&failed)?;
        if values.is_empty() {
            return nothing(&self.reader).map_err(failed);
        }
        self.wait_for_buffer()?;
        self.begin(values).map_err(failed)
    }

    fn wait_for_buffer(&self) -> Result<()> {
        let (began, copied) = (Instant::now(), &self.ring[self.next].copied);
        while !copied.try_is_complete().map_err(self.failed())? {
            let (rank, waited) = (self.rank, began.elapsed());
            if waited > self.timeout {
                return Err(Error::Overdue { rank, what: "a copy to the GPU", waited });
            }
            thread::sleep(NAP);
        }
        Ok(())
    }

    /// Starts a copy through the next buffer, which is free.
    fn begin<T: Element + DeviceRepr>(&mut self, values: &[T]) -> Result<CudaSlice<T>, DriverError> {
        let Self { copies, reader, ring, next, .. } = self;
        let buffer = &mut ring[*next];
        let pinned = buffer.fill(copies, bytemuck::cast_slice(values))?;
        let mut array = unset(values.len(), copies, reader)?;
        // Where cudarc tracks arrays, every user of this one waits for the events recorded when `queued` is
        // dropped.
        let (address, queued) = array.device_ptr_mut(copies);
        // SAFETY: the array has as many bytes. The bytes of the buffer stay allocated, pinned and unchanged until `copied` has completed:
        // `wait_for_buffer` waits for it before the buffer is filled again, and `release` before it is freed.
        let begun = unsafe { result::memcpy_htod_async(address, pinned, copies.cu_stream()) };
        // Recorded even if the copy failed: part of it may be in flight.
        let recorded = buffer.copied.record(copies);
        drop(queued);
        let is_tracked = copies.context().is_managing_stream_synchronization();
        let ordered = if is_tracked { Ok(()) } else { reader.wait(&buffer.copied) };
        *next = (*next + 1) % ring.len();
        begun.and(recorded).and(ordered).map(|()| array)
    }

    fn failed(&self) -> impl Fn(DriverError) -> Error + use<> {
        let (rank, gpu) = (self.rank, self.copies.context().ordinal());
        move |cause| Error::HostToDevice { rank, gpu, cause }
    }
}

/// Returns an uninitialised array, which the caller must fill at once.
fn unset<T: DeviceRepr>(
    count: usize,
    copies: &Arc<CudaStream>,
    reader: &Arc<CudaStream>,
) -> Result<CudaSlice<T>, DriverError> {
    // On the stream of copies: on the reading stream, the allocation would wait for all queued work. SAFETY: the copy writes every
    // byte of it before anything reads it.
    let unset = unsafe { copies.alloc::<T>(count) }?;
    // SAFETY: the address is that of a leaked allocation of this many elements in the same context, which the array now owns and
    // frees. It frees them on the reading stream, which is ordered after the copy, and so after the allocation.
    Ok(unsafe { reader.upgrade_device_ptr(unset.leak(), count) })
}

impl Buffer {
    /// Copies bytes into the memory, which no copy in flight may use, and returns them there.
    fn fill(&mut self, copies: &CudaStream, bytes: &[u8]) -> Result<&[u8], DriverError> {
        if self.memory.as_ref().is_none_or(|memory| memory.len() < bytes.len()) {
            // Freed first, so that both do not exist at once.
            self.memory = None;
            // Write-combined, since the host never reads it. SAFETY: any bits are valid bytes, and only written bytes are read.
            self.memory = Some(unsafe { copies.context().alloc_pinned::<u8>(bytes.len()) }?);
        }
        let memory = self.memory.as_mut().expect("it has memory by now").as_mut_slice()?;
        let filled = &mut memory[..bytes.len()];
        kernels::copy(filled, bytes);
        Ok(filled)
    }

    /// Frees the memory once no copy uses it, or else leaks it.
    fn release(&mut self, deadline: Instant) {
        let Some(memory) = self.memory.take() else { return };
        if !have_ended(deadline, || self.copied.try_is_complete()) {
            std::mem::forget(memory);
        }
    }
}

impl Drop for HostToDevice {
    fn drop(&mut self) {
        let deadline = Instant::now() + LAST_COPIES;
        self.ring.iter_mut().for_each(|buffer| buffer.release(deadline));
    }
}
