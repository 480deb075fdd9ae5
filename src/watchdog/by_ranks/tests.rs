//! Ranks that are alone on their nodes, and connected over loopback.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};

use unisono_collectives::Algorithm;

use super::*;
use crate::call::Call;
use crate::codes::Codes;
use crate::config::OnFailure;
use crate::control::Message;
use crate::dtype::DType;
use crate::kernels::ReduceOp;
use crate::method::Method;
use crate::watchdog::Identity;

const RANKS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(20);
const DEADLINES: (Duration, Duration) = (PATIENCE, PATIENCE);
/// Long enough for a message, and too short for a rank that comes after it.
const SHORT: (Duration, Duration) = (Duration::from_millis(300), PATIENCE);

/// Returns the two ends of a connection.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

struct End {
    status: StatusBoard,
    _guard: Arc<dyn Guard>,
}

/// Returns the connections of each rank with all others.
fn controls() -> Vec<Vec<(Rank, OwnedFd)>> {
    let mut controls: Vec<Vec<(Rank, OwnedFd)>> = (0..RANKS).map(|_| Vec::new()).collect();
    for (one, other) in (0..RANKS).flat_map(|one| (0..one).map(move |other| (one, other))) {
        let (of_one, of_other) = connection();
        controls[one].push((other, of_one.into()));
        controls[other].push((one, of_other.into()));
    }
    controls
}

/// Returns a rank that is alone on its node.
fn end((rank, controls): (Rank, Vec<(Rank, OwnedFd)>)) -> End {
    let identities = Arc::new(Identities((0..RANKS).map(Identity::of_this_process).collect()));
    let status = StatusBoard::alone(rank, RANKS).unwrap();
    let watched = Watched {
        statuses: vec![status.clone()],
        identities,
        hub: Vec::new(),
        controls,
        warn_after: Duration::from_millis(400),
        kind: Kind::Processes,
        on_failure: OnFailure::ReturnError,
    };
    let guard: Arc<dyn Guard> = Arc::new(ByRanks::new(watched).unwrap());
    status.set_guard(&guard);
    End { status, _guard: guard }
}

fn world() -> Vec<End> {
    controls().into_iter().enumerate().map(end).collect()
}

