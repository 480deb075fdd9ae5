//! Planned calls: persistent collectives.

use std::ffi::{c_char, c_int, c_void};

use unisono::{Communicator, with_type};
use unisono_bindings::{Collective, Lent, Owner};

use super::collectives::{self, Array, checked};
use super::comm::{Comm, on_handle, out, required_text};
use super::errors::{Failure, Result, argument};
use super::options::{self, Call};
use super::reductions;
use super::values;

/// A collective on one array, which is planned once and carried out many times.
pub struct Plan {
    planned: Box<dyn unisono_bindings::Plan>,
    /// The number of its communicator.
    comm: u64,
    owner: Owner,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("is_started", &self.planned.is_started()).finish_non_exhaustive()
    }
}

/// Plans a collective on `count` elements (`MPI_Allreduce_init` and similar), to start it many times. `operation` is its name, such
/// as "all_reduce"; `op` is its reduction and `root` its root, each -1 for an operation without one. All ranks plan the same call.
/// The array must exist as long as the plan.
///
/// # Safety
/// The handle must be live, the name a string, the array one of `count` elements, the options null or valid, and the pointer to the plan
/// valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_plan_create(
    comm: *mut Comm,
    operation: *const c_char,
    data: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    root: c_int,
    options: *const Call,
    plan: *mut *mut Plan,
) -> c_int {
    let body = |comm: &mut Comm| {
        let Comm { inner: comm, number, .. } = comm;
        // SAFETY: as the caller promises, for both.
        let (place, name) = unsafe { (out(plan, "the plan")?, required_text(operation, "the operation")?) };
        let op = (op != -1).then(|| reductions::op(op)).transpose()?;
        let root = (root != -1).then(|| collectives::root(comm, root)).transpose()?;
        let collective = Collective::named(name, op, root).map_err(argument)?;
        // SAFETY: as the caller promises.
        let dtype = unsafe { checked(comm, Array { data, count, dtype }, collective, options)? };
        with_type!(dtype, T => {
            // SAFETY: as the caller promises.
            let planned = unsafe {
                let values: Lent<T> = values::lent(data, count)?;
                let plan = |comm: &mut Communicator| comm.plan(collective.operation, collective.op, values);
                options::call(comm, options, collective.element_bytes(), plan)?
            };
            let (planned, owner) = (Box::new(planned), Owner::this_process());
            *place = Box::into_raw(Box::new(Plan { planned, comm: *number, owner }));
            Ok(())
        })
    };
    // SAFETY: as the caller promises.
    unsafe { on_handle(comm, body) }
}

/// Starts a planned call on the communicator that planned it (`MPI_Start`). Do not access the array until `unisono_plan_wait` has
/// returned.
///
/// # Safety
/// The handles must be live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_plan_start(comm: *mut Comm, plan: *mut Plan) -> c_int {
    let body = |comm: &mut Comm| {
        // SAFETY: as the caller promises.
        let plan = unsafe { live(plan, comm)? };
        if plan.planned.is_started() {
            return Err(argument("the planned call is started already: wait for it first"));
        }
        Ok(plan.planned.start(&mut comm.inner)?)
    };
    // SAFETY: as the caller promises.
    unsafe { on_handle(comm, body) }
}

/// Waits until a planned call is done (`MPI_Wait`). The array then has the result.
///
/// # Safety
/// The handles must be live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_plan_wait(comm: *mut Comm, plan: *mut Plan) -> c_int {
    let body = |comm: &mut Comm| {
        // SAFETY: as the caller promises.
        let plan = unsafe { live(plan, comm)? };
        if !plan.planned.is_started() {
            return Err(argument("the planned call is not started"));
        }
        Ok(plan.planned.wait(&mut comm.inner)?)
    };
    // SAFETY: as the caller promises.
    unsafe { on_handle(comm, body) }
}

/// Frees a plan, before or after its communicator, and not while its call is started. NULL is ignored.
///
/// # Safety
/// The handle must be null or live, and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_plan_free(plan: *mut Plan) {
    if !plan.is_null() {
        // SAFETY: the handle is live, as the caller promises, and so came from `unisono_plan_create`.
        let plan = unsafe { Box::from_raw(plan) };
        plan.owner.free(plan);
    }
}

/// Returns the plan of a handle, which belongs to this communicator.
///
/// # Safety
/// The handle must be null or live.
unsafe fn live<'a>(plan: *mut Plan, comm: &Comm) -> Result<&'a mut Plan> {
    // SAFETY: as the caller promises.
    let plan = unsafe { plan.as_mut() }.ok_or_else(|| -> Failure { argument("the plan is NULL") })?;
    plan.owner.check().map_err(argument)?;
    comm.check_number(plan.comm, "plan")?;
    Ok(plan)
}
