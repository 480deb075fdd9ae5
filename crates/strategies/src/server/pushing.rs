//! Overlapped transfers of a worker: gradients are sent to the servers during the backward pass, and parameters arrive during the forward pass.

use std::time::{Duration, Instant};

use unisono::{Communicator, Element, Rank, Registered, Request};

use super::layout::Layout;
use super::message::{Kind, Link, Message};
use unisono_train::internals::{HalfBytes, Ledger, Place, WithoutGradient, end_pass};
use unisono_train::{Fill, Gradients, LossSums, Parameter, Pass, Replica, ReplicaError, TrainError};

/// The transfers of a worker's buckets.
#[derive(Debug)]
pub(super) struct Pushing {
    /// The links, by server. The first one leads to the coordinator.
    links: Vec<Link>,
    layout: Layout,
    ledger: Ledger,
    buckets: Vec<Bucket>,
    /// The format to which gradients are rounded, if any.
    half: Option<HalfBytes>,
    task: Option<Message>,
    without: WithoutGradient,
    /// The parameters without a gradient that are still to be reported, one with each share.
    unreported: Vec<usize>,
    /// Whether the loss of the share is finite. Otherwise its gradients are not pushed.
    is_finite: bool,
    failure: Option<TrainError>,
    /// The time spent waiting for servers since it was last reset.
    pub(super) waited: Duration,
}

#[derive(Debug)]
struct Bucket {
    values: Array<f32>,
    gradients: Array<f32>,
    /// The rounded gradients to send, if the format rounds.
    encoded: Option<Array<u8>>,
}

/// An array that is either available or in flight.
#[derive(Debug)]
enum Array<T: Element> {
    Here(Registered<T>),
    Away(Request<Registered<T>>),
    /// The array is lost, because a message failed.
    Lost,
}

impl<T: Element> Array<T> {
    fn take(&mut self) -> unisono::Result<Registered<T>> {
        match std::mem::replace(self, Self::Lost) {
            Self::Here(array) => Ok(array),
            Self::Away(request) => request.wait(),
            Self::Lost => {
                Err(unisono::Error::Launch("a message of this bucket has failed before".to_owned()))
            }
        }
    }

    /// Waits for the array, calls `fill`, and sends the array to rank `other` of a link.
    fn send(
        &mut self,
        comm: &mut Communicator,
        other: Rank,
        fill: impl FnOnce(&mut [T]),
    ) -> unisono::Result<()> {
        let mut array = self.take()?;
        fill(&mut array);
        *self = Self::Away(comm.send_async(array, other)?);
        Ok(())
    }

    /// Waits until the array is available.
    fn here(&mut self) -> unisono::Result<&mut Registered<T>> {
        *self = Self::Here(self.take()?);
        let Self::Here(array) = self else { unreachable!("it is here") };
        Ok(array)
    }
}

impl Pushing {
    pub(super) fn new(
        parameters: &[Parameter],
        links: Vec<Link>,
        layout: Layout,
    ) -> Result<Self, TrainError> {
        let ledger = layout.ledger(parameters);
        let half = HalfBytes::of(&layout.settings);
        let bucket = |(bucket, &count): (usize, &usize)| {
            let comm = &links[layout.owners[bucket]].comm;
            let bytes = half.as_ref().map(|_| comm.alloc(HalfBytes::size_bytes(count)));
            Ok(Bucket {
                values: Array::Here(comm.alloc(count)?),
                gradients: Array::Here(comm.alloc(count)?),
                encoded: bytes.transpose()?.map(Array::Here),
            })
        };
        let buckets = ledger.plan.counts.iter().enumerate().map(bucket).collect::<unisono::Result<_>>()?;
        Ok(Self {
            links,
            layout,
            ledger,
            buckets,
            half,
            task: None,
            without: WithoutGradient::default(),
            unreported: Vec::new(),
            is_finite: true,
            failure: None,
            waited: Duration::ZERO,
        })
    }

    /// Sends a message to the coordinator.
    pub(super) fn send(&mut self, message: Message) -> Result<(), TrainError> {
        self.links[0].send(message).map_err(lost(0))
    }

    /// Requests the next task from the coordinator, and waits for it. The request shows the other servers that this worker is alive, because it sends
    /// them nothing else during an evaluation or a pause.
    pub(super) fn ask(&mut self, asks_to_stop: bool) -> Result<Message, TrainError> {
        self.send_all(Message { asks_to_stop: asks_to_stop.into(), ..Message::new(Kind::Ask) })?;
        self.links[0].receive().map_err(lost(0))
    }

    /// Requests all parameters. They arrive in the order of the forward pass, during the pass.
    pub(super) fn pull(&mut self) -> Result<(), TrainError> {
        for (server, link) in self.links.iter_mut().enumerate() {
            link.send(Message::new(Kind::Pull)).map_err(lost(server))?;
            let other = link.other();
            for bucket in self.layout.of(server).rev() {
                let values = &mut self.buckets[bucket].values;
                let request = link.comm.receive_async(values.take().map_err(lost(server))?, other);
                *values = Array::Away(request.map_err(lost(server))?);
            }
        }
        Ok(())
    }

