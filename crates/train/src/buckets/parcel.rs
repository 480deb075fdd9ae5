//! An array that is either available or in a collective.

use std::time::{Duration, Instant};

use super::CollectiveSpec;
use unisono::{Communicator, Element, Error, Operation, ReduceOp, Registered, Request};
use unisono_compress::Compressor;

/// The times of a bucket in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flight {
    /// The bucket; `None` for the sums other than gradients.
    pub(super) bucket: Option<usize>,
    pub(super) began: Instant,
    pub(super) ended: Instant,
    /// The time that the compute thread waited for it.
    pub(super) exposed: Duration,
}

#[derive(Debug)]
pub(super) struct CommBuffer<T: Element> {
    bucket: Option<usize>,
    label: String,
    here: Option<Registered<T>>,
    request: Option<Request<Registered<T>>>,
    /// The times of the last flight, until they are read.
    flight: Option<Flight>,
}

impl CommBuffer<f32> {
    pub(super) fn launch_compressed(
        &mut self,
        comm: &mut Communicator,
        is_beside: bool,
        compressor: &Compressor,
    ) -> Result<(), Error> {
        let mut values = self.here.take().expect("the parcel is back");
        if is_beside {
            self.request = Some(compressor.all_reduce_async(comm, values)?);
        } else {
            self.flight = Some(timed(self.bucket, || compressor.all_reduce(comm, &mut values))?);
            self.here = Some(values);
        }
        Ok(())
    }
}

impl<T: Element> CommBuffer<T> {
    pub(super) fn new(comm: &Communicator, bucket: Option<usize>, count: usize) -> Result<Self, Error> {
        let label = bucket.map_or("sums".to_owned(), |bucket| format!("bucket {bucket}"));
        Ok(Self { bucket, label, here: Some(comm.alloc(count)?), request: None, flight: None })
    }

    pub(super) fn count(&self) -> usize {
        self.here.as_ref().map_or(0, |values| values.len())
    }

    pub(super) fn values(&self) -> &[T] {
        self.here.as_ref().expect("the parcel is back")
    }

    pub(super) fn values_mut(&mut self) -> &mut [T] {
        self.here.as_mut().expect("the parcel is back")
    }

    pub(super) fn launch(&mut self, comm: &mut Communicator, way: CollectiveSpec) -> Result<(), Error> {
        let mut call = comm.call().label(&self.label);
        if let Some(algorithm) = way.algorithm {
            call = call.algorithm(algorithm);
        }
        let mut values = self.here.take().expect("the parcel is back");
        if way.is_beside {
            self.request = Some(match way.operation {
                Operation::ReduceScatter => call.reduce_scatter_async(values, ReduceOp::Sum)?,
                Operation::AllGather => call.all_gather_async(values)?,
                _ => call.all_reduce_async(values, ReduceOp::Sum)?,
            });
        } else {
            let send = || match way.operation {
                Operation::ReduceScatter => call.reduce_scatter(&mut values, ReduceOp::Sum).map(drop),
                Operation::AllGather => call.all_gather(&mut values).map(drop),
                _ => call.all_reduce(&mut values, ReduceOp::Sum).map(drop),
            };
            self.flight = Some(timed(self.bucket, send)?);
            self.here = Some(values);
        }
        Ok(())
    }

    pub(super) fn complete(&mut self) -> Result<Option<Flight>, Error> {
        if let Some(request) = self.request.take() {
            let waits_since = Instant::now();
            request.wait_until_done();
            let (bucket, exposed) = (self.bucket, waits_since.elapsed());
            self.flight = request.flight().map(|(began, ended)| Flight { bucket, began, ended, exposed });
            self.here = Some(request.wait()?);
        }
        Ok(self.flight.take())
    }
}

/// Runs a collective on this thread, and returns its times.
fn timed(bucket: Option<usize>, send: impl FnOnce() -> Result<(), Error>) -> Result<Flight, Error> {
    let began = Instant::now();
    send()?;
    let ended = Instant::now();
    Ok(Flight { bucket, began, ended, exposed: ended - began })
}
