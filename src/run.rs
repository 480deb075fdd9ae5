//! Runs whole programs. All ranks end when one fails, and the exit code reports it.

use std::fmt::Display;
use std::process::ExitCode;

use crate::communicator::Communicator;
use crate::config::OnFailure;
use crate::error::Error;
use crate::system::print_line;
use crate::world::{Unisono, init};

/// Runs a program: joins the launched world ([`init`](crate::init())) and calls `main` with its communicator.
///
/// If `main` returns an error, the rank fails: it reports its rank, the call and the cause to all ranks at once, and all processes
/// end within ten seconds. Without `run`, a rank that returns an error from its own `main` leaves as if it had succeeded, and
/// others detect it only when they wait for it.
///
/// ```no_run
/// use unisono::ReduceOp;
///
/// fn main() -> std::process::ExitCode {
///     unisono::run(|comm| -> Result<(), Box<dyn std::error::Error>> {
///         let text = std::fs::read_to_string(format!("part-{}.txt", comm.rank()))?;
///         let mut count = [text.len() as u64];
///         comm.all_reduce(&mut count, ReduceOp::Sum)?;
///         println!("rank {}: {} bytes on all ranks", comm.rank(), count[0]);
///         Ok(())
///     })
/// }
/// ```
///
/// The exit code is 0 if `main` succeeds, and 1 if it fails or there is no world to join.
pub fn run<E: Display>(main: impl FnOnce(&mut Communicator) -> Result<(), E>) -> ExitCode {
    match init() {
        Ok(mut comm) => ExitCode::from(u8::from(!guarded(&mut comm, main))),
        Err(error) => {
            print_line(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Joins the launched world only to report the reason why this rank cannot take part. [`crate::init`] then fails on all ranks with
/// an [`Error::Setting`] that names this rank, instead of waiting for it.
///
/// Returns this rank's error. If all ranks refuse for the same reason, it contains only that reason.
///
/// ```no_run
/// let arguments: Vec<_> = std::env::args().skip(1).collect();
/// if arguments.len() != 1 {
///     eprintln!("{}", unisono::refuse("expected the name of a file"));
///     std::process::exit(2);
/// }
/// ```
pub fn refuse(why: &str) -> Error {
    Unisono::builder().refuse(why).detect().expect_err("a refusal is an error on every rank")
}

/// Runs a program of `ranks` threads, with `main` on each. Like `unisono::run`, it ends the program if a rank fails.
///
/// ```
/// use std::process::ExitCode;
///
/// let code = unisono::run_threads(2, |comm| comm.barrier());
/// assert_eq!(code, ExitCode::SUCCESS);
/// ```
///
/// # Panics
/// As [`crate::threads()`].
pub fn run_threads<E: Display>(
    ranks: usize,
    main: impl Fn(&mut Communicator) -> Result<(), E> + Sync,
) -> ExitCode {
    let world = Unisono::builder().on_failure(OnFailure::EndJob);
    let succeeded = world.on_threads(ranks, |mut comm| guarded(&mut comm, &main));
    let succeeded = succeeded.unwrap_or_else(|error| panic!("{error}"));
    ExitCode::from(u8::from(!succeeded.into_iter().all(|succeeded| succeeded)))
}

/// Runs `main` and, if it fails, reports the failure to the other ranks. Returns whether it succeeded.
fn guarded<E: Display>(
    comm: &mut Communicator,
    main: impl FnOnce(&mut Communicator) -> Result<(), E>,
) -> bool {
    let result = main(comm);
    // `{:#}` formats the whole chain of causes, if the error supports it.
    result.map_err(|error| comm.fail(&format!("{error:#}"))).is_ok()
}
