//! A worker: it requests tasks, pulls the parameters, and pushes gradients.

use std::time::{Duration, Instant};

use super::layout::Layout;
use super::message::{Kind, Link, Message};
use super::pushing::Pushing;
use unisono::Rank;
use unisono_data::Stop;
use unisono_train::{LossSums, Pass, RandomAccessFeed, Replica, TrainError};

/// One worker of a run.
pub(super) struct Worker<R: Replica, F> {
    pub(super) rank: Rank,
    pub(super) replica: R,
    pub(super) feed: F,
    /// The number of its own lane, and the number of lanes, which is the number of shares of a step.
    pub(super) lane: (usize, usize),
    pub(super) stop: Stop,
}

impl<R: Replica, F: RandomAccessFeed<Batch = R::Batch>> Worker<R, F> {
    /// Works until the coordinator ends the run. There are links to all servers, the coordinator first.
    ///
    /// # Errors
    /// [`TrainError`] of the data, the model, or a lost server.
    pub(super) fn run(mut self, links: Vec<Link>, layout: Layout) -> Result<(), TrainError> {
        let mut pushing = Pushing::new(self.replica.parameters(), links, layout)?;
        // The number of applied shares when all parameters were pulled, if no share has been applied since.
        let mut holds = None;
        loop {
            let asked = Instant::now();
            let asks_to_stop = u64::from(self.stop.is_asked());
            let task = pushing.request(Message { asks_to_stop, ..Message::new(Kind::Ask) })?;
            let waited = asked.elapsed();
            match task.kind {
                Kind::Wait => pushing.waited += waited,
                Kind::Train => {
                    pushing.waited += waited;
                    holds = None;
                    let report = self.train(&mut pushing, &task)?;
                    pushing.send(report)?;
                }
                Kind::Evaluate => {
                    if holds != Some(task.applied) {
                        pushing.pull()?;
                        pushing.set_values(&mut self.replica)?;
                        holds = Some(task.applied);
                    }
                    let tally = self.evaluate(&task)?;
                    pushing.send(Message { kind: Kind::Evaluated, tally, ..task })?;
                }
                Kind::Done => return pushing.send_all(Message::new(Kind::Leave)),
                kind => unreachable!("the coordinator answers with no {kind:?}"),
            }
        }
    }

    /// Evaluates a batch.
    fn evaluate(&mut self, task: &Message) -> Result<LossSums, TrainError> {
        let (rank, epoch, step) = (self.rank, task.epoch as usize, task.step as usize);
        let unread = |error| TrainError::Feed { rank, epoch, step, error };
        let (batch, mut tally) = (task.number as usize, LossSums::default());
        for batch in self.feed.evaluation(batch..batch + 1).map_err(unread)? {
            tally += self.replica.evaluate(&batch.map_err(unread)?, None)?;
        }
        Ok(tally)
    }

    /// Computes a share, and pushes its gradient.
    fn train(&mut self, pushing: &mut Pushing, task: &Message) -> Result<Message, TrainError> {
        let Self { rank, replica, feed, lane: (own, of), .. } = self;
        let began = Instant::now();
        let (epoch, step, number) = (task.epoch as usize, task.step as usize, task.number as usize);
        let passes = feed.share(epoch, step, number, *of, number == *own);
        let passes =
            passes.map_err(|error| TrainError::Feed { rank: *rank, epoch, step: step + 1, error })?;
        let input = began.elapsed();
        pushing.pull()?;
        // Only the first pass of a share waits for values. If it has no samples, no pass would copy them.
        let first_waits = replica.brings_values() && matches!(passes.first(), Some(Some(_)));
        if !first_waits {
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
