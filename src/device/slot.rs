//! Pinned memory between a GPU and the other ranks, which holds a segment while it is copied down, reduced, and copied up.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::{self, CUdeviceptr};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result};

use super::pinned::{LAST_COPIES, have_ended};
use crate::error::Result;
use crate::gpu::{Span, cuda};
use crate::memory::{Registered, Registry};

/// `CU_MEMHOSTREGISTER_PORTABLE`: the memory is pinned in all contexts of the process.
const PORTABLE: u32 = 1;

/// The user of a slot's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// None, or the GPU, which copies them up. The next copy down waits for that on the GPU.
    Free,
    ComingDown,
    Host,
}

/// Memory for one segment at a time. The GPU copies to and from it asynchronously, and the other ranks of the node access it in
/// place.
#[derive(Debug)]
pub(super) struct Slot {
    context: Arc<CudaContext>,
    registry: Registry,
    memory: Option<Registered<u8>>,
    holder: Holder,
    /// The size of the current segment.
    size_bytes: usize,
    /// The copy down waits for this event.
    ready: CudaEvent,
    fetched: CudaEvent,
    returned: CudaEvent,
}

impl Slot {
    pub(super) fn new(context: &Arc<CudaContext>, registry: Registry) -> Result<Self> {
        let event = || context.new_event(None).map_err(cuda("an event"));
        Ok(Self {
            context: Arc::clone(context),
            registry,
            memory: None,
            holder: Holder::Free,
            size_bytes: 0,
            ready: event()?,
            fetched: event()?,
            returned: event()?,
        })
    }

    /// Starts to copy ranges of a span's bytes into the slot, one after the other, on the stream `down`. If a vendor works on the
    /// stream `after`, the copy waits for the work queued there.
    pub(super) fn fetch(
        &mut self,
        span: &mut Span<'_>,
        ranges: &[Range<usize>],
        after: Option<&CudaStream>,
        down: &CudaStream,
    ) -> Result<()> {
        assert_eq!(self.holder, Holder::Free, "the slot is free");
        self.size_bytes = ranges.iter().map(ExactSizeIterator::len).sum();
        self.allocate()?;
        let vendors =
            after.map_or(Ok(()), |after| self.ready.record(after).and_then(|()| down.wait(&self.ready)));
        vendors.and_then(|()| down.wait(&self.returned)).map_err(cuda("order of streams"))?;
        self.holder = Holder::ComingDown;
        let copied = self.copies(span, ranges, |bytes, address| {
            // SAFETY: the bytes stay allocated and pinned until `release`, which waits for `fetched`, and nothing else accesses them
            // before `fetched` has completed: the holder is the GPU. The span has as many bytes at this address as are copied.
            unsafe { result::memcpy_dtoh_async(bytes, address, down.cu_stream()) }
        });
        // Recorded even if a copy failed, since other copies may be in flight.
        let recorded = self.fetched.record(down);
        copied.and(recorded).map_err(cuda("a copy from the GPU"))
    }

    pub(super) fn is_fetched(&mut self) -> Result<bool> {
        let is_fetched = self.fetched.try_is_complete().map_err(cuda("a copy from the GPU"))?;
        if is_fetched && self.holder == Holder::ComingDown {
            self.holder = Holder::Host;
        }
        Ok(is_fetched)
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        assert_eq!(self.holder, Holder::Host, "the segment has arrived");
        let memory = self.memory.as_mut().expect("a fetched segment has memory");
        &mut memory[..self.size_bytes]
    }

    /// Starts to copy the segment back to the same ranges of the span, on the stream `up`.
    pub(super) fn copy_back(
        &mut self,
        span: &mut Span<'_>,
        ranges: &[Range<usize>],
        up: &CudaStream,
    ) -> Result<()> {
        assert_eq!(self.holder, Holder::Host, "the segment has arrived");
        self.holder = Holder::Free;
        let copied = self.copies(span, ranges, |bytes, address| {
            // SAFETY: the bytes stay allocated and pinned until `release`, which waits for `returned`, and the host does not access
            // them before the next segment has arrived: its copy down waits for `returned`. The span has as many bytes there.
            unsafe { result::memcpy_htod_async(address, bytes, up.cu_stream()) }
        });
        let recorded = self.returned.record(up);
        copied.and(recorded).map_err(cuda("a copy to the GPU"))
    }

    /// Makes a stream wait until the segment has been copied back.
    pub(super) fn order_after(&self, stream: &CudaStream) -> Result<()> {
        stream.wait(&self.returned).map_err(cuda("order of streams"))
    }

    /// Copies between the ranges of a span and the slot's memory, from its beginning.
    fn copies(
        &mut self,
        span: &mut Span<'_>,
        ranges: &[Range<usize>],
        copy: impl Fn(&mut [u8], CUdeviceptr) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let Some(memory) = &mut self.memory else { return Ok(()) };
        let mut rest = &mut memory[..];
        for range in ranges {
            let bytes = rest.split_off_mut(..range.len()).expect("the segment fits");
            copy(bytes, span.part(range.clone()).address())?;
        }
        Ok(())
    }

    /// Allocates and pins memory for the segment, unless the current memory is large enough.
    fn allocate(&mut self) -> Result<()> {
        if self.memory.as_ref().is_some_and(|memory| memory.len() >= self.size_bytes) {
            return Ok(());
        }
        self.release();
        // An empty segment needs an address too.
        let mut memory = Registered::<u8>::new(self.registry, self.size_bytes.max(1))?;
        let (address, size_bytes) = (memory.as_mut_ptr().cast::<c_void>(), memory.len());
        // SAFETY: the memory is a live allocation of this size, and stays one until `release` has unregistered it.
        unsafe { sys::cuMemHostRegister_v2(address, size_bytes, PORTABLE) }
            .result()
            .map_err(cuda("pinned memory"))?;
        self.memory = Some(memory);
        Ok(())
    }

    /// Frees the memory once no copy uses it, or else leaks it.
    fn release(&mut self) {
        let Some(mut memory) = self.memory.take() else { return };
        let are_over = || Ok(self.fetched.try_is_complete()? && self.returned.try_is_complete()?);
        if !have_ended(Instant::now() + LAST_COPIES, are_over) {
            return std::mem::forget(memory);
        }
        let unpinned = self.context.bind_to_thread().and_then(|()| {
            // SAFETY: the memory was registered by `allocate`, and no copy uses it: both events have completed.
            unsafe { sys::cuMemHostUnregister(memory.as_mut_ptr().cast()) }.result()
        });
        if let Err(error) = unpinned {
            tracing::warn!(%error, "cannot unpin memory; it is leaked");
            std::mem::forget(memory);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.release();
    }
}
