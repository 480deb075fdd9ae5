//! The whole of a program: ranks that all end when one of them fails, with an exit code that says so.

use std::fmt::Display;
use std::process::ExitCode;

use crate::communicator::Communicator;
use crate::error::Error;
use crate::system::say;
use crate::world::{Unisono, threads};

/// Runs a program whose ranks are all that it does: takes part in the world that was launched ([`Communicator::init`]), and runs
/// `main` with it.
///
/// If `main` fails, so does the rank, whatever the error is: it says which rank that was, where, and why, the other ranks are
/// told at once, wherever they are, and all processes end within ten seconds. An error that a `main` of yours returns by
/// itself ends the rank as if all were well, and the others learn of it when they wait for it.
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
/// The exit code is 0 if `main` succeeds, and 1 if it does not, or if there is no world to take part in.
pub fn run<E: Display>(main: impl FnOnce(&mut Communicator) -> Result<(), E>) -> ExitCode {
    match Communicator::init() {
        Ok(mut comm) => ExitCode::from(u8::from(!guarded(&mut comm, main))),
        Err(error) => {
            say(&format!("unisono: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Takes part in the world that was launched only to say why this rank cannot: [`crate::init`] then fails on all ranks, with an
/// [`Error::Setting`] that says whose fault it is. Without it they would wait for this one.
///
/// What each rank gets instead of a world is returned. Where all ranks refuse for the same reason, that is the reason as it is.
///
/// ```no_run
/// let arguments: Vec<_> = std::env::args().skip(1).collect();
/// if arguments.len() != 1 {
///     eprintln!("{}", unisono::refuse("expected the name of a file"));
///     std::process::exit(2);
/// }
/// ```
pub fn refuse(why: &str) -> Error {
    Unisono::builder().refuse(why).detect().expect_err("ranks of which one refuses do not agree")
}

/// Runs a program of `ranks` threads: `main` on each, with its end of a world. Otherwise as `unisono::run`: if one fails, the
/// program ends.
///
/// ```
/// use std::process::ExitCode;
///
/// let code = unisono::run_threads(2, |comm| comm.barrier());
/// assert_eq!(code, ExitCode::SUCCESS);
/// ```
///
/// # Panics
/// As [`threads`].
pub fn run_threads<E: Display>(
    ranks: usize,
    main: impl Fn(&mut Communicator) -> Result<(), E> + Sync,
) -> ExitCode {
    let succeeded = threads(ranks, |mut comm| {
        comm.end_program_on_failure();
        guarded(&mut comm, &main)
    });
    ExitCode::from(u8::from(!succeeded.into_iter().all(|succeeded| succeeded)))
}

/// Whether `main` succeeded; if not, the others know.
fn guarded<E: Display>(
    comm: &mut Communicator,
    main: impl FnOnce(&mut Communicator) -> Result<(), E>,
) -> bool {
    let result = main(comm);
    // With all causes, where an error can say them.
    result.map_err(|error| comm.fail(&format!("{error:#}"))).is_ok()
}
