//! A worker: it requests tasks, pulls the parameters, and pushes gradients.

use std::time::{Duration, Instant};

use super::Part;
use super::message::{Kind, Message};
use super::pushing::Pushing;
use unisono::trace;
use unisono_train::{LossSums, Pass, RandomAccessFeed, Replica, TrainError};

impl<R: Replica, F: RandomAccessFeed<Batch = R::Batch>> Part<R, F> {
    /// Works until the coordinator ends the run. There are links to all servers, the coordinator first. Returns whether the run has stopped on
    /// request.
    pub(super) fn work(mut self) -> Result<bool, TrainError> {
        let links = std::mem::take(&mut self.links);
        let mut pushing = Pushing::new(self.replica.parameters(), links, self.layout.clone())?;
        // The number of applied shares when all parameters were pulled, if no share has been applied since.
        let mut holds = None;
        loop {
            let asked = Instant::now();
            let task = pushing.ask(self.settings.stop.is_asked())?;
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
                Kind::Done => {
                    pushing.send_all(Message::new(Kind::Leave))?;
                    return Ok(task.asks_to_stop != 0);
                }
                kind => unreachable!("the coordinator answers with no {kind:?}"),
            }
        }
    }

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
        let (own, of) = (self.rank - self.servers.servers, self.workers());
        let Self { rank, replica, feed, .. } = self;
        let began = Instant::now();
        let (epoch, step, number) = (task.epoch as usize, task.step as usize, task.number as usize);
        let passes = feed.share(epoch, step, number, of, number == own);
        let passes =
            passes.map_err(|error| TrainError::Feed { rank: *rank, epoch, step: step + 1, error })?;
        let input = began.elapsed();
        trace::record("input", began, began + input);
        pushing.pull()?;
        // Only the first pass of a share waits for values. If it has no samples, no pass would copy them.
        let first_waits = replica.brings_values() && matches!(passes.first(), Some(Some(_)));
        if !first_waits {
            pushing.set_values(replica)?;
        }
        let of = replica.begin_step(task.number << 32, passes.len())?.max(1);
        for number in 0..of {
            pushing.begin(task, Pass { number, of, ..Pass::ONLY });
            let batch = passes.get(number).and_then(Option::as_ref);
            if let Some(batch) = batch {
                let began = Instant::now();
                let ran = replica.pass(batch, pushing);
                pushing.failure()?;
                ran?;
                if let Some(weighed) = pushing.ledger.weighed {
                    trace::record("forward", began, weighed);
                    trace::record("backward", weighed, Instant::now());
                }
            }
            pushing.end(batch.is_some())?;
        }
        let report = pushing.acknowledged()?;
        let waited = std::mem::take(&mut pushing.waited);
        let seconds = |time: Duration| time.as_secs_f64();
        Ok(Message { waited: seconds(waited), input: seconds(input), ..report })
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::thread;

    use super::super::message::{CLIENT, Link};
    use super::super::{ParameterServer, ServerSettings, Staleness};
    use super::*;
    use unisono::Unisono;
    use unisono_data::DataError;
    use unisono_train::metrics::VisitOutputs;
    use unisono_train::rate::{Rate, Schedule};
    use unisono_train::{
        Batches, BucketBytes, Feed, Gradients, OptimizerSettings, Parameter, ReplicaError, RunSettings, Sgd,
        Steps, Stop,
    };

    const SERVERS: ServerSettings =
        ServerSettings { servers: 2, staleness: Staleness::Steps(0), damps: false };

    fn settings() -> RunSettings {
        let (optimizer, rate) = (OptimizerSettings::new(Sgd::default()), Schedule::Constant);
        RunSettings::new(1, 1, optimizer, Rate::new(rate, 0.1, 0.0, 1))
    }

    /// Two numbers on which the loss does not depend.
    struct Numbers([Parameter; 2]);

    impl Numbers {
        fn new() -> Self {
            Self(["one", "other"].map(|name| Parameter::new(name, [1])))
        }
    }

    impl Replica for Numbers {
        type Batch = ();

        fn parameters(&self) -> &[Parameter] {
            &self.0
        }

        fn pass(&mut self, (): &(), gradients: &mut dyn Gradients) -> Result<(), ReplicaError> {
            gradients.record_loss(LossSums { targets: 1.0, loss: 1.0, correct: 0.0 });
            Ok(())
        }

        fn evaluate(&mut self, (): &(), _: Option<VisitOutputs<'_>>) -> Result<LossSums, ReplicaError> {
            Ok(LossSums::default())
        }

        fn with_values(&mut self, _: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError> {
            visit(&mut [0.0]);
            Ok(())
        }
    }

    /// A feed with this many steps, whose shares have one pass each.
    struct Same {
        steps: usize,
        /// The request to stop that the only evaluation batch makes. `None` for no such batch.
        stop: Option<Stop>,
    }

    impl Feed for Same {
        type Batch = ();

        fn steps(&self) -> Option<usize> {
            Some(self.steps)
        }

        fn held_out(&self) -> usize {
            usize::from(self.stop.is_some())
        }

        fn evaluation(&mut self, _: Range<usize>) -> Result<Batches<()>, DataError> {
            self.stop.iter().for_each(Stop::ask);
            Ok(Box::new(std::iter::empty()))
        }

        fn epoch(&mut self, _: usize, _: usize) -> Result<Steps<()>, DataError> {
            unreachable!("workers take single shares")
        }
    }

    impl RandomAccessFeed for Same {
        fn share(
            &mut self,
            _: usize,
            _: usize,
            _: usize,
            _: usize,
            _: bool,
        ) -> Result<Vec<Option<()>>, DataError> {
            Ok(vec![Some(())])
        }
    }

    /// Returns both sides of a link.
    fn link() -> [Link; 2] {
        let sides = Unisono::builder().unobserved().timeout(Duration::from_secs(60)).threads(2).unwrap();
        let sides: Vec<_> = sides.into_iter().map(|comm| Link { comm }).collect();
        sides.try_into().unwrap()
    }

    /// A server that receives nothing until its timeout would drop the worker.
    #[test]
    fn every_server_receives_a_message_for_each_batch_of_an_evaluation() {
        let [[mut coordinator, first], [mut server, second]] = [link(), link()];
        thread::scope(|scope| {
            let feed = Same { steps: 0, stop: None };
            let mut worker = Part::new((2, 3), Numbers::new(), feed, settings(), SERVERS);
            worker.links = vec![first, second];
            scope.spawn(move || worker.work().unwrap());
            let received = scope.spawn(move || {
                let mut kinds = Vec::new();
                while kinds.last() != Some(&Kind::Leave) {
                    kinds.push(server.receive().unwrap().kind);
                }
                kinds
            });
            for number in 0..3 {
                assert_eq!(coordinator.receive().unwrap().kind, Kind::Ask);
                coordinator.send(Message { number, ..Message::new(Kind::Evaluate) }).unwrap();
                if number == 0 {
                    assert_eq!(coordinator.receive().unwrap().kind, Kind::Pull);
                    // The bucket of the numbers, with its padding.
                    coordinator.comm.send(&[0.0_f32; 32], CLIENT).unwrap();
                }
                assert_eq!(coordinator.receive().unwrap().kind, Kind::Evaluated);
            }
            assert_eq!(coordinator.receive().unwrap().kind, Kind::Ask);
            coordinator.send(Message::new(Kind::Done)).unwrap();
            assert_eq!(coordinator.receive().unwrap().kind, Kind::Leave);
            let expected = [Kind::Ask, Kind::Pull, Kind::Ask, Kind::Ask, Kind::Ask, Kind::Leave];
            assert_eq!(received.join().unwrap(), expected);
        });
    }

    /// Runs two servers and a worker with this many steps. If `stops`, the second server is asked to stop at the beginning. If `in_evaluation`, the
    /// worker is asked during the evaluation after the last step, which is too late. Asserts that all ranks agree whether the run stops.
    fn assert_stops(steps: usize, stops: bool, in_evaluation: bool) {
        let ended = unisono::threads(3, |mut comm| -> Result<_, TrainError> {
            let mut settings = settings();
            settings.buckets.bucket_bytes = BucketBytes::Fixed(1);
            if comm.rank() == 1 && stops {
                settings.stop.ask();
            }
            let feed = Same { steps, stop: in_evaluation.then(|| settings.stop.clone()) };
            ParameterServer::new(&mut comm, Numbers::new(), feed, settings, SERVERS, None)?.run(|_| ())
        });
        let ended: Vec<_> = ended.into_iter().map(Result::unwrap).collect();
        let summaries: Vec<_> = ended.iter().filter_map(|ended| ended.summary.as_ref()).collect();
        assert!(summaries.len() == 1 && summaries[0].stopped.is_some() == stops, "{ended:?}");
        assert!(ended.iter().all(|ended| ended.has_stopped == stops), "{ended:?}");
    }

    #[test]
    fn all_ranks_learn_whether_the_run_stops_if_a_server_other_than_the_coordinator_is_asked() {
        assert_stops(100, true, false);
        assert_stops(2, false, false);
    }

    /// The launcher would report a complete run as stopped.
    #[test]
    fn request_after_the_last_step_stops_the_run_on_no_rank() {
        assert_stops(2, false, true);
    }
}
