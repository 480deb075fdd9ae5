//! Arrays: objects with a buffer, such as numpy's.

use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::num::NonZero;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use unisono::{DType, Element};
use unisono_bindings::Lent;
use unisono_bindings::device::OnGpu;

use super::error::argument;

/// A contiguous array that is held until the call is done.
pub(crate) struct Array {
    data: *mut c_void,
    pub(crate) count: usize,
    pub(crate) dtype: DType,
    /// The number of values of `dtype` in an element. It exceeds one for types that the library only moves, as bytes.
    width: usize,
    /// The array, if it is in GPU memory.
    pub(crate) on_gpu: Option<OnGpu>,
    /// Keeps the memory alive, unless the caller does.
    buffer: Option<PyUntypedBuffer>,
}

// SAFETY: only the call to which the array is lent uses the address. The buffer locks the interpreter to release itself.
unsafe impl Send for Array {}

/// The type of an array's elements.
#[derive(Debug, PartialEq)]
pub(crate) struct Elements {
    dtype: DType,
    width: usize,
    /// The format of a type that the library does not have.
    pub(crate) foreign: Option<CString>,
}

impl fmt::Display for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.foreign {
            Some(format) => write!(f, "elements of format {:?}", format.to_string_lossy()),
            None => write!(f, "elements of {}", self.dtype),
        }
    }
}

impl Array {
    /// Returns the array of an object. `moves` is whether the call only moves elements, which may then be of any type.
    pub(crate) fn new(object: &Bound<'_, PyAny>, moves: bool, writes: bool) -> PyResult<Self> {
        if let Ok(held) = object.cast::<GpuArray>() {
            let &GpuArray { array, dtype, .. } = held.get();
            let (data, on_gpu) = (std::ptr::null_mut(), Some(array));
            return Ok(Self { data, count: array.count, dtype, width: 1, on_gpu, buffer: None });
        }
        if let Ok(typed) = object.cast::<TypedArray>() {
            let &TypedArray { ref bits, dtype } = typed.get();
            let bits = Self::new(bits.bind(object.py()), true, writes)?;
            let count = bits.count * bits.width * bits.dtype.size_bytes() / dtype.size_bytes();
            return Ok(Self { count, dtype, width: 1, ..bits });
        }
        let buffer = buffer(object, writes)?;
        if !buffer.is_c_contiguous() {
            return Err(argument("the array is not contiguous: pass numpy.ascontiguousarray(...)"));
        }
        if writes && buffer.readonly() {
            return Err(argument("the array is read-only, and the call writes to it"));
        }
        let (data, format) = (buffer.buf_ptr(), buffer.format());
        if has_objects(format) {
            return Err(argument(
                "the array has elements that are Python objects, whose addresses have no meaning on other ranks: pass numbers or bytes",
            ));
        }
        let (dtype, count, width) = match (element(format, buffer.item_size()), buffer.item_size()) {
            (Some(dtype), _) => (dtype, buffer.item_count(), 1),
            // Empty strings.
            (None, 0) if moves => (DType::U8, 0, 1),
            (None, size_bytes) if moves => (DType::U8, buffer.item_count(), size_bytes),
            (None, _) => {
                return Err(argument(format!(
                    "no reduction of elements of format {:?}: those of float16, 32 and 64, int32 and 64, and uint8, 32 and 64 are",
                    format.to_string_lossy()
                )));
            }
        };
        Ok(Self { data, count, dtype, width, on_gpu: None, buffer: Some(buffer) })
    }

    /// Returns the size of an element for the options of a call, if the library does not have the type.
    pub(crate) fn element_bytes(&self) -> PyResult<Option<NonZero<u16>>> {
        if self.width == 1 {
            return Ok(None);
        }
        let size = u16::try_from(self.width).ok().and_then(NonZero::new);
        size.map(Some).ok_or_else(|| {
            argument(format!(
                "elements of {} bytes: a collective moves those of up to {}",
                self.width,
                u16::MAX
            ))
        })
    }

    /// Returns the type of the elements.
    pub(crate) fn elements(&self) -> Elements {
        let format = self.buffer.as_ref().map(|buffer| (buffer.format(), buffer.item_size()));
        let foreign = format.filter(|&(format, size_bytes)| element(format, size_bytes).is_none());
        Elements {
            dtype: self.dtype,
            width: self.width,
            foreign: foreign.map(|(format, _)| format.to_owned()),
        }
    }

    /// # Errors
    /// If another array has elements of another type.
    pub(crate) fn check_same_elements(&self, other: &Self) -> PyResult<()> {
        if (self.dtype, self.width) == (other.dtype, other.width) {
            return Ok(());
        }
        Err(argument("the arrays have elements of different types"))
    }

