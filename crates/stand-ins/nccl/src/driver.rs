//! The stand-in for the CUDA driver, which the process must have loaded before.

use std::ffi::{c_int, c_void};
use std::sync::LazyLock;

use libloading::Library;

use crate::results::{Fault, Kind};

pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

struct Driver {
    get_current: extern "C" fn(&mut usize) -> u32,
    set_current: extern "C" fn(usize) -> u32,
    get_device: extern "C" fn(&mut c_int) -> u32,
    get_uuid: extern "C" fn(&mut [u8; 16], c_int) -> u32,
    launch: unsafe extern "C" fn(usize, HostFunction, *mut c_void) -> u32,
    host_address: extern "C" fn(u64, usize) -> *mut u8,
}

static DRIVER: LazyLock<Result<Driver, Fault>> = LazyLock::new(|| {
    // SAFETY: the types match the driver's C interface, and the stand-in's own function. The library is never unloaded.
    let loaded = unsafe {
        Library::new("libcuda.so").and_then(|library| {
            let library = Box::leak(Box::new(library));
            Ok(Driver {
                get_current: *library.get(b"cuCtxGetCurrent\0")?,
                set_current: *library.get(b"cuCtxSetCurrent\0")?,
                get_device: *library.get(b"cuCtxGetDevice\0")?,
                get_uuid: *library.get(b"cuDeviceGetUuid_v2\0")?,
                launch: *library.get(b"cuLaunchHostFunc\0")?,
                host_address: *library.get(b"stand_in_host_address\0")?,
            })
        })
    };
    loaded.map_err(|error| {
        Fault::new(
            Kind::SystemError,
            format!("the stand-in for NCCL needs the stand-in for the CUDA driver: {error}"),
        )
    })
});

fn driver() -> Result<&'static Driver, Fault> {
    DRIVER.as_ref().map_err(Clone::clone)
}

fn check(name: &str, code: u32) -> Result<(), Fault> {
    match code {
        0 => Ok(()),
        _ => Err(Fault::new(Kind::UnhandledCudaError, format!("Cuda failure {code} of {name}"))),
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    context: usize,
    pub(crate) device: c_int,
    pub(crate) uuid: [u8; 16],
}

impl Place {
    pub(crate) fn current() -> Result<Self, Fault> {
        let driver = driver()?;
        let (mut context, mut device, mut uuid) = (0, 0, [0; 16]);
        check("cuCtxGetCurrent", (driver.get_current)(&mut context))?;
        if context == 0 {
            let message = "no context is current on this thread; choose the device first";
            return Err(Fault::new(Kind::InvalidUsage, message));
        }
        check("cuCtxGetDevice", (driver.get_device)(&mut device))?;
        check("cuDeviceGetUuid_v2", (driver.get_uuid)(&mut uuid, device))?;
        Ok(Self { context, device, uuid })
    }

    /// Enqueues a function on a stream of this context. The thread's current context stays the same.
    pub(crate) fn launch(
        self,
        stream: usize,
        function: HostFunction,
        data: *mut c_void,
    ) -> Result<(), Fault> {
        let driver = driver()?;
        let mut before = 0;
        check("cuCtxGetCurrent", (driver.get_current)(&mut before))?;
        check("cuCtxSetCurrent", (driver.set_current)(self.context))?;
        // SAFETY: the caller's function may be called with this argument.
        let launched = check("cuLaunchHostFunc", unsafe { (driver.launch)(stream, function, data) });
        // If the previous context was destroyed in the meantime, that is the thread's error.
        (driver.set_current)(before);
        launched
    }
}

/// The host address of a rank's buffer.
pub(crate) fn host_address(name: &str, address: u64, bytes: usize) -> Result<*mut u8, Fault> {
    if bytes == 0 {
        return Ok(std::ptr::null_mut());
    }
    let pointer = (driver()?.host_address)(address, bytes);
    if pointer.is_null() {
        let message = format!(
            "Cuda failure 700: the {name} buffer at {address:#x} of {bytes} bytes is not within live memory \
             of the stream's device"
        );
        return Err(Fault::new(Kind::UnhandledCudaError, message));
    }
    Ok(pointer)
}
