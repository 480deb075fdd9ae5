//! An array that is either available or in a call.

use std::time::{Duration, Instant};

use super::Way;
use unisono::{Communicator, Element, Error, ReduceOp, Registered, Request};
use unisono_compress::Compressor;

/// The times of a bucket in flight.
#[derive(Debug, Clone, Copy)]
pub struct Flight {
    /// The bucket; `None` for other arrays.
    pub(super) bucket: Option<usize>,
    pub(super) began: Instant,
    pub(super) ended: Instant,
    /// The time that the compute thread waited for it.
    pub(super) exposed: Duration,
}

/// An array that is either available or in a call. If a call in the background fails, the array is lost.
#[derive(Debug)]
pub struct CommBuffer<T: Element> {
    bucket: Option<usize>,
    label: String,
    /// Whether its collectives run in the background.
    is_beside: bool,
    here: Option<Registered<T>>,
    request: Option<Request<Registered<T>>>,
    /// The times of the last flight, until they are read.
    flight: Option<Flight>,
}

impl CommBuffer<f32> {
    pub(super) fn launch_compressed(
        &mut self,
        comm: &mut Communicator,
        compressor: &Compressor,
    ) -> Result<(), Error> {
        if self.is_beside {
            self.lend(|values| compressor.all_reduce_async(comm, values))
        } else {
            self.run(|values| compressor.all_reduce(comm, values))
        }
    }
}

impl<T: Element> CommBuffer<T> {
    /// Allocates an array for a bucket, or for other values.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(
        comm: &Communicator,
        bucket: Option<usize>,
        count: usize,
        is_beside: bool,
    ) -> Result<Self, Error> {
        let label = bucket.map_or("sums".to_owned(), |bucket| format!("bucket {bucket}"));
        let here = Some(comm.alloc(count)?);
        Ok(Self { bucket, label, is_beside, here, request: None, flight: None })
    }

    pub(super) fn count(&self) -> usize {
        self.here.as_ref().map_or(0, |values| values.len())
    }

    /// Returns the values.
    ///
    /// # Panics
    /// If the array is in a call, or lost: [`CommBuffer::complete`].
    pub fn values(&self) -> &[T] {
        self.here.as_ref().expect("the array is available")
    }

    /// As [`CommBuffer::values`].
    pub fn values_mut(&mut self) -> &mut [T] {
        self.here.as_mut().expect("the array is available")
    }

    /// Starts a collective, which adds if it reduces.
    pub(super) fn launch(
        &mut self,
        comm: &mut Communicator,
        (operation, algorithm): Way,
    ) -> Result<(), Error> {
        let op = operation.reduces().then_some(ReduceOp::Sum);
        let mut call = comm.call().label(&self.label);
        if let Some(algorithm) = algorithm {
            call = call.algorithm(algorithm);
        }
        if self.is_beside {
            self.lend(|values| call.call_async(operation, op, values))
        } else {
            self.run(|values| call.run(operation, op, values).map(drop))
        }
    }

    /// Starts a call in the background, which has the array until [`CommBuffer::complete`].
    ///
    /// # Errors
    /// The error of `start`. If the array is already in a call, or lost.
    pub fn lend(
        &mut self,
        start: impl FnOnce(Registered<T>) -> Result<Request<Registered<T>>, Error>,
    ) -> Result<(), Error> {
        let values = self.here.take().ok_or_else(lost)?;
        self.request = Some(start(values)?);
        Ok(())
    }

    /// Makes a call on this thread.
    fn run(&mut self, call: impl FnOnce(&mut [T]) -> Result<(), Error>) -> Result<(), Error> {
        let began = Instant::now();
        call(self.values_mut())?;
        let ended = Instant::now();
        self.flight = Some(Flight { bucket: self.bucket, began, ended, exposed: ended - began });
        Ok(())
    }

    /// Waits until the array is available. Returns the times of its last call, once.
    ///
    /// # Errors
    /// The error of the call. If the array is lost.
    pub fn complete(&mut self) -> Result<Option<Flight>, Error> {
        if let Some(request) = self.request.take() {
            let waits_since = Instant::now();
            request.wait_until_done();
            let (bucket, exposed) = (self.bucket, waits_since.elapsed());
            self.flight = request.flight().map(|(began, ended)| Flight { bucket, began, ended, exposed });
            self.here = Some(request.wait()?);
        }
        self.here.as_ref().ok_or_else(lost)?;
        Ok(self.flight.take())
    }
}

fn lost() -> Error {
    Error::Launch("an earlier call with this array has failed".to_owned())
}
