//! It comes back: runs that are killed, told to stop, or out of room, and what starts them again.
//!
//! `UNISONO_TEST_KILLS=40 cargo test --release --test restart -- killed` kills that often instead of five times.
//! This program also launches itself: with arguments of ours it is a rank that notes which samples it sees.

use std::env;
use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

mod disk;
mod elastic;
mod killed;
mod samples;
mod stopped;
mod supervised;
mod watch;

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().collect();
    if let [_, role, directory] = arguments.iter().map(String::as_str).collect::<Vec<_>>()[..]
        && role == samples::ROLE
    {
        return samples::on_rank(Path::new(directory));
    }
    let room = disk::unavailable();
    let without_room = match &room {
        None => "restart::a full disk ends all ranks and spares older checkpoints".to_owned(),
        Some(why) => format!("restart::a full disk (left out: {why})"),
    };
    let trials = vec![
        trial("restart::killed at random moments, the result is that of the undisturbed run", killed::often),
        trial("restart::killed with compressed gradients, the same", killed::compressed),
        trial("restart::killed while the next forward pass goes on, the same", killed::across),
        trial("restart::killed with a parameter server, the same", killed::with_a_server),
        trial("restart::workers that are killed join again", elastic::joins),
        trial("restart::workers that are killed are not waited for", elastic::goes_on_without),
        trial("restart::a parameter server that is killed ends the run", elastic::not_without_a_server),
        trial("restart::every sample is seen once an epoch on 4, 2 and 3 ranks", samples::seen_once),
        trial(
            "restart::a signal to supervise saves on all ranks, and the rest gives the same",
            stopped::by_supervise,
        ),
        trial("restart::a signal to one rank stops all of them", stopped::by_one_rank),
        trial("restart::the Slurm script puts the job back into the queue", stopped::under_slurm),
        trial("restart::supervise gives up, or does not begin", supervised::gives_up),
        trial("restart::supervise counts from the last new checkpoint", supervised::counts_anew),
        trial("restart::nothing outlives a supervised run", supervised::leaves_nothing_behind),
        trial("restart::supervise kills what does not stop", supervised::kills_what_does_not_stop),
        trial(&without_room, disk::full).with_ignored_flag(room.is_some()),
    ];
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || -> Result<(), Failed> {
        test();
        Ok(())
    })
}

/// The command under test.
const UNISONO: &str = env!("CARGO_BIN_EXE_unisono");
