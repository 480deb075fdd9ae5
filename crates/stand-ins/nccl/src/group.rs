//! Groups: calls between the start and the end of a group are executed at its end, in order.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::collective::Call;
use crate::communicator::Communicator;
use crate::results::{Fault, Kind, Status, Stop, status};

#[derive(Default)]
struct Group {
    depth: usize,
    calls: Vec<(Arc<Communicator>, Call)>,
    created: Vec<Arc<Communicator>>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Adds a collective to the group, or executes it as a group of its own.
pub(crate) fn call(communicator: Arc<Communicator>, call: Call) -> Result<(), Fault> {
    GROUP.with_borrow_mut(|group| group.calls.push((communicator, call)));
    end_if_outermost()
}

/// Adds a communicator in creation. Within a group, the end of the group waits for it.
pub(crate) fn created(communicator: Arc<Communicator>) -> Result<(), Fault> {
    GROUP.with_borrow_mut(|group| group.created.push(communicator));
    end_if_outermost()
}

/// Executes all calls once the thread has left its outermost group.
fn end_if_outermost() -> Result<(), Fault> {
    let group = GROUP.with_borrow_mut(|group| (group.depth == 0).then(|| std::mem::take(group)));
    let Some(Group { calls, created, .. }) = group else { return Ok(()) };
    for communicator in created.iter().filter(|one| one.is_blocking) {
        communicator.settle()?;
    }
    let mut blocks = created.iter().all(|one| one.is_blocking);
    if calls.iter().all(|(communicator, _)| communicator.is_blocking) {
        for (communicator, call) in calls {
            communicator.launch(call).or_else(|stop| match stop {
                Stop::Failed(fault) => Err(fault),
                Stop::Aborted => Ok(()),
            })?;
        }
    } else {
        blocks = false;
        calls.iter().for_each(|(communicator, _)| communicator.begin_job());
        thread::spawn(move || {
            // 50 to 250 microseconds: long enough to reveal a caller that does not wait.
            static TURN: AtomicU64 = AtomicU64::new(0);
            thread::sleep(Duration::from_micros(50 + TURN.fetch_add(67, Ordering::Relaxed) % 200));
            for (communicator, call) in calls {
                communicator.end_job(communicator.launch(call));
            }
        });
    }
    if blocks { Ok(()) } else { Err(Fault::in_progress()) }
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> Status {
    GROUP.with_borrow_mut(|group| group.depth += 1);
    0
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> Status {
    let outer = GROUP.with_borrow_mut(|group| group.depth.checked_sub(1).map(|depth| group.depth = depth));
    let outside = || Fault::new(Kind::InvalidUsage, "ncclGroupEnd without ncclGroupStart");
    status(outer.ok_or_else(outside).and_then(|()| end_if_outermost()))
}
