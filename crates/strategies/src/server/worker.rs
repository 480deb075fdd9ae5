//! A worker: it asks what to compute, pulls the parameters, and pushes gradients.

use std::time::{Duration, Instant};

use super::layout::Layout;
use super::message::{Kind, Link, Message};
use super::pushing::Pushing;
use unisono_data::{DataError, Stop};
use unisono_train::{LossSums, Pass, RandomAccessFeed, Replica, Steps, TrainError};

/// One worker of a run.
pub(super) struct Worker<R: Replica, F> {
    pub(super) replica: R,
    pub(super) feed: F,
    /// The data of its own shares.
    pub(super) lane: SharePrefetcher<R::Batch>,
    pub(super) stop: Stop,
}

impl<R: Replica, F: RandomAccessFeed<Batch = R::Batch>> Worker<R, F> {
    /// Works until the coordinator says that the run is over. The links are those to all servers, the coordinator first.
    ///
    /// # Errors
    /// [`TrainError`] of the data, the model, or a server that is lost.
    pub(super) fn run(mut self, links: Vec<Link>, layout: Layout) -> Result<(), TrainError> {
        let mut pushing = Pushing::new(self.replica.parameters(), links, layout)?;
        // The shares that were applied when all parameters were pulled, if none was since.
        let mut holds = None;
        loop {
            let asked = Instant::now();
            let asks_to_stop = u64::from(self.stop.is_asked());
            let task = pushing.ask(Message { asks_to_stop, ..Message::new(Kind::Ask) })?;
            let waited = asked.elapsed();
            match task.kind {
                Kind::Wait => pushing.waited += waited,
                Kind::Train => {
                    pushing.waited += waited;
                    holds = None;
                    let report = self.train(&mut pushing, &task)?;
                    pushing.tell(report)?;
                }
                Kind::Evaluate => {
                    if holds != Some(task.applied) {
                        pushing.pull()?;
                        pushing.set_values(&mut self.replica)?;
                        holds = Some(task.applied);
                    }
                    let batch = task.number as usize;
                    let mut tally = LossSums::default();
                    for batch in self.feed.evaluation(batch..batch + 1)? {
                        tally += self.replica.evaluate(&batch?)?;
                    }
                    pushing.tell(Message { kind: Kind::Evaluated, tally, ..task })?;
                }
                Kind::Done => return pushing.tell_all(Message::new(Kind::Leave)),
                kind => unreachable!("the coordinator answers with no {kind:?}"),
            }
        }
    }

    /// Computes a share, and pushes its gradient.
    fn train(&mut self, pushing: &mut Pushing, task: &Message) -> Result<Message, TrainError> {
        let Self { replica, feed, lane, .. } = self;
        let began = Instant::now();
        let share = (task.epoch as usize, task.step as usize, task.number as usize);
        let passes = lane.share(feed, share)?;
        let input = began.elapsed();
        pushing.pull()?;
        if !replica.brings_values() {
            pushing.set_values(replica)?;
        }
        let of = replica.begin_step(task.number << 32, passes.len())?.max(1);
        for number in 0..of {
            pushing.begin(task, Pass { number, of, ..Pass::ONLY });
            if let Some(Some(batch)) = passes.get(number) {
                let ran = replica.pass(batch, pushing);
                pushing.failure()?;
                ran?;
            }
            pushing.end()?;
        }
        let report = pushing.acknowledged()?;
        let waited = std::mem::take(&mut pushing.waited);
        let seconds = |time: Duration| time.as_secs_f64();
        Ok(Message { waited: seconds(waited), input: seconds(input), ..report })
    }
}

/// The shares of one number, of which a worker usually takes one after the other.
pub(super) struct SharePrefetcher<B> {
    /// The number of its shares, and how many a step has.
    number: usize,
    of: usize,
    ahead: Option<Prefetched<B>>,
}

struct Prefetched<B> {
    epoch: usize,
    /// The step of the next share.
    step: usize,
    shares: Steps<B>,
}

impl<B: Send + 'static> SharePrefetcher<B> {
    pub(super) fn new(number: usize, of: usize) -> Self {
        Self { number, of, ahead: None }
    }

    /// Returns the batches of a share, of this lane or another.
    ///
    /// # Errors
    /// An error of the data.
    pub(super) fn share(
        &mut self,
        feed: &mut impl RandomAccessFeed<Batch = B>,
        (epoch, step, number): (usize, usize, usize),
    ) -> Result<Vec<Option<B>>, DataError> {
        let of = self.of;
        if number != self.number {
            return feed.share(epoch, step, number, of);
        }
        let follows = |ahead: &Prefetched<B>| ahead.epoch == epoch && ahead.step <= step;
        if !self.ahead.as_ref().is_some_and(follows) {
            let shares = feed.lane(epoch, step, number, of)?;
            self.ahead = shares.map(|shares| Prefetched { epoch, step, shares });
        }
        let Some(ahead) = &mut self.ahead else { return feed.share(epoch, step, number, of) };
        // Others may have taken some in between.
        let passed = step - std::mem::replace(&mut ahead.step, step + 1);
        match ahead.shares.nth(passed) {
            Some(share) => share,
            None => feed.share(epoch, step, number, of),
        }
    }
}
