//! The command `unisono`.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "all that is said goes through cli/output.rs")]

mod cli;

/// The system's allocator gives large blocks back to the system at once, and candle would spend a third of
/// a step in page faults.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
