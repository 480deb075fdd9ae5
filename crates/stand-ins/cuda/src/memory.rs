//! Device memory, and pinned host memory: both are host memory, with different addresses.

use std::alloc::{self, Layout};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::context::{self, Context};
use crate::errors::{Failure, Out, Status, give, status};
use crate::settings::SETTINGS;
use crate::stream::{self, Operation};

/// A bit that is set in every device address and in no host address, so that dereferencing one crashes.
const DEVICE_BIT: u64 = 1 << 62;
const ALIGNMENT: usize = 256;
/// The contents of new memory.
const NEW: u8 = 0xa5;
/// The contents of freed memory.
const FREED: u8 = 0xdb;
/// The amount of freed memory that is kept, so that a use after free is detected and does not affect other
/// memory.
const KEPT_BYTES: usize = 64 << 20;

/// An allocation, from its creation to the last operation that uses it.
pub(crate) struct Allocation {
    /// The address for the program.
    address: u64,
    pointer: *mut u8,
    layout: Layout,
    /// `None` for pinned memory.
    device: Option<c_int>,
    /// Whether the memory is the program's own, and only pinned here.
    is_lent: bool,
    context: usize,
    /// Whether it was already freed by the program.
    is_ending: AtomicBool,
}

// SAFETY: the pointer is only used by copies. Two at once are an error of the program under test, as on a device, and cause
// wrong bytes.
unsafe impl Send for Allocation {}
// SAFETY: as for `Send`.
unsafe impl Sync for Allocation {}

struct Memory {
    /// Live allocations, by address.
    live: BTreeMap<u64, Arc<Allocation>>,
    /// The latest freed allocations.
    kept: VecDeque<Arc<Allocation>>,
    kept_bytes: usize,
}

static MEMORY: Mutex<Memory> =
    Mutex::new(Memory { live: BTreeMap::new(), kept: VecDeque::new(), kept_bytes: 0 });

/// Bytes within an allocation, which is kept alive.
pub(crate) struct Span {
    pub(crate) pointer: *mut u8,
    bytes: usize,
    allocation: Arc<Allocation>,
}

impl Span {
    pub(crate) fn fill(&self, byte: u8) {
        // SAFETY: within an allocation that is kept alive.
        unsafe { self.pointer.write_bytes(byte, self.bytes) };
    }
}

impl Allocation {
    fn new(context: &Context, device: Option<c_int>, bytes: usize) -> Result<Arc<Self>, Failure> {
        let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| Failure::INVALID_VALUE)?;
        if bytes == 0 {
            return Err(Failure::INVALID_VALUE);
        }
        let mut memory = MEMORY.lock().unwrap();
        if device.is_some_and(|device| memory.used(device).saturating_add(bytes) > SETTINGS.memory_bytes) {
            return Err(Failure::OUT_OF_MEMORY);
        }
        // SAFETY: the layout has a size other than 0.
        let pointer = unsafe { alloc::alloc_zeroed(layout) };
        if pointer.is_null() {
            return Err(Failure::OUT_OF_MEMORY);
        }
        let address = pointer as u64 ^ if device.is_some() { DEVICE_BIT } else { 0 };
        let (context, is_ending, is_lent) = (context.handle, AtomicBool::new(false), false);
        let allocation = Arc::new(Self { address, pointer, layout, device, is_lent, context, is_ending });
        memory.live.insert(address, Arc::clone(&allocation));
        Ok(allocation)
    }

    /// Pins memory of the program.
    fn lend(context: &Context, pointer: *mut u8, bytes: usize) -> Result<(), Failure> {
        let layout = Layout::from_size_align(bytes, 1).map_err(|_| Failure::INVALID_VALUE)?;
        let (address, context, is_ending) = (pointer as u64, context.handle, AtomicBool::new(false));
        if bytes == 0 || find(address, 1).is_ok() {
            return Err(Failure::INVALID_VALUE);
        }
        let allocation =
            Arc::new(Self { address, pointer, layout, device: None, is_lent: true, context, is_ending });
        MEMORY.lock().unwrap().live.insert(address, allocation);
        Ok(())
    }

    /// Fills new memory.
    pub(crate) fn begin(&self) {
        // SAFETY: the pointer is valid for the layout's size while the allocation exists.
        unsafe { self.pointer.write_bytes(NEW, self.layout.size()) };
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !self.is_lent {
            // SAFETY: allocated with this layout, and this was the last reference.
            unsafe { alloc::dealloc(self.pointer, self.layout) };
        }
    }
}

impl Memory {
    fn used(&self, device: c_int) -> usize {
        self.live.values().filter(|one| one.device == Some(device)).map(|one| one.layout.size()).sum()
    }

    fn end(&mut self, allocation: &Arc<Allocation>) {
        if self.live.remove(&allocation.address).is_none() || allocation.is_lent {
            return;
        }
        // SAFETY: the pointer is valid for the layout's size while the argument exists.
        unsafe { allocation.pointer.write_bytes(FREED, allocation.layout.size()) };
        self.kept_bytes += allocation.layout.size();
        self.kept.push_back(Arc::clone(allocation));
        while self.kept_bytes > KEPT_BYTES
            && let Some(oldest) = self.kept.pop_front()
        {
            self.kept_bytes -= oldest.layout.size();
        }
    }
}