/// Runs the checks of waiting ranks until `condition` is true for all of them.
fn until(ends: &[End], condition: impl Fn(&StatusBoard) -> bool) {
    let began = Instant::now();
    while !ends.iter().all(|end| condition(&end.status)) {
        assert!(began.elapsed() < PATIENCE);
        ends.iter().for_each(|end| end.status.check_peers());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn call(status: &StatusBoard, count: usize) {
    let call = Call::all_reduce(DType::F32, ReduceOp::Sum, count);
    let codes = Codes::new(&call, Method::Algorithm(Algorithm::Ring));
    let _ = status.begin(0, count as u64, codes, 0, 0);
    status.waits_for(0, Duration::ZERO);
}

#[test]
fn killed_rank_is_named_on_every_rank() {
    let mut all: Vec<_> = controls().into_iter().enumerate().collect();
    // A killed process sends nothing.
    drop(all.remove(2));
    let ends: Vec<_> = all.into_iter().map(end).collect();
    until(&ends, |status| status.failure().is_some());
    for end in &ends {
        let failure = end.status.failure().unwrap();
        assert_eq!((failure.by, failure.first), (2, 2), "{failure:?}");
        assert!(failure.cause.contains("was killed") && end.status.has_died(2), "{failure:?}");
    }
}

#[test]
fn failure_reaches_every_rank_at_once_and_names_the_first_rank() {
    let mut ends = world();
    let reporter = ends.remove(1);
    reporter.status.give_up(3, "waited 3 s for rank 3");
    reporter.status.leave(1);
    // It drops its communicator, as the others do once they are informed.
    drop(reporter);
    until(&ends, |status| status.failure().is_some());
    for end in &ends {
        let failure = end.status.failure().unwrap();
        assert_eq!((failure.by, failure.first, &*failure.cause), (1, 3, "waited 3 s for rank 3"));
        assert!(!end.status.has_died(1));
    }
}

#[test]
fn leaving_is_not_a_failure() {
    let mut ends = world();
    let leaves = ends.remove(3);
    leaves.status.leave(3);
    drop(leaves);
    until(&ends, |status| status.has_left(3));
    // Anything after the goodbye is the end of the connection.
    let began = Instant::now();
    until(&ends, |_| began.elapsed() > 4 * TICK);
    assert!(ends.iter().all(|end| end.status.failure().is_none()));
}

/// Runs `then` on every rank after a failure, each on its own thread.
fn survivors<R: Send>(ends: &[End], then: impl Fn(Rank, &dyn Guard) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let then = &then;
        let rank = |end: &'_ End| {
            let (rank, guard) = (end.status.rank(), Arc::clone(&end._guard));
            scope.spawn(move || then(rank, &*guard))
        };
        let ranks: Vec<_> = ends.iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn survivors_of_several_nodes_agree_and_gather() {
    let mut all: Vec<_> = controls().into_iter().enumerate().collect();
    drop(all.remove(2));
    let ends: Vec<_> = all.into_iter().map(end).collect();
    let began = Instant::now();
    let gathered = survivors(&ends, |rank, guard| {
        let Outcome::Agreed(view) = guard.agree(DEADLINES, None) else { panic!("they agree") };
        let gathered = guard.gather(vec![rank as u8; rank + 1], DEADLINES);
        assert!(matches!(guard.finish(DEADLINES), Gathered::All(_)));
        (view.members, gathered)
    });
    for (members, gathered) in gathered {
        assert_eq!(members, [0, 1, 3]);
        assert_eq!(gathered, Gathered::All(vec![vec![0; 1], vec![1; 2], vec![3; 4]]));
    }
    assert!(began.elapsed() < Duration::from_secs(4), "nothing is waited for: {:?}", began.elapsed());
}

#[test]
fn living_rank_that_does_not_call_is_reported_as_missing() {
    let ends = world();
    let outcomes = survivors(&ends[..3], |_, guard| guard.agree(SHORT, None));
    assert!(outcomes.contains(&Outcome::Missing(vec![3])), "{outcomes:?}");
    assert!(!outcomes.iter().any(|outcome| matches!(outcome, Outcome::Agreed(_))), "{outcomes:?}");
}

#[test]
fn news_of_another_thread_is_sent_during_an_agreement() {
    let ends = world();
    std::thread::scope(|scope| {
        let agreement = scope.spawn(|| ends[0]._guard.agree((PATIENCE / 5, PATIENCE), None));
        std::thread::sleep(4 * TICK);
        ends[0].status.give_up(0, "on purpose");
        until(&ends[1..], |status| status.failure().is_some());
        assert!(!agreement.is_finished());
    });
}

#[test]
fn different_calls_on_several_nodes_are_reported() {
    let ends = world();
    // Not rank 0, which is in no call.
    call(&ends[1].status, 10);
    call(&ends[3].status, 11);
    until(&ends, |status| status.failure().is_some());
    for end in &ends {
        let cause = end.status.failure().unwrap().cause;
        let both = ["called all-reduce #0 of 10 f32", "called all-reduce #0 of 11 f32"];
        assert!(both.iter().all(|call| cause.contains(call)), "{cause}");
    }
}

#[test]
fn quiet_section_is_visible_on_all_nodes_until_it_ends() {
    let ends = world();
    ends[1].status.begin_quiet("validation");
    ends[1].status.exchange_now();
    until(&ends, StatusBoard::is_quiet);
    ends[1].status.end_quiet();
    ends[1].status.exchange_now();
    until(&ends, |status| !status.is_quiet());
}

#[test]
fn agreement_and_all_gather_wait_for_a_quiet_section() {
    let ends = world();
    ends[1].status.begin_quiet("validation");
    ends[1].status.exchange_now();
    until(&ends, StatusBoard::is_quiet);
    let gathered = survivors(&ends, |rank, guard| {
        if rank == 1 {
            std::thread::sleep(4 * SHORT.0);
        }
        let Outcome::Agreed(_) = guard.agree(SHORT, None) else { panic!("they agree") };
        if rank == 1 {
            std::thread::sleep(4 * SHORT.0);
        }
        guard.gather(vec![rank as u8], SHORT)
    });
    assert!(gathered.iter().all(|gathered| matches!(gathered, Gathered::All(_))), "{gathered:?}");
}

#[test]
fn quiet_section_of_a_group_is_visible_in_its_world() {
    let ends = world();
    let group = StatusBoard::of_one();
    group.set_parent(ends[1].status.clone(), [1].into());
    group.begin_quiet("validation");
    group.exchange_now();
    // Rank 1 makes no checks, which would send it too.
    until(&ends[2..], StatusBoard::is_quiet);
}

#[test]
fn quiet_section_of_a_killed_rank_ends_on_all_nodes() {
    let mut all: Vec<_> = controls().into_iter().enumerate().collect();
    let (_, killed) = all.remove(2);
    let ends: Vec<_> = all.into_iter().map(end).collect();
    let quiet = Message::Quiet { label: Some("validation".to_owned()) }.to_bytes();
    let mut killed: Vec<_> = killed.into_iter().map(|(_, control)| TcpStream::from(control)).collect();
    killed.iter_mut().for_each(|control| control.write_all(&quiet).unwrap());
    until(&ends, StatusBoard::is_quiet);
    // A killed process sends nothing.
    drop(killed);
    until(&ends, |status| !status.is_quiet());
}

#[test]
fn deadlock_of_a_group_with_its_world_is_reported_on_every_rank() {
    let errors = crate::threads(3, |mut comm| {
        comm.set_timeout(2 * PATIENCE);
        let mut group = comm.split(Some(0), 0).unwrap().unwrap();
        let (began, mut array) = (Instant::now(), [1.0_f32; 8]);
        let called = if comm.rank() == 1 { &mut comm } else { &mut group };
        let error = called.all_reduce(&mut array, ReduceOp::Sum).unwrap_err().to_string();
        assert!(began.elapsed() < PATIENCE, "{error}");
        error
    });
    for error in errors {
        let both = [
            "called all-reduce #0 of 8 f32, sum, by",
            ", in a group of ranks [0, 1, 2], but rank 1 called all-reduce #",
        ];
        assert!(both.iter().all(|call| error.contains(call)), "{error}");
    }
}
