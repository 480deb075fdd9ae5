//! Devices: names, attributes and UUIDs.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::errors::{Failure, Status, give, status};
use crate::settings::SETTINGS;

/// The CUDA version of the driver: 13.0.
const VERSION: c_int = 13_000;
const NAME: &[u8] = b"Stand-in GPU\0";

static INITIALIZED: AtomicBool = AtomicBool::new(false);

/// The physical ordinal of a device that this process sees.
pub(crate) fn physical(device: c_int) -> Result<u8, Failure> {
    if !INITIALIZED.load(Ordering::Acquire) {
        return Err(Failure::NOT_INITIALIZED);
    }
    let device = usize::try_from(device).map_err(|_| Failure::INVALID_DEVICE)?;
    SETTINGS.devices.get(device).copied().ok_or(Failure::INVALID_DEVICE)
}

/// The UUID, which depends only on the physical ordinal.
fn uuid(physical: u8) -> [u8; 16] {
    let mut uuid = *b"stand-in device\0";
    uuid[15] = physical;
    uuid
}

/// The values of `cuDeviceGetAttribute`, by the numbers in `cuda.h`.
fn attribute(number: c_int, physical: u8) -> Result<c_int, Failure> {
    Ok(match number {
        1 => 1024,                       // maximum threads per block
        10 => 32,                        // warp size
        16 => 1,                         // multiprocessors
        18 => 0,                         // integrated
        31 => 1,                         // concurrent kernels
        33 => c_int::from(physical) + 1, // PCI bus
        34 | 50 => 0,                    // PCI device, PCI domain
        40 => 2,                         // copy engines
        41 => 1,                         // unified addresses
        75 => 9,                         // compute capability
        76 => 0,
        83 => 0,  // managed memory
        115 => 1, // memory pools: stream-ordered allocation
        _ => return Err(Failure::INVALID_VALUE),
    })
}

/// The driver's `cuInit`.
#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> Status {
    if flags != 0 {
        return Failure::INVALID_VALUE.0;
    }
    if SETTINGS.devices.is_empty() {
        return Failure::NO_DEVICE.0;
    }
    INITIALIZED.store(true, Ordering::Release);
    0
}

/// The driver's `cuDriverGetVersion`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Status {
    // SAFETY: the caller of this C function passes an address that is null or valid for the result.
    status(unsafe { give(version, VERSION) })
}

/// The driver's `cuDeviceGetCount`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Status {
    if !INITIALIZED.load(Ordering::Acquire) {
        return Failure::NOT_INITIALIZED.0;
    }
    // SAFETY: as in `cuDriverGetVersion`.
    status(unsafe { give(count, SETTINGS.devices.len() as c_int) })
}

/// The driver's `cuDeviceGet`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Status {
    // SAFETY: as in `cuDriverGetVersion`.
    status(physical(ordinal).and_then(|_| unsafe { give(device, ordinal) }))
}

/// The driver's `cuDeviceGetName`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, size: c_int, device: c_int) -> Status {
    // SAFETY: as in `cuDriverGetVersion`.
    status(physical(device).and_then(|_| unsafe { give_text(name, size, NAME) }))
}

/// Writes a text with its terminating zero, truncated to the size of the buffer.
///
/// # Safety
/// The pointer must be null, or valid for writes of that many bytes.
unsafe fn give_text(to: *mut c_char, size: c_int, text: &[u8]) -> Result<(), Failure> {
    let room = usize::try_from(size).unwrap_or(0);
    if to.is_null() || room == 0 {
        return Err(Failure::INVALID_VALUE);
    }
    let length = text.len().min(room);
    // SAFETY: the pointer is not null, and no more bytes are written than the caller promises.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length);
        to.add(length - 1).write(0);
    }
    Ok(())
}

/// The driver's `cuDeviceGetUuid`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid(id: *mut [u8; 16], device: c_int) -> Status {
    // SAFETY: as in `cuDriverGetVersion`.
    status(physical(device).and_then(|physical| unsafe { give(id, uuid(physical)) }))
}

/// The driver's `cuDeviceGetUuid_v2`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid_v2(id: *mut [u8; 16], device: c_int) -> Status {
    // SAFETY: as in `cuDriverGetVersion`.
    unsafe { cuDeviceGetUuid(id, device) }
}

/// The driver's `cuDeviceTotalMem_v2`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> Status {
    // SAFETY: as in `cuDriverGetVersion`.
    status(physical(device).and_then(|_| unsafe { give(bytes, SETTINGS.memory_bytes) }))
}

/// The driver's `cuDeviceGetAttribute`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, number: c_int, device: c_int) -> Status {
    let found = physical(device).and_then(|physical| attribute(number, physical));
    // SAFETY: as in `cuDriverGetVersion`.
    status(found.and_then(|found| unsafe { give(value, found) }))
}

/// The release thresholds of the default pools, by physical device.
static THRESHOLDS: Mutex<BTreeMap<u8, u64>> = Mutex::new(BTreeMap::new());
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const RELEASE_THRESHOLD: c_int = 4;

/// The device of a pool: a handle is the physical ordinal, from 1.
fn pooled(pool: usize, attribute: c_int) -> Result<u8, Failure> {
    let found = SETTINGS.devices.iter().find(|&&physical| usize::from(physical) + 1 == pool);
    found.copied().filter(|_| attribute == RELEASE_THRESHOLD).ok_or(Failure::INVALID_VALUE)
}

/// The driver's `cuDeviceGetDefaultMemPool`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetDefaultMemPool(pool: *mut usize, device: c_int) -> Status {
    // SAFETY: as in `cuDriverGetVersion`.
    status(physical(device).and_then(|physical| unsafe { give(pool, usize::from(physical) + 1) }))
}

/// The driver's `cuMemPoolSetAttribute`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemPoolSetAttribute(pool: usize, attribute: c_int, value: *const u64) -> Status {
    status(pooled(pool, attribute).map(|physical| {
        // SAFETY: the caller of this C function passes the address of the attribute's value, which is an integer of 64 bits.
        let value = unsafe { value.read() };
        THRESHOLDS.lock().unwrap_or_else(PoisonError::into_inner).insert(physical, value);
    }))
}

/// The driver's `cuMemPoolGetAttribute`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemPoolGetAttribute(pool: usize, attribute: c_int, value: *mut u64) -> Status {
    status(pooled(pool, attribute).and_then(|physical| {
        let threshold = THRESHOLDS.lock().unwrap_or_else(PoisonError::into_inner).get(&physical).copied();
        // SAFETY: as in `cuDriverGetVersion`.
        unsafe { give(value, threshold.unwrap_or(0)) }
    }))
}