/// The bytes at a device address, or at an address in pinned memory.
pub(crate) fn find(address: u64, bytes: usize) -> Result<Span, Failure> {
    let memory = MEMORY.lock().unwrap();
    let (_, allocation) = memory.live.range(..=address).next_back().ok_or(Failure::ILLEGAL_ADDRESS)?;
    let offset = (address - allocation.address) as usize;
    if offset.checked_add(bytes).is_none_or(|end| end > allocation.layout.size()) {
        return Err(Failure::ILLEGAL_ADDRESS);
    }
    // SAFETY: the offset is within the allocation.
    let pointer = unsafe { allocation.pointer.add(offset) };
    Ok(Span { pointer, bytes, allocation: Arc::clone(allocation) })
}

/// Returns whether the address is in device or pinned memory, which is accessed by streams only.
pub(crate) fn is_ours(address: u64) -> bool {
    address & DEVICE_BIT != 0 || find(address, 1).is_ok()
}

/// Ends an allocation: its addresses become invalid.
pub(crate) fn end(allocation: &Arc<Allocation>) {
    MEMORY.lock().unwrap().end(allocation);
}

/// Ends all allocations of a context.
pub(crate) fn forget(context: usize) {
    let mut memory = MEMORY.lock().unwrap();
    let ending: Vec<_> = memory.live.values().filter(|one| one.context == context).cloned().collect();
    ending.iter().for_each(|allocation| memory.end(allocation));
}

/// Marks the allocation at this address as freed by the program, and returns it.
fn ending(address: u64, is_device: bool) -> Result<Arc<Allocation>, Failure> {
    let memory = MEMORY.lock().unwrap();
    let allocation = memory.live.get(&address).filter(|one| one.device.is_some() == is_device);
    let allocation = allocation.ok_or(Failure::INVALID_VALUE)?;
    if allocation.is_ending.swap(true, Ordering::AcqRel) {
        return Err(Failure::INVALID_VALUE);
    }
    Ok(Arc::clone(allocation))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: Out<'_, u64>, bytes: usize) -> Status {
    status(context::current().and_then(|context| {
        let allocation = Allocation::new(&context, Some(context.device), bytes)?;
        allocation.begin();
        give(address, allocation.address)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(address: Out<'_, u64>, bytes: usize, stream: usize) -> Status {
    status(stream::usable(stream).and_then(|stream| {
        let allocation = Allocation::new(&stream.context, Some(stream.context.device), bytes)?;
        give(address, allocation.address)?;
        stream.enqueue(Operation::Begin(allocation));
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> Status {
    status(context::current().and_then(|_| ending(address, true)).map(|allocation| end(&allocation)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: u64, stream: usize) -> Status {
    status(stream::usable(stream).and_then(|stream| {
        stream.enqueue(Operation::End(ending(address, true)?));
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(pointer: Out<'_, *mut c_void>, bytes: usize, _flags: c_uint) -> Status {
    status(context::current().and_then(|context| {
        let allocation = Allocation::new(&context, None, bytes)?;
        allocation.begin();
        give(pointer, allocation.pointer.cast())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(pointer: *mut c_void) -> Status {
    let allocation = context::current().and_then(|_| ending(pointer as u64, false));
    status(allocation.map(|allocation| end(&allocation)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, _flags: c_uint) -> Status {
    status(context::current().and_then(|context| Allocation::lend(&context, pointer.cast(), bytes)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(pointer: *mut c_void) -> Status {
    cuMemFreeHost(pointer)
}

/// Counts this process's allocations only.
#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: Out<'_, usize>, total: Out<'_, usize>) -> Status {
    status(context::current().and_then(|context| {
        let left = SETTINGS.memory_bytes - MEMORY.lock().unwrap().used(context.device);
        give(free, left).and_then(|()| give(total, SETTINGS.memory_bytes))
    }))
}

/// Supports the kind of memory and the ordinal of its device, which have 32 bits each.
#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttribute(to: Out<'_, u32>, attribute: c_int, address: u64) -> Status {
    const MEMORY_TYPE: c_int = 2;
    const DEVICE_ORDINAL: c_int = 9;
    let found = find(address, 1).map_err(|_| Failure::INVALID_VALUE);
    status(found.and_then(|span| match (attribute, span.allocation.device) {
        (MEMORY_TYPE, device) => give(to, if device.is_some() { 2 } else { 1 }),
        (DEVICE_ORDINAL, Some(device)) => give(to, device.cast_unsigned()),
        _ => Err(Failure::NOT_SUPPORTED),
    }))
}

/// Not part of CUDA: the host address of these bytes, for a host function of the NCCL stand-in. Null if they are not within
/// one live allocation that is pinned or on the stream's own device; the error then sticks to the context, as if a kernel
/// had accessed them.
#[unsafe(no_mangle)]
extern "C" fn stand_in_host_address(address: u64, bytes: usize) -> *mut u8 {
    let here = stream::context_here();
    let span = find(address, bytes).ok().filter(|span| match (span.allocation.device, &here) {
        (Some(device), Some(here)) => device == here.device,
        _ => true,
    });
    match (span, here) {
        (Some(span), _) => span.pointer,
        (None, here) => {
            if let Some(here) = here {
                here.fail(Failure::ILLEGAL_ADDRESS);
            }
            std::ptr::null_mut()
        }
    }
}