    /// Copies the values of a parameter, once they have arrived.
    fn copy_values(&mut self, index: usize, target: &mut [f32]) -> Result<(), TrainError> {
        let Some(Place { bucket, range }) = self.ledger.plan.place(index).cloned() else { return Ok(()) };
        let began = Instant::now();
        let values = self.buckets[bucket].values.here().map_err(lost(self.layout.owners[bucket]))?;
        self.waited += began.elapsed();
        target.copy_from_slice(&values[range]);
        Ok(())
    }

    pub(super) fn set_values<R: Replica>(&mut self, replica: &mut R) -> Result<(), TrainError> {
        for index in 0..replica.parameters().len() {
            let mut copied = Ok(());
            replica.with_values(index, &mut |values| copied = self.copy_values(index, values))?;
            copied?;
        }
        Ok(())
    }

    pub(super) fn begin(&mut self, task: &Message, pass: Pass) {
        if pass.number == 0 {
            self.task = Some(*task);
            self.is_finite = true;
        }
        self.ledger.begin(pass);
    }

    /// Ends a pass. A missing gradient counts as zero. After the last pass of a share, all buckets have been sent.
    pub(super) fn end(&mut self, has_samples: bool) -> Result<(), TrainError> {
        let without = end_pass(self, |pushing| &pushing.ledger);
        if has_samples {
            self.without.add(without);
        }
        self.failure()
    }

    /// Returns the error that interrupted the communication of the pass, if there was one.
    pub(super) fn failure(&mut self) -> Result<(), TrainError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Waits until all servers have acknowledged the gradients. Returns the report of the share: its loss sums, any parameter that is not finite or
    /// has no gradient, and whether a server was asked to stop.
    pub(super) fn acknowledged(&mut self) -> Result<Message, TrainError> {
        let (began, tally) = (Instant::now(), self.ledger.own.tally);
        self.unreported.extend(self.without.end_step());
        let without = self.unreported.pop().map_or(0, |index| index as u64 + 1);
        let mut report = Message { tally, without, ..Message::new(Kind::Trained) };
        if self.is_finite {
            for (number, bucket) in self.buckets.iter_mut().enumerate() {
                let arrived = match &mut bucket.encoded {
                    Some(encoded) => encoded.here().map(drop),
                    None => bucket.gradients.here().map(drop),
                };
                arrived.map_err(lost(self.layout.owners[number]))?;
            }
            for (server, link) in self.links.iter_mut().enumerate() {
                let Message { spoiled, largest, asks_to_stop, .. } = link.receive().map_err(lost(server))?;
                report.asks_to_stop |= asks_to_stop;
                if spoiled > 0 {
                    report = Message { spoiled, largest, server: server as u64, ..report };
                }
            }
        }
        self.waited += began.elapsed();
        Ok(report)
    }

    /// Sends a message to all servers.
    pub(super) fn send_all(&mut self, message: Message) -> Result<(), TrainError> {
        let mut links = self.links.iter_mut().enumerate();
        links.try_for_each(|(server, link)| link.send(message).map_err(lost(server)))
    }

    fn attempt(&mut self, act: impl FnOnce(&mut Self) -> Result<(), TrainError>) {
        if self.failure.is_none() {
            self.failure = act(self).err();
        }
    }

    /// Announces the gradients of a share to all servers.
    fn announce(&mut self) -> Result<(), TrainError> {
        let task = self.task.expect("a share has begun");
        self.send_all(Message { kind: Kind::Push, tally: self.ledger.own.tally, ..task })
    }

    fn send_full(&mut self) -> Result<(), TrainError> {
        while let Some(full) = self.ledger.full() {
            if self.is_finite {
                let server = self.layout.owners[full];
                let link = &mut self.links[server];
                let (other, Bucket { gradients, encoded, .. }) = (link.other(), &mut self.buckets[full]);
                let sent = match (encoded, &self.half) {
                    (Some(encoded), Some(half)) => gradients.here().and_then(|gradients| {
                        encoded.send(&mut link.comm, other, |bytes| half.encode(gradients, bytes))
                    }),
                    _ => gradients.send(&mut link.comm, other, |_| ()),
                };
                sent.map_err(lost(server))?;
            }
            self.ledger.launched += 1;
        }
        Ok(())
    }
}

fn lost(server: usize) -> impl FnOnce(unisono::Error) -> TrainError {
    move |error| TrainError::ServerLost { server, error }
}

impl Gradients for Pushing {
    fn wait_for_param(&mut self, index: usize, values: &mut [f32]) -> Result<(), ReplicaError> {
        // Only the first pass of a share copies values, because the others use the same ones.
        if self.ledger.pass.number > 0 {
            return Ok(());
        }
        self.copy_values(index, values).map_err(|error| {
            let message = error.to_string().into();
            self.failure = Some(error);
            message
        })
    }

    fn record_loss(&mut self, tally: LossSums) {
        self.ledger.record_loss(tally);
        if self.ledger.pass.is_last() {
            // As `f32`, because sums are sent in that format elsewhere.
            self.is_finite = (self.ledger.own.tally.loss as f32).is_finite();
            if self.is_finite {
                self.attempt(Self::announce);
            }
        }
    }

    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill)) {
        let Place { bucket, range } = self.ledger.put(index);
        let fill = self.ledger.pass.fill();
        match self.buckets[bucket].gradients.here() {
            Ok(gradients) => write(&mut gradients[range], fill),
            Err(error) => {
                let server = self.layout.owners[bucket];
                self.failure.get_or_insert(TrainError::ServerLost { server, error });
            }
        }
        self.attempt(Self::send_full);
    }
}
