//! The stand-in for CUDA's driver, which the process has loaded before.

use std::ffi::{c_int, c_void};
use std::sync::LazyLock;

use libloading::Library;

use crate::results::{Fault, Kind};

/// What is called in the course of a stream.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// The functions that are used.
struct Driver {
    get_current: unsafe extern "C" fn(*mut usize) -> u32,
    set_current: unsafe extern "C" fn(usize) -> u32,
    get_device: unsafe extern "C" fn(*mut c_int) -> u32,
    get_uuid: unsafe extern "C" fn(*mut [u8; 16], c_int) -> u32,
    launch: unsafe extern "C" fn(usize, HostFunction, *mut c_void) -> u32,
    host_address: unsafe extern "C" fn(u64, usize) -> *mut u8,
}

static DRIVER: LazyLock<Result<Driver, Fault>> = LazyLock::new(|| {
    // SAFETY: the types are those of the driver's C interface and of the stand-in's own function. The library
    // is never unloaded.
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
            format!("the stand-in for NCCL needs the one for CUDA's driver: {error}"),
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

/// A context, and its device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    context: usize,
    pub(crate) device: c_int,
    pub(crate) uuid: [u8; 16],
}

impl Place {
    /// That is current on this thread.
    pub(crate) fn current() -> Result<Self, Fault> {
        let driver = driver()?;
        let (mut context, mut device, mut uuid) = (0, 0, [0; 16]);
        // SAFETY: everything that is written to lives to the end of the call.
        check("cuCtxGetCurrent", unsafe { (driver.get_current)(&raw mut context) })?;
        if context == 0 {
            let message = "no context is current on this thread; choose the device first";
            return Err(Fault::new(Kind::InvalidUsage, message));
        }
        // SAFETY: as above.
        check("cuCtxGetDevice", unsafe { (driver.get_device)(&raw mut device) })?;
        // SAFETY: as above.
        check("cuDeviceGetUuid_v2", unsafe { (driver.get_uuid)(&raw mut uuid, device) })?;
        Ok(Self { context, device, uuid })
    }

    /// Puts a function into a stream of this context. The thread's own context stays current.
    pub(crate) fn launch(
        self,
        stream: usize,
        function: HostFunction,
        data: *mut c_void,
    ) -> Result<(), Fault> {
        let driver = driver()?;
        let mut before = 0;
        // SAFETY: what is written to lives to the end of the call; the others are values.
        unsafe {
            check("cuCtxGetCurrent", (driver.get_current)(&raw mut before))?;
            check("cuCtxSetCurrent", (driver.set_current)(self.context))?;
            let launched = check("cuLaunchHostFunc", (driver.launch)(stream, function, data));
            // A context that has gone meanwhile was the thread's affair.
            (driver.set_current)(before);
            launched
        }
    }
}

/// Where on the host a rank's buffer is.
pub(crate) fn host_address(name: &str, address: u64, bytes: usize) -> Result<*mut u8, Fault> {
    if bytes == 0 {
        return Ok(std::ptr::null_mut());
    }
    // SAFETY: values.
    let pointer = unsafe { (driver()?.host_address)(address, bytes) };
    if pointer.is_null() {
        let message = format!(
            "Cuda failure 700: the {name} buffer at {address:#x} of {bytes} bytes is not inside of live memory \
             of the stream's device"
        );
        return Err(Fault::new(Kind::UnhandledCudaError, message));
    }
    Ok(pointer)
}