    /// # Errors
    /// If another array overlaps it in memory: a call reads one while it writes the other.
    pub(crate) fn check_apart(&self, other: &Self) -> PyResult<()> {
        let size_bytes = |array: &Self| array.count * array.width * array.dtype.size_bytes();
        let (own, others) = (self.data.addr(), other.data.addr());
        if own.max(others) < (own + size_bytes(self)).min(others + size_bytes(other)) {
            return Err(argument("the arrays to send and to receive overlap: pass a copy of one"));
        }
        Ok(())
    }

    /// Returns the values of the elements, lent to one call.
    pub(crate) fn lent<T: Element>(&self) -> PyResult<Lent<T>> {
        if self.on_gpu.is_some() {
            return Err(argument(
                "the array is in GPU memory: only blocking collectives take it; copy it to host memory",
            ));
        }
        // SAFETY: the array or the caller keeps the memory alive, and the program does not access it until the call is done, as the
        // documentation requires.
        unsafe { Lent::new(self.data, self.count * self.width) }.map_err(argument)
    }

    /// Returns the values of the elements, lent to a call in flight.
    pub(crate) fn kept<T: Element>(self) -> PyResult<Lent<T, Self>> {
        Ok(self.lent::<T>()?.kept_by(self))
    }
}

/// An array in GPU memory and the stream on which its work is ordered, as determined by `unisono/gpu.py`.
#[pyclass(frozen, module = "unisono._unisono")]
pub(crate) struct GpuArray {
    array: OnGpu,
    dtype: DType,
    /// The program's array, which keeps the memory alive.
    #[pyo3(get)]
    owner: Py<PyAny>,
}

#[pymethods]
impl GpuArray {
    #[new]
    fn new(address: usize, count: usize, element: &str, stream: usize, owner: Py<PyAny>) -> PyResult<Self> {
        Ok(Self { array: OnGpu { address, count, stream }, dtype: dtype(element)?, owner })
    }
}

/// An array of bits in host memory, and their element type, for types without a format in Python's buffers.
#[pyclass(frozen, module = "unisono._unisono")]
pub(crate) struct TypedArray {
    bits: Py<PyAny>,
    dtype: DType,
}

#[pymethods]
impl TypedArray {
    #[new]
    fn new(bits: Py<PyAny>, element: &str) -> PyResult<Self> {
        Ok(Self { bits, dtype: dtype(element)? })
    }
}

/// Returns the buffer of an object. Numpy exports no buffer of dates and times, so an array of them is accessed as bytes. An array without
/// dimensions is accessed as one of one element, since PyO3 requires a shape.
fn buffer(object: &Bound<'_, PyAny>, writes: bool) -> PyResult<PyUntypedBuffer> {
    let is_scalar =
        object.getattr("ndim").and_then(|number| number.extract()).is_ok_and(|number: usize| number == 0);
    // The row of a numpy scalar is a copy.
    if is_scalar && writes && !object.getattr("flags")?.getattr("writeable")?.extract::<bool>()? {
        return Err(argument(
            "the array is read-only, or a scalar of numpy such as a mean, and the call writes to it: pass numpy.array(value)",
        ));
    }
    let row = is_scalar.then(|| object.call_method1("reshape", (1,))).transpose()?;
    let object = row.as_ref().unwrap_or(object);
    // A memory view has strides, which PyO3 requires and arrays of ctypes lack.
    let viewed = |_| PyUntypedBuffer::get(PyMemoryView::from(object)?.as_any());
    PyUntypedBuffer::get(object).or_else(viewed).or_else(|error| {
        let bytes = || -> PyResult<PyUntypedBuffer> {
            let size_bytes = object.getattr("dtype")?.getattr("itemsize")?;
            PyUntypedBuffer::get(&object.call_method1("view", (format!("V{size_bytes}"),))?)
        };
        bytes().map_err(|_| {
            let kind = object.get_type();
            argument(format!(
                "{kind} has no buffer ({error}): pass a numpy array, or what numpy.from_dlpack makes of it"
            ))
        })
    })
}

/// Returns whether elements of a buffer's format contain references to Python objects. Names of fields are between colons.
fn has_objects(format: &CStr) -> bool {
    format.to_bytes().split(|&byte| byte == b':').step_by(2).any(|types| types.contains(&b'O'))
}

/// Returns the element type of a buffer's format, in native byte order.
fn element(format: &CStr, size_bytes: usize) -> Option<DType> {
    let code = match format.to_bytes() {
        [code] | [b'@' | b'=' | b'<', code] => *code,
        _ => return None,
    };
    match (code, size_bytes) {
        (b'f', 4) => Some(DType::F32),
        (b'd', 8) => Some(DType::F64),
        (b'e', 2) => Some(DType::F16),
        (b'i' | b'l', 4) => Some(DType::I32),
        (b'l' | b'q', 8) => Some(DType::I64),
        (b'B', 1) => Some(DType::U8),
        (b'I' | b'L', 4) => Some(DType::U32),
        (b'L' | b'Q', 8) => Some(DType::U64),
        _ => None,
    }
}

pub(crate) fn dtype(name: &str) -> PyResult<DType> {
    name.parse().map_err(|_| argument(format!("no element type is called {name:?}")))
}
