//! Outcomes of failed calls.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use tempfile::TempDir;
use unisono_collectives::Topology;

use super::super::{Limits, Options};
use super::*;
use crate::call::Call;
use crate::error::Place;
use crate::select::Choice;
use crate::transport::{Deadlines, Fabric};

/// An engine, and its folder for flight recorder files.
pub(in super::super) fn engine() -> (Engine, TempDir) {
    let deadlines = Deadlines { timeout: Duration::from_secs(1), quiet: Duration::from_secs(1) };
    let limits = Limits { usual: deadlines, first: deadlines };
    let (transport, folder) = (Fabric::threads(1).unwrap().remove(0), tempfile::tempdir().unwrap());
    transport.status().set_flight_dir(folder.path().to_owned());
    (Engine::new(transport, Topology::single_node(1), limits), folder)
}

fn call(engine: &mut Engine) -> Result<()> {
    engine.run(&Choice::Auto, &Options::default(), &Call::barrier(), &mut []).map(drop)
}

#[test]
fn errors_of_libraries_are_fatal_to_the_communicator() {
    let originals: [fn() -> Error; 4] = [
        || Error::Memory { size_bytes: 8, cause: io::ErrorKind::OutOfMemory.into() },
        || Error::Mpi { call: "MPI_Isend", code: 17, text: "on purpose".to_owned() },
        || Error::Library("no such function".to_owned()),
        || Error::Setting("on a group".to_owned()),
    ];
    for original in originals {
        let (mut engine, _folder) = engine();
        let failed = engine.settle(Err::<(), _>(original())).unwrap_err();
        assert!(!original().is_fatal() && failed.is_fatal());
        assert_eq!(
            (failed.failed_rank(), failed.source().unwrap().to_string()),
            (Some(0), original().to_string())
        );
        assert!(
            matches!(call(&mut engine), Err(Error::Aborted { by: 0, cause, .. }) if cause == original().to_string())
        );
    }
    let memory = Error::Memory { size_bytes: 8, cause: io::ErrorKind::OutOfMemory.into() };
    assert!(memory.source().unwrap().is::<io::Error>());
}

#[test]
fn later_calls_and_other_ranks_name_the_rank_that_failed_first() {
    let (mut engine, _folder) = engine();
    let at =
        Place { rank: 0, operation: "all-reduce", sequence: 3, algorithm: "ring", phase: "ring", step: 0 };
    let failed = engine.settle(Err::<(), _>(Error::Left { at: Box::new(at), other: 2 })).unwrap_err();
    let later = call(&mut engine).unwrap_err();
    assert_eq!((failed.failed_rank(), later.failed_rank()), (Some(2), Some(2)), "{later}");
    let reported = engine.status.failure().unwrap();
    assert_eq!((reported.by, reported.first, reported.cause), (0, 2, failed.to_string()));
}

#[test]
fn refused_call_leaves_the_communicator_usable() {
    let (mut engine, _folder) = engine();
    let refused = engine.settle(Err::<(), _>(Error::Unsupported("by this MPI".to_owned()))).unwrap_err();
    assert!(!refused.is_fatal());
    call(&mut engine).unwrap();
}
