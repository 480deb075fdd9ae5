//! Reductions: built-in ones by name, and custom ones by functions of the program.

use std::cell::RefCell;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use unisono::{ReduceOp, fail_reduction, with_type};

use super::array::{Array, Elements};
use super::error::argument;
use super::interrupt::reducing;

thread_local! {
    /// The exception of a reduction's function, until the failed call of this thread raises it.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Takes the exception that the function of a reduction has raised on this thread.
pub(crate) fn raised() -> Option<PyErr> {
    RAISED.take()
}

/// Returns the reduction with this name, or a custom one.
pub(crate) fn reduction(op: &Bound<'_, PyAny>) -> PyResult<ReduceOp> {
    if let Ok(reduction) = op.cast::<Reduction>() {
        return Ok(reduction.get().op);
    }
    let name = op.cast::<PyString>().map_err(|_| argument("a reduction is a name or a unisono.Reduction"))?;
    let name = match name.to_str()? {
        // PyTorch's name of the mean.
        "avg" => "mean",
        name => name,
    };
    name.parse().map_err(|_| {
        let names = ReduceOp::ALL.map(ReduceOp::name).join(", ");
        argument(format!("no reduction is called {name:?}; these are: {names}"))
    })
}

/// The library compares its own types when it makes the call.
///
/// # Errors
/// If an array has elements of another type than a custom reduction.
pub(crate) fn check_elements(op: &Bound<'_, PyAny>, array: &Array) -> PyResult<()> {
    let Ok(reduction) = op.cast::<Reduction>() else { return Ok(()) };
    let Reduction { op, elements: expected } = reduction.get();
    let found = array.elements();
    if *expected == found || (expected.foreign.is_none() && found.foreign.is_none()) {
        return Ok(());
    }
    Err(argument(format!("the reduction {:?} is of {expected}, and the array has {found}", op.name())))
}

/// A reduction by a function of the program.
#[pyclass(frozen, subclass, module = "unisono._unisono")]
pub(crate) struct Reduction {
    op: ReduceOp,
    elements: Elements,
}

#[pymethods]
impl Reduction {
    /// `example` is an array with elements of the type, and `function` reduces bytes of the left and the right operands.
    #[new]
    fn new(
        name: &str,
        example: &Bound<'_, PyAny>,
        is_commutative: bool,
        function: Py<PyAny>,
    ) -> PyResult<Self> {
        let example = Array::new(example, true, false)?;
        let elements = example.elements();
        let function = Function { name: name.to_owned(), function };
        let op = match example.element_bytes()? {
            None => with_type!(example.dtype, T => {
                let reduce = move |left: &mut [T], right: &[T]| {
                    function.reduce(bytemuck::cast_slice_mut(left), bytemuck::cast_slice(right));
                };
                ReduceOp::custom(name, is_commutative, reduce)
            }),
            Some(size) if size.is_power_of_two() && size.get() <= 64 => {
                let reduce = move |left: &mut [u8], right: &[u8]| function.reduce(left, right);
                ReduceOp::custom_bytes(name, size.get(), is_commutative, reduce)
            }
            Some(size) => {
                return Err(argument(format!(
                    "elements of a reduction have 1, 2, 4, 8, 16, 32 or 64 bytes, and not {size}"
                )));
            }
        };
        Ok(Self { op, elements })
    }

    /// Returns the name.
    #[getter]
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn __repr__(&self) -> String {
        format!("Reduction({:?})", self.op.name())
    }
}

struct Function {
    name: String,
    function: Py<PyAny>,
}

impl Function {
    /// Calls the function with copies, which it may keep. If it raises, or returns another number of bytes, the call fails.
    fn reduce(&self, left: &mut [u8], right: &[u8]) {
        let reduced = Python::attach(|py| {
            let operands = (PyBytes::new(py, left), PyBytes::new(py, right));
            let reduced = reducing(|| self.function.call1(py, operands))?;
            let bytes = reduced.bind(py).cast::<PyBytes>().map_err(PyErr::from)?.as_bytes();
            if bytes.len() != left.len() {
                return Err(argument(format!(
                    "the function of the reduction {:?} returned {} bytes for {}",
                    self.name,
                    bytes.len(),
                    left.len()
                )));
            }
            left.copy_from_slice(bytes);
            Ok(())
        });
        if let Err(raised) = reduced {
            let text = format!("the function of the reduction {:?} raised {raised}", self.name);
            RAISED.set(Some(raised));
            fail_reduction(text);
        }
    }
}
