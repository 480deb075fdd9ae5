//! Worlds that lose ranks and continue with the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use unisono::{
    Algorithm, Choice, Communicator, Error, ErrorCode, OnFailure, Rank, ReduceOp, Result, Topology, Unisono,
};
use unisono_testing::launch::{self, Ended};
use unisono_testing::suite::{self, Test, is_deep};

mod machines;
mod script;

use script::{Moment, Script};

const DEADLINE: Duration = Duration::from_secs(120);
/// The timeout of ranks. On a busy machine, no living rank may be this late.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The timeout of calls that wait for a missing rank.
const SHORT: Duration = Duration::from_secs(1);

/// Simulates ranks on two machines.
const CONNECTED: &[(&str, &str)] = &[("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "2,1")];

pub(crate) fn tests() -> Vec<Test> {
    let seeds = if is_deep() { 300 } else { 60 };
    let mut tests = vec![
        Test::new("threads that end at any moment", move || (0..seeds).for_each(threads_of)),
        Test::new("five ranks become four, three and one", one_by_one),
        Test::new("uninformed ranks follow the first that shrinks", nobody_has_failed),
        Test::new("a group continues without one of its ranks", groups),
        Test::new("a group ends when a member shrinks its world", || {
            all_succeed(unisono::threads(3, play_member));
        }),
        Test::new("choice, timeout and settings are inherited", inherited),
        Test::new("a living rank that does not shrink is named", missing),
        Test::new("a program that ends with its ranks is refused", refused),
        Test::new("a stopped process is named as alive", stopped),
        Test::new("connected ranks continue too", connected),
        Test::new("fewer ranks than the minimum do not continue", too_few),
    ];
    tests.extend(machines::tests());
    #[cfg(feature = "mpi")]
    tests.push(Test::new("a world over MPI is refused", over_mpi));
    for first in (0..if is_deep() { 200 } else { 16 }).step_by(8) {
        let name = format!("processes that are killed at any moment, from seed {first}");
        tests.push(Test::new(name, move || (first..first + 8).for_each(processes_of)));
    }
    tests
}

/// Checks that the last world of every survivor of a script consists of all survivors.
fn threads_of(seed: u64) {
    let script = Script::new(seed);
    let rank = |mut comm: Communicator| {
        comm.set_timeout(TIMEOUT);
        catch_unwind(AssertUnwindSafe(|| script.play(comm, |_, _| panic!("on purpose"))))
    };
    let survivors = script.survivors();
    for (rank, ended) in unisono::threads(script.ranks(), rank).into_iter().enumerate() {
        match ended {
            Ok(ranks) => assert_eq!(ranks.unwrap(), survivors, "rank {rank} of {script:?}"),
            Err(_) => assert!(!survivors.contains(&rank), "rank {rank} of {script:?}"),
        }
    }
}

fn processes_of(seed: u64) {
    let script = Script::new(seed);
    let survivors = script.survivors();
    let ended = start(script.ranks(), &format!("script {seed}"), &[]);
    expect_lines(&ended, &format!("went on as {survivors:?}"), survivors.len());
}

fn start(ranks: usize, role: &str, settings: &[(&str, &str)]) -> Ended {
    let mut command = launch::processes(ranks, &launch::this_program());
    suite::play(&mut command, "shrink", role).env("UNISONO_WARNINGS", "off");
    launch::run(command.envs(settings.iter().copied()), DEADLINE)
}

/// Checks that this number of ranks has printed this line, and none has printed another.
fn expect_lines(ended: &Ended, line: &str, ranks: usize) {
    let lines: Vec<_> = ended.stdout.lines().collect();
    assert_eq!(lines, vec![line; ranks], "{ended}");
}

pub(crate) fn play(role: &str) -> ExitCode {
    #[cfg(feature = "mpi")]
    if role == "over MPI" {
        println!("{}", Unisono::builder().mpi().unwrap().shrink().unwrap_err());
        return ExitCode::SUCCESS;
    }
    let comm = Unisono::builder().timeout(TIMEOUT).processes().unwrap();
    let ended = match role {
        "stopped" => play_stopped(comm),
        "connected" => lose(comm, &[&[1]], || launch::kill_this_process()),
        "absent" => machines::play_absent(comm),
        "group" => machines::play_group(comm),
        "member" => play_member(comm),
        "minimum" => machines::play_minimum(comm),
        "stops" => machines::play_stops(comm),
        "one by one" => lose(comm, &[&[1], &[0, 2]], || launch::kill_this_process()),
        script => {
            let seed = script.strip_prefix("script ").expect("a role of this module").parse();
            play_script(comm, &Script::new(seed.expect("a seed")))
        }
    };
    if let Err(error) = ended {
        println!("failed: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn play_script(comm: Communicator, script: &Script) -> Result<()> {
    let end = |moment, delay| {
        let dies = move || {
            std::thread::sleep(delay);
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
        };
        match moment {
            Moment::BeforeStep | Moment::AfterStep => dies(),
            Moment::InStep | Moment::InShrink => drop(std::thread::spawn(dies)),
        }
    };
    let ranks = script.play(comm, end)?;
    println!("went on as {ranks:?}");
    Ok(())
}

fn sum(comm: &mut Communicator) -> Result<u64> {
    let mut sum = [1];
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0])
}

/// Returns the error of the first call that fails.
fn failure(comm: &mut Communicator) -> Error {
    loop {
        if let Err(error) = sum(comm) {
            return error;
        }
    }
}

/// Ends the ranks in each of these lists in turn, by their numbers at that time.
fn lose(mut comm: Communicator, lists: &[&[Rank]], end: impl Fn()) -> Result<()> {
    for list in lists {
        assert_eq!(sum(&mut comm)?, comm.ranks() as u64);
        if list.contains(&comm.rank()) {
            end();
            return Ok(());
        }
        let error = failure(&mut comm);
        assert!(list.contains(&error.failed_rank().unwrap()), "{error}");
        let left: Vec<_> = (0..comm.ranks()).filter(|rank| !list.contains(rank)).collect();
        comm = comm.shrink()?;
        assert_eq!(comm.former_ranks(), left);
    }
    assert_eq!(sum(&mut comm)?, comm.ranks() as u64);
    println!("{} are left", comm.ranks());
    Ok(())
}

fn all_succeed<R>(ended: Vec<Result<R>>) -> Vec<R> {
    ended.into_iter().map(Result::unwrap).collect()
}

fn one_by_one() {
    all_succeed(unisono::threads(5, |comm| lose(comm, &[&[0], &[3], &[0, 2]], || ())));
}

fn connected() {
    expect_lines(&start(3, "connected", CONNECTED), "2 are left", 2);
}

/// Ranks in a collective, with a request in flight, or in a computation get an error with the cause, and all of them continue.
fn nobody_has_failed() {
    let ended = unisono::threads(4, |mut comm| -> Result<()> {
        let rank = comm.rank();
        let error = match rank {
            0 => None,
            1 => comm.all_reduce_async(vec![1.0_f32; 100_000], ReduceOp::Sum)?.wait().err(),
            2 => Some(failure(&mut comm)),
            _ => comm.receive(&mut [0_u8], 0).err(),
        };
        if let Some(error) = error {
            assert!(error.is_fatal() && error.failed_rank() == Some(0), "{error}");
            assert!(error.to_string().contains("rank 0 failed: it called `shrink`"), "{error}");
        }
        let mut comm = comm.shrink()?;
        assert_eq!((comm.former_ranks(), comm.rank()), (&[0, 1, 2, 3][..], rank));
        assert_eq!(sum(&mut comm)?, 4);
        Ok(())
    });
    all_succeed(ended);
}

/// The world of the group is lost, but the group need not be.
fn groups() {
    let ended = unisono::threads(5, |mut comm| -> Result<()> {
        let mut group = comm.group(&[4, 2, 1, 0])?;
        if comm.rank() == 2 {
            return Ok(());
        }
        let Some(mut of_four) = group.take() else { return Ok(()) };
        assert_eq!(failure(&mut of_four).failed_rank(), Some(1));
        let mut of_three = of_four.shrink()?;
        assert_eq!(sum(&mut of_three)?, 3);
        assert_eq!(of_three.former_ranks(), [0, 2, 3]);
        // It can have groups, like any other communicator.
        let pair = of_three.group(&[0, 2])?;
        if of_three.rank() == 1 {
            return Ok(());
        }
        assert_eq!(sum(&mut pair.expect("this rank is in the group"))?, 2);
        Ok(())
    });
    all_succeed(ended);
}

/// Rank 2 fails. Rank 1 shrinks the world while rank 0 waits for it in a group.
fn play_member(mut comm: Communicator) -> Result<()> {
    comm.set_timeout(TIMEOUT);
    let mut group = comm.group(&[0, 1])?;
    sum(&mut comm)?;
    match (comm.rank(), &mut group) {
        (0, Some(group)) => {
            let error = failure(group);
            assert!(error.to_string().contains("it called `shrink`"), "{error}");
        }
        (1, _) => drop(failure(&mut comm)),
        _ => {
            comm.fail("on purpose");
            return Ok(());
        }
    }
    assert_eq!(sum(&mut comm.shrink()?)?, 2);
    println!("2 are left");
    Ok(())
}

fn inherited() {
    let builder =
        Unisono::builder().ignore_environment().timeout(TIMEOUT).nodes(Topology::from_node_sizes(&[2, 2]));
    let ended = builder.on_threads(4, |mut comm| -> Result<()> {
        comm.set_choice(Algorithm::Ring)?;
        comm.set_timeout(SHORT);
        if comm.rank() == 1 {
            return Ok(());
        }
        failure(&mut comm);
        let mut comm = comm.shrink()?;
        assert_eq!(
            (comm.topology(), comm.choice()),
            (&Topology::from_node_sizes(&[1, 2]), &Choice::from(Algorithm::Ring))
        );
        if comm.rank() == 0 {
            std::thread::sleep(4 * SHORT);
            return Ok(());
        }
        let error = failure(&mut comm);
        // In a ring, a rank names the neighbour for which it waits.
        assert!(error.to_string().contains(": waited 1"), "{error}");
        assert_eq!(error.failed_rank(), Some(0), "the rank for which all wait: {error}");
        Ok(())
    });
    all_succeed(ended.unwrap());
}

fn missing() {
    let ended = unisono::threads(3, |mut comm| -> Result<Option<Error>> {
        comm.set_timeout(SHORT);
        if comm.rank() == 2 {
            std::thread::sleep(4 * SHORT);
            // This rank is late, and the others have left.
            return comm.shrink().map(|comm| {
                assert_eq!(comm.former_ranks(), [2]);
                None
            });
        }
        let began = Instant::now();
        let error = comm.shrink().unwrap_err();
        assert!(began.elapsed() >= SHORT);
        Ok(Some(error))
    });
    for error in all_succeed(ended).into_iter().flatten() {
        let expected =
            format!("rank 2 (process {}) is alive, and has not called `shrink`", std::process::id());
        assert!(error.to_string().contains(&expected), "{error}");
        assert!(matches!(error, Error::Missing { other: 2, is_stopped: false, .. }), "{error}");
        assert_eq!((error.code(), error.failed_rank()), (ErrorCode::Timeout, Some(2)));
    }
}

/// Rank 1 is stopped. The others name it, in a call and when they shrink, and then end it.
fn play_stopped(mut comm: Communicator) -> Result<()> {
    let mut processes = [0; 3];
    processes[comm.rank()] = u64::from(std::process::id());
    comm.all_gather(&mut processes)?;
    comm.set_timeout(SHORT);
    if comm.rank() == 1 {
        launch::signal_process("STOP", std::process::id());
    }
    // Both wait for it directly. In a sum, one might wait for the other, and name it if its own deadline passes first.
    let error = comm.broadcast(&mut [0_u64], 1).unwrap_err();
    assert_eq!(error.failed_rank(), Some(1), "{error}");
    let rank = comm.rank();
    let error = comm.shrink().unwrap_err();
    let Error::Missing { other: 1, is_stopped: true, .. } = error else { panic!("{error}") };
    assert!(
        error.to_string().contains(&format!("(process {}) is alive but stopped", processes[1])),
        "{error}"
    );
    println!("names rank 1");
    if rank == 0 {
        // The other rank has written its error by then.
        std::thread::sleep(3 * SHORT);
        launch::signal_process("KILL", processes[1] as u32);
    }
    Ok(())
}

fn stopped() {
    expect_lines(&start(3, "stopped", &[]), "names rank 1", 2);
}

fn refused() {
    let builder = Unisono::builder().on_failure(OnFailure::EndJob);
    let ended = builder.on_threads(2, |comm| comm.shrink().unwrap_err()).unwrap();
    for error in ended {
        assert!(
            matches!(error, Error::Unsupported(_)) && error.to_string().contains("ReturnError"),
            "{error}"
        );
    }
}

fn too_few() {
    let ended = unisono::threads(3, |mut comm| -> Result<()> {
        comm.set_minimum_ranks(2);
        if comm.rank() == 1 {
            return Ok(());
        }
        failure(&mut comm);
        let mut comm = comm.shrink()?;
        if comm.rank() == 1 {
            return Ok(());
        }
        // The minimum is inherited.
        failure(&mut comm);
        let error = comm.shrink().unwrap_err();
        assert!(error.to_string().contains("1 ranks are left, fewer than the minimum, 2"), "{error}");
        Ok(())
    });
    all_succeed(ended);
}

#[cfg(feature = "mpi")]
fn over_mpi() {
    let mut command = launch::mpirun(2, &launch::this_program());
    suite::play(&mut command, "shrink", "over MPI").env("UNISONO_WARNINGS", "off");
    let expected = "this world cannot shrink: MPI connects its ranks, and does not survive a lost one: start them without MPI";
    expect_lines(&launch::run(command, DEADLINE), expected, 2);
}
