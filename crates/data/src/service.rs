//! Batches that other machines make.
//!
//! A batch is a function of the data set, its options, the seed, the epoch and the indices of its samples. So a [`Server`] needs
//! no state: a client asks for just the samples of a batch, of whichever server has the least to do, and asks another one if that
//! fails. Order and bits are those of a run that makes its batches itself, and every sample is seen once per epoch, whatever happens to
//! servers.
//!
//! The methods are gRPC. A connection begins with a handshake in which both sides prove that they know a [`Token`]. Nothing is encrypted.

mod answers;
mod call;
mod client;
mod handshake;
mod listen;
mod members;
mod membership;
mod message;
mod methods;
mod pool;
mod server;
#[cfg(test)]
mod tests;
mod token;
mod waiting;

pub(crate) use client::read;
pub use server::{Counts, Server, ServerSettings};
pub use token::Token;
