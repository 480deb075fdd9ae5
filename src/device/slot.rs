//! Pinned memory between a GPU and the other ranks: a piece of an array on its way down, with the host, or on its way up.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUdeviceptr};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result};

use crate::error::Result;
use crate::gpu::{Span, cuda};
use crate::memory::{Registered, Registry};

/// Any of the process' contexts may copy to and from the memory.
const PORTABLE: u32 = 1;
/// How long the end of a slot waits for copies that are on their way.
const LAST_COPIES: Duration = Duration::from_secs(5);

/// Who has the bytes of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// Nobody, or the GPU, which copies them up: then the next copy down waits for that on the GPU.
    Free,
    /// The GPU, which copies them down.
    ComingDown,
    /// The host.
    Host,
}

/// Memory for one piece at a time. The GPU copies to and from it beside what else it does, and the other ranks of the node reach
/// it where it lies.
#[derive(Debug)]
pub(super) struct Slot {
    context: Arc<CudaContext>,
    registry: Arc<Registry>,
    memory: Option<Registered<u8>>,
    holder: Holder,
    /// How many bytes of it the piece has.
    size_bytes: usize,
    /// What the copy down waits for.
    ready: CudaEvent,
    fetched: CudaEvent,
    returned: CudaEvent,
}

impl Slot {
    pub(super) fn new(context: &Arc<CudaContext>, registry: &Arc<Registry>) -> Result<Self> {
        let event = || context.new_event(None).map_err(cuda("an event"));
        Ok(Self {
            context: Arc::clone(context),
            registry: Arc::clone(registry),
            memory: None,
            holder: Holder::Free,
            size_bytes: 0,
            ready: event()?,
            fetched: event()?,
            returned: event()?,
        })
    }

    /// Begins to copy ranges of a span's bytes here, one after the other, on the stream `down`; where vendors work on `after`, once
    /// they have done what is there now.
    pub(super) fn fetch(
        &mut self,
        span: &mut Span<'_>,
        ranges: &[Range<usize>],
        after: Option<&CudaStream>,
        down: &CudaStream,
    ) -> Result<()> {
        assert_eq!(self.holder, Holder::Free, "a slot is fetched into when its piece has been given back");
        self.size_bytes = ranges.iter().map(ExactSizeIterator::len).sum();
        self.make_room()?;
        let vendors =
            after.map_or(Ok(()), |after| self.ready.record(after).and_then(|()| down.wait(&self.ready)));
        vendors.and_then(|()| down.wait(&self.returned)).map_err(cuda("order of streams"))?;
        self.holder = Holder::ComingDown;
        let copied = self.copies(span, ranges, |bytes, address| {
            // SAFETY: nobody but the GPU has the bytes until `fetched` is over; the memory is given back only after that.
            unsafe { result::memcpy_dtoh_async(bytes, address, down.cu_stream()) }
        });
        // Even if one of them failed: others may be on their way.
        let recorded = self.fetched.record(down);
        copied.and(recorded).map_err(cuda("a copy from the GPU"))
    }

    /// Whether the piece is here.
    pub(super) fn is_fetched(&mut self) -> Result<bool> {
        let is_fetched = self.fetched.try_is_complete().map_err(cuda("a copy from the GPU"))?;
        if is_fetched && self.holder == Holder::ComingDown {
            self.holder = Holder::Host;
        }
        Ok(is_fetched)
    }

    /// The piece.
    ///
    /// # Panics
    /// If it is not here.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        assert_eq!(self.holder, Holder::Host, "a piece is looked at when it has come down");
        let memory = self.memory.as_mut().expect("what was fetched has memory");
        &mut memory[..self.size_bytes]
    }

    /// Begins to copy the piece back to where it came from, on the stream `up`.
    pub(super) fn give_back(
        &mut self,
        span: &mut Span<'_>,
        ranges: &[Range<usize>],
        up: &CudaStream,
    ) -> Result<()> {
        assert_eq!(self.holder, Holder::Host, "a piece goes up when it has come down");
        self.holder = Holder::Free;
        let copied = self.copies(span, ranges, |bytes, address| {
            // SAFETY: the host does not touch the bytes before the next piece has come down, which is after `returned`.
            unsafe { result::memcpy_htod_async(address, bytes, up.cu_stream()) }
        });
        let recorded = self.returned.record(up);
        copied.and(recorded).map_err(cuda("a copy to the GPU"))
    }

    /// Has a stream go on after the piece is back on the GPU.
    pub(super) fn hold_back(&self, stream: &CudaStream) -> Result<()> {
        stream.wait(&self.returned).map_err(cuda("order of streams"))
    }

    /// Copies between the ranges of a span and the memory from its beginning on.
    fn copies(
        &mut self,
        span: &mut Span<'_>,
        ranges: &[Range<usize>],
        copy: impl Fn(&mut [u8], CUdeviceptr) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let Some(memory) = &mut self.memory else { return Ok(()) };
        let mut rest = &mut memory[..];
        for range in ranges {
            let bytes = rest.split_off_mut(..range.len()).expect("there is room for the piece");
            copy(bytes, span.part(range.clone()).address())?;
        }
        Ok(())
    }

    /// Pins enough memory, once for all pieces that are not larger.
    fn make_room(&mut self) -> Result<()> {
        if self.memory.as_ref().is_some_and(|memory| memory.len() >= self.size_bytes) {
            return Ok(());
        }
        self.release();
        // A piece of nothing has an address too.
        let mut memory = Registered::<u8>::new(&self.registry, self.size_bytes.max(1))?;
        let (address, size_bytes) = (memory.as_mut_ptr().cast::<c_void>(), memory.len());
        // SAFETY: the memory is there until `release` has told the driver that it goes.
        unsafe { sys::cuMemHostRegister_v2(address, size_bytes, PORTABLE) }
            .result()
            .map_err(cuda("pinned memory"))?;
        self.memory = Some(memory);
        Ok(())
    }

    /// Gives the memory back when no copy needs it any more. If copies do not end, it is kept for ever: anything else would be unsound.
    fn release(&mut self) {
        let Some(mut memory) = self.memory.take() else { return };
        let begun = Instant::now();
        while !(self.fetched.is_complete() && self.returned.is_complete()) {
            if begun.elapsed() > LAST_COPIES {
                tracing::warn!("copies of a GPU do not end; their memory is kept");
                std::mem::forget(memory);
                return;
            }
            std::thread::yield_now();
        }
        let unpinned = self.context.bind_to_thread().and_then(|()| {
            // SAFETY: the memory was registered, and no copy is on its way.
            unsafe { sys::cuMemHostUnregister(memory.as_mut_ptr().cast()) }.result()
        });
        if let Err(error) = unpinned {
            tracing::warn!(%error, "memory could not be unpinned");
            std::mem::forget(memory);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.release();
    }
}
