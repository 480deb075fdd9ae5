//! Batches made on other machines: a [`Server`] that makes them, and [`load`], which connects to the servers of a [`Source::Service`].
//!
//! A batch is a function of the data set, its options, the seed, the epoch and the indices of its samples, so a [`Server`] needs no state. A client
//! requests the samples of a batch from the least loaded server, and retries on another one if that fails. Order and bits are those of a run that
//! makes its batches itself, and every sample occurs once per epoch, even if servers fail.
//!
//! The methods are gRPC. A connection begins with a handshake in which both sides prove that they have the same [`Token`]. Traffic is not encrypted.

#![forbid(unsafe_code)]

use unisono_data::{DataError, Dataset, Options, Source};

mod answers;
mod call;
mod client;
mod handshake;
mod membership;
mod message;
mod methods;
mod pool;
mod server;
#[cfg(test)]
mod tests;

pub use handshake::Token;
pub use methods::Counts;
pub use server::{Server, ServerSettings};

/// Reads or generates a data set as [`unisono_data::load`] does, or connects to the servers of a [`Source::Service`], which make its batches.
///
/// # Errors
/// The errors of [`unisono_data::load`]. For a [`Source::Service`], also if its servers refuse the token, serve different data sets or do not answer
/// for a minute, or if [`Options::normalize`] is set. [`DataError::Stopped`] on a request to stop the wait for servers.
pub fn load(source: &Source, options: &Options) -> Result<Dataset, DataError> {
    match source {
        Source::Service(_) if options.normalize.is_some() => Err(DataError::other(format!(
            "`{source}` normalises images itself (--normalize): start its servers with these statistics"
        ))),
        Source::Service(service) => client::connect(service, call::PATIENCE, options),
        _ => unisono_data::load(source, options),
    }
}
