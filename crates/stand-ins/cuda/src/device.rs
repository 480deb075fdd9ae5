//! Devices: names, attributes and UUIDs.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::errors::{Failure, Out, Status, give, status};
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

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<'_, c_int>) -> Status {
    status(give(version, VERSION))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<'_, c_int>) -> Status {
    if !INITIALIZED.load(Ordering::Acquire) {
        return Failure::NOT_INITIALIZED.0;
    }
    status(give(count, SETTINGS.devices.len() as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: Out<'_, c_int>, ordinal: c_int) -> Status {
    status(physical(ordinal).and_then(|_| give(device, ordinal)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut u8, size: c_int, device: c_int) -> Status {
    status(physical(device).and_then(|_| {
        if name.is_null() || size < NAME.len() as c_int {
            return Err(Failure::INVALID_VALUE);
        }
        // SAFETY: the caller of this C function passes a pointer that is valid for writes of this size, which is large enough.
        unsafe { name.copy_from_nonoverlapping(NAME.as_ptr(), NAME.len()) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(id: Out<'_, [u8; 16]>, device: c_int) -> Status {
    status(physical(device).and_then(|physical| {
        let mut uuid = *b"stand-in device\0";
        uuid[15] = physical;
        give(id, uuid)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: Out<'_, usize>, device: c_int) -> Status {
    status(physical(device).and_then(|_| give(bytes, SETTINGS.memory_bytes)))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<'_, c_int>, number: c_int, device: c_int) -> Status {
    let found = physical(device).and_then(|physical| attribute(number, physical));
    status(found.and_then(|found| give(value, found)))
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

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetDefaultMemPool(pool: Out<'_, usize>, device: c_int) -> Status {
    status(physical(device).and_then(|physical| give(pool, usize::from(physical) + 1)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolSetAttribute(pool: usize, attribute: c_int, value: &u64) -> Status {
    status(pooled(pool, attribute).map(|physical| {
        THRESHOLDS.lock().unwrap_or_else(PoisonError::into_inner).insert(physical, *value);
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolGetAttribute(pool: usize, attribute: c_int, value: Out<'_, u64>) -> Status {
    status(pooled(pool, attribute).and_then(|physical| {
        let threshold = THRESHOLDS.lock().unwrap_or_else(PoisonError::into_inner).get(&physical).copied();
        give(value, threshold.unwrap_or(0))
    }))
}
