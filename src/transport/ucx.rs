//! Messages over UCX between ranks that share no memory: RDMA without MPI, and any other link that UCX finds on a
//! machine.
//!
//! There are three layers. `sys` is the table of functions, which are resolved when the library is loaded. `worker` and `inbox` wrap them in
//! sound calls. `line` implements the [`Link`](super::link::Link). UCX is not linked but loaded on first use, so a program that does not use
//! it does not need it.
//!
//! A message is one or several active messages of at most [`PIECE`](super::link::PIECE) each. Its header precedes its payload in the same
//! message. UCX sends short ones at once, and long ones when the receiver has a place for them, without an intermediate copy. Short messages that
//! no rank receives are kept by UCX at their receiver, without a limit.
//!
//! Programs that can reach the ports of UCX can disturb a world, as with MPI: UCX does not authenticate.

mod connect;
mod inbox;
mod library;
mod line;
mod sys;
#[cfg(test)]
mod tests;
mod worker;

pub(super) use connect::link;
pub use library::version;
