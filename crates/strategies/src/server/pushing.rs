//! Overlapped transfers of a worker: gradients are sent to the servers during the backward pass, and parameters arrive during the forward pass.

use std::time::{Duration, Instant};

use super::layout::Layout;
use super::message::{Kind, Link, Message};
use unisono_train::internals::{CommBuffer, HalfBytes, Ledger, Place, WithoutGradient, end_pass};
use unisono_train::{Fill, Gradients, LossSums, Parameter, Pass, Replica, ReplicaError, TrainError};

/// The transfers of a worker's buckets.
#[derive(Debug)]
pub(super) struct Pushing {
    /// The links, by server. The first one leads to the coordinator.
    links: Vec<Link>,
    layout: Layout,
    pub(super) ledger: Ledger,
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
    values: CommBuffer<f32>,
    gradients: CommBuffer<f32>,
    /// The rounded gradients to send, if the format rounds.
    encoded: Option<CommBuffer<u8>>,
}

impl Bucket {
    /// Sends the gradients to the other rank of a link.
    fn send(&mut self, link: &mut Link, half: Option<&HalfBytes>) -> unisono::Result<()> {
        let (other, Self { gradients, encoded, .. }) = (link.other(), self);
        gradients.complete()?;
        let Some((encoded, half)) = encoded.as_mut().zip(half) else {
            return gradients.lend(|gradients| link.comm.send_async(gradients, other));
        };
        encoded.complete()?;
        half.encode(gradients.values(), encoded.values_mut());
        encoded.lend(|bytes| link.comm.send_async(bytes, other))
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
            let array = || CommBuffer::new(comm, Some(bucket), count, true);
            let bytes = || CommBuffer::new(comm, Some(bucket), HalfBytes::size_bytes(count), true);
            let encoded = half.as_ref().map(|_| bytes()).transpose()?;
            Ok(Bucket { values: array()?, gradients: array()?, encoded })
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
                values.complete().map_err(lost(server))?;
                values.lend(|values| link.comm.receive_async(values, other)).map_err(lost(server))?;
            }
        }
        Ok(())
    }

    /// Copies the values of a parameter, once they have arrived.
    fn copy_values(&mut self, index: usize, target: &mut [f32]) -> Result<(), TrainError> {
        let Some(Place { bucket, range }) = self.ledger.plan.place(index).cloned() else { return Ok(()) };
        let began = Instant::now();
        let values = &mut self.buckets[bucket].values;
        values.complete().map_err(lost(self.layout.owners[bucket]))?;
        self.waited += began.elapsed();
        target.copy_from_slice(&values.values()[range]);
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
                    Some(encoded) => encoded.complete(),
                    None => bucket.gradients.complete(),
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

    pub(super) fn send_all(&mut self, message: Message) -> Result<(), TrainError> {
        let mut links = self.links.iter_mut().enumerate();
        links.try_for_each(|(server, link)| link.send(message).map_err(lost(server)))
    }

    fn attempt(&mut self, act: impl FnOnce(&mut Self) -> Result<(), TrainError>) {
        if self.failure.is_none() {
            self.failure = act(self).err();
        }
    }

    fn announce(&mut self) -> Result<(), TrainError> {
        let task = self.task.expect("a share has begun");
        self.send_all(Message { kind: Kind::Push, tally: self.ledger.own.tally, ..task })
    }

    fn send_full(&mut self) -> Result<(), TrainError> {
        while let Some(full) = self.ledger.full() {
            if self.is_finite {
                let server = self.layout.owners[full];
                let sent = self.buckets[full].send(&mut self.links[server], self.half.as_ref());
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
        let gradients = &mut self.buckets[bucket].gradients;
        match gradients.complete() {
            Ok(_) => write(&mut gradients.values_mut()[range], fill),
            Err(error) => {
                let server = self.layout.owners[bucket];
                self.failure.get_or_insert(TrainError::ServerLost { server, error });
            }
        }
        self.attempt(Self::send_full);
    }
}
