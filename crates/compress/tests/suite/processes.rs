//! Ranks that are processes, connected by TCP as on separate machines.

use std::process::ExitCode;
use std::time::Duration;

use unisono::Communicator;
use unisono_compress::{Compressor, Levels};
use unisono_testing::launch;
use unisono_testing::suite::{self, Test};
use unisono_testing::tests;

const DEADLINE: Duration = Duration::from_secs(240);
const RANKS: usize = 8;

pub(crate) fn tests() -> Vec<Test> {
    tests![eight_leaders_agree]
}

pub(crate) fn play(_: &str) -> ExitCode {
    let mut comm = unisono::init().unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(3)
    });
    assert_eq!((comm.ranks(), comm.topology().nodes(), comm.transport()), (RANKS, RANKS, "tcp"));
    compressed(&mut comm);
    println!("rank {} has finished", comm.rank());
    ExitCode::SUCCESS
}

fn eight_leaders_agree() {
    let mut command = launch::processes(RANKS, &launch::this_program());
    suite::play(&mut command, "processes", "compressed");
    command.envs([
        ("UNISONO_WARNINGS", "off"),
        ("UNISONO_NETWORK", "tcp"),
        ("UNISONO_NODES", "1,1,1,1,1,1,1,1"),
    ]);
    let ended = launch::run(&mut command, DEADLINE);
    assert!(ended.status.success(), "{ended}");
    for rank in 0..RANKS {
        assert!(ended.stdout.contains(&format!("rank {rank} has finished\n")), "{ended}");
    }
}

/// From eight leaders on, this many elements are merged by recursive doubling. With half of the elements, all are sent.
fn compressed(comm: &mut Communicator) {
    let levels = Levels::of(comm).unwrap();
    let count = 1000;
    for format in ["topk:0.12", "topk:0.5", "threshold:500", "int8:stochastic", "int4:stochastic"] {
        let compressor = Compressor::new(&levels, format.parse().unwrap(), &[&[count]]);
        for step in 0..3 {
            let mut values: Vec<f32> =
                (0..count).map(|at| ((at * 37 + comm.rank() * 101 + step) % 509) as f32 + 1.0).collect();
            compressor.all_reduce(comm, &mut values).unwrap();
            assert!(values.iter().any(|&value| value > 0.0), "{format}: something arrived");
            let mut of_first = values.clone();
            comm.broadcast(&mut of_first, 0).unwrap();
            let same = values.iter().zip(&of_first).all(|(own, first)| own.to_bits() == first.to_bits());
            assert!(same, "{format}: results are identical on all ranks");
        }
    }
}
