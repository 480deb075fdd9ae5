//! Shares of parameter servers whose first passes have no samples, learning rates that callbacks have scaled, a callback that panics, unreadable
//! data, a lost worker, parameters without a gradient, a restarted server, and settings that are refused.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use unisono::Algorithm;
use unisono_candle::Config;
use unisono_candle::model::ModelKind;
use unisono_data::{DataError, Source};
use unisono_strategies::{ParameterServer, ServerSettings};
use unisono_testing::suite::Test;
use unisono_testing::tests;
use unisono_train::rate::{Rate, Schedule};
use unisono_train::{
    Batches, BucketSettings, Callback, EpochReport, Event, Feed, Flow, Gradients, LossSums,
    OptimizerSettings, Overlap, Parameter, RandomAccessFeed, Replica, ReplicaError, RunSettings, Sgd, Steps,
    Stop, TrainError, metrics::VisitOutputs,
};

use super::{SYNCHRONOUS, mirror, on_rank_0, saving, serve, settings};

/// A model of one number that approaches 1, and whose passes wait for the number.
struct Waiting {
    parameters: Vec<Parameter>,
    number: f32,
    /// Whether it claims that ranks share the number.
    is_shared: bool,
}

impl Waiting {
    fn new(is_shared: bool) -> Self {
        Self { parameters: vec![Parameter::new("number", [1])], number: 0.0, is_shared }
    }
}

impl Replica for Waiting {
    type Batch = ();

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn pass(&mut self, (): &(), gradients: &mut dyn Gradients) -> Result<(), ReplicaError> {
        gradients.wait_for_param(0, std::slice::from_mut(&mut self.number))?;
        gradients.record_loss(LossSums { targets: 1.0, loss: 1.0, correct: 0.0 });
        let slope = self.number - 1.0;
        gradients.put(0, &mut |gradient, fill| fill.write(gradient, &[slope]));
        Ok(())
    }

    fn evaluate(&mut self, (): &(), _: Option<VisitOutputs<'_>>) -> Result<LossSums, ReplicaError> {
        Ok(LossSums::default())
    }

    fn with_values(&mut self, _: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError> {
        visit(std::slice::from_mut(&mut self.number));
        Ok(())
    }

    fn brings_values(&self) -> bool {
        true
    }

    fn shares_values(&self) -> bool {
        self.is_shared
    }
}

type Passes<B> = Result<Vec<Option<B>>, DataError>;

/// A feed with these shares of steps, counted from 0. Its held-out batches cannot be read.
pub(crate) struct Given<F> {
    steps: usize,
    held_out: usize,
    share: F,
}

impl<F> Given<F> {
    /// Returns a feed without held-out batches.
    pub(crate) fn new(steps: usize, share: F) -> Self {
        Self { steps, held_out: 0, share }
    }
}

impl<B: Send + 'static, F: FnMut(usize) -> Passes<B>> Feed for Given<F> {
    type Batch = B;

    fn steps(&self) -> Option<usize> {
        Some(self.steps)
    }

    fn epoch(&mut self, _: usize, _: usize) -> Result<Steps<B>, DataError> {
        unreachable!("workers take single shares")
    }

    fn held_out(&self) -> usize {
        self.held_out
    }

    fn evaluation(&mut self, _: Range<usize>) -> Result<Batches<B>, DataError> {
        unreadable()
    }
}

fn unreadable<T>() -> Result<T, DataError> {
    Err(DataError::other("it cannot be read"))
}

impl<B: Send + 'static, F: FnMut(usize) -> Passes<B>> RandomAccessFeed for Given<F> {
    fn share(&mut self, _: usize, step: usize, _: usize, _: usize, _: bool) -> Passes<B> {
        (self.share)(step)
    }
}

/// Fails if a share is computed with the values of an earlier one.
fn share_whose_first_pass_has_no_samples_uses_the_pulled_values() {
    let hash = |empty: usize| {
        let rate = Rate::new(Schedule::Constant, 0.1, 0.0, 1);
        let optimizer = OptimizerSettings::new(Sgd { momentum: 0.0, nesterov: false });
        let run = RunSettings::new(1, 2, optimizer, rate);
        let summary = on_rank_0(3, |comm| {
            let feed = Given::new(20, |_| Ok([vec![None; empty], vec![Some(())]].concat()));
            let run = ParameterServer::new(comm, Waiting::new(false), feed, run.clone(), SYNCHRONOUS, None)?;
            Ok(run.run(|_| ())?.summary)
        });
        summary.unwrap().parameters_hash
    };
    let expected = hash(0);
    assert_eq!([hash(1), hash(2)], [expected.clone(), expected]);
}

/// Halves the learning rate after the first epoch, and requests a stop in the second.
struct Halving(Stop);

impl Callback for Halving {
    fn on_event(&mut self, event: Event) {
        if let Event::Step(made) = event
            && made.epoch == 2
            && made.step == 10
        {
            self.0.ask();
        }
    }

    fn on_epoch_end(&mut self, report: &EpochReport) -> Result<Flow, TrainError> {
        Ok(if report.epoch == 1 { Flow::ScaleRate(0.5) } else { Flow::Continue })
    }
}

fn resumed_run_keeps_the_rate_that_a_callback_has_scaled() {
    let directory = tempfile::tempdir().unwrap();
    let stop = Stop::default();
    let run = saving(directory.path(), stop.clone());
    let mirrored = |settings: &Config, stop: &Stop| {
        on_rank_0(2, |comm| {
            comm.set_choice(Algorithm::MasterWorker)?;
            settings.trainer(comm)?.run(Halving(stop.clone())).map(Some)
        })
        .unwrap()
    };
    // The stop of this callback is not that of the run.
    let undisturbed = mirrored(&run.without_checkpoints(), &Stop::default());
    let unscaled = mirror(2, &run.without_checkpoints());
    assert_ne!(undisturbed.parameters_hash, unscaled.parameters_hash);
    assert!(mirrored(&run, &stop).stopped.is_some(), "it was asked to stop");
    let (ended, _) = serve(3, &saving(directory.path(), Stop::default())).unwrap();
    assert_eq!(ended.parameters_hash, undisturbed.parameters_hash);
}

/// The threads that serve the workers would otherwise go on, and the panic would wait for them.
fn panic_of_a_callback_ends_the_run_on_all_ranks() {
    let ended = catch_unwind(AssertUnwindSafe(|| {
        on_rank_0(3, |comm| {
            let ended = settings().parameter_server(comm)?.run(|event| {
                assert!(!matches!(event, Event::Step(made) if made.step == 3), "the callback panics");
            });
            Ok(ended?.summary)
        })
    }));
    let panic = ended.map(drop).unwrap_err();
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    assert!(text.contains("the callback panics"), "{text}");
}

/// A supervisor restarts such a run, because the data may be readable again.
fn unreadable_data_of_a_worker_are_no_invalid_request() {
    let run = one_step();
    for in_training in [true, false] {
        let ended = unisono::threads(2, |mut comm| -> Result<(), TrainError> {
            let share = |_| if in_training { unreadable() } else { Ok(vec![Some(())]) };
            let feed = Given { held_out: 1, ..Given::new(1, share) };
            let replica = Waiting::new(false);
            let server = ParameterServer::new(&mut comm, replica, feed, run.clone(), SYNCHRONOUS, None)?;
            server.run(|_| ()).map(drop)
        });
        let error = ended[1].as_ref().unwrap_err();
        assert!(matches!(error, TrainError::Feed { rank: 1, epoch: 1, step: 1, .. }), "{error}");
        assert!(ended[0].is_err() && !error.is_bad_input());
    }
}

/// The other worker could do all shares, but might save other parameters than those of an uninterrupted run.
fn lost_worker_ends_a_run_that_is_not_elastic() {
    let is_failing = AtomicBool::new(false);
    let ended = unisono::threads(3, |mut comm| -> Result<(), TrainError> {
        let (is_lost, is_failing) = (comm.rank() == 2, &is_failing);
        let feed = Given::new(9, move |_| {
            if is_lost {
                is_failing.store(true, Ordering::Relaxed);
                return unreadable();
            }
            // Otherwise this worker could do all shares before the other one has any.
            while !is_failing.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            Ok(vec![Some(())])
        });
        let replica = Waiting::new(false);
        let server = ParameterServer::new(&mut comm, replica, feed, one_step(), SYNCHRONOUS, None)?;
        server.run(|_| ()).map(drop)
    });
    let error = ended[0].as_ref().unwrap_err();
    assert!(matches!(error, TrainError::WorkerLost { rank: 2, .. }), "{error}");
}

fn parameter_without_a_gradient_is_named_once() {
    let notices = on_rank_0(3, |comm| {
        let (mut replica, mut notices) = (Waiting::new(false), Vec::new());
        replica.parameters.push(Parameter::new("unused", [1]));
        let feed = Given::new(4, |_| Ok(vec![None, Some(())]));
        let server = ParameterServer::new(comm, replica, feed, one_step(), SYNCHRONOUS, None)?;
        let ended = server.run(|event| {
            if let Event::Notice(notice) = event {
                notices.push(notice);
            }
        })?;
        Ok(ended.summary.map(|_| notices))
    });
    let mut notices = notices.unwrap();
    notices.retain(|notice| notice.contains("has no gradient"));
    assert_eq!(notices, ["unused has no gradient, which counts as zero: the loss does not depend on it"]);
}

fn restarted_server_ends_before_it_loads_data() {
    let text = Config::new(Source::Text("missing".into()), ModelKind::Transformer);
    let settings = Config { servers: 2, ..text };
    let error = settings.join_parameter_server("missing".as_ref(), (1, 4)).unwrap_err();
    assert!(matches!(error, TrainError::ServerLost { server: 1, .. }), "{error}");
    assert!(!error.is_bad_input() && error.to_string().contains("start the run again, with --resume"));
}

fn one_step() -> RunSettings {
    let rate = Rate::new(Schedule::Constant, 0.1, 0.0, 1);
    RunSettings::new(1, 1, OptimizerSettings::new(Sgd::default()), rate)
}

/// Fails if a rank accepts the settings. Returns the error of rank 0.
fn refused(settings: &RunSettings, servers: ServerSettings, is_shared: bool) -> String {
    let errors = unisono::threads(2, |mut comm| {
        let feed = Given::new(1, |_| unreachable!("the run is refused"));
        let replica = Waiting::new(is_shared);
        let run = ParameterServer::new(&mut comm, replica, feed, settings.clone(), servers, None);
        run.map(drop).unwrap_err().to_string()
    });
    errors.into_iter().next().expect("there is a rank 0")
}

fn settings_without_effect_and_invalid_settings_are_refused_on_all_ranks() {
    let overlapping =
        |overlap| RunSettings { buckets: BucketSettings { overlap, ..Default::default() }, ..one_step() };
    let wrong = OptimizerSettings::new(Sgd { momentum: 1.5, nesterov: false });
    let why = refused(&one_step(), ServerSettings { servers: 0, ..SYNCHRONOUS }, false);
    assert!(why.contains("0 of 2 ranks serve"), "{why}");
    let why = refused(&one_step(), SYNCHRONOUS, true);
    assert!(why.contains("separate parameters on each rank"), "{why}");
    for (settings, expected) in [
        (RunSettings { verify_replicas_every: Some(9), ..one_step() }, "remove --verify-replicas-every"),
        (RunSettings { straggler_every: Some(9), ..one_step() }, "remove --straggler-every"),
        (RunSettings { clip_norm: Some(1.0), ..one_step() }, "remove --clip-norm"),
        (overlapping(Overlap::Across), "remove --overlap across"),
        (overlapping(Overlap::Beside), "remove --overlap beside"),
        (RunSettings { optimizer: wrong, ..one_step() }, "the momentum is 1.5: it must be from 0 to 1"),
        (RunSettings { evaluate_every: Some(0), ..one_step() }, "evaluate_every is `0`"),
    ] {
        let why = refused(&settings, SYNCHRONOUS, false);
        assert!(why.contains(expected), "{why}");
    }
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        share_whose_first_pass_has_no_samples_uses_the_pulled_values,
        resumed_run_keeps_the_rate_that_a_callback_has_scaled,
        panic_of_a_callback_ends_the_run_on_all_ranks,
        unreadable_data_of_a_worker_are_no_invalid_request,
        lost_worker_ends_a_run_that_is_not_elastic,
        parameter_without_a_gradient_is_named_once,
        restarted_server_ends_before_it_loads_data,
        settings_without_effect_and_invalid_settings_are_refused_on_all_ranks,
    ]
}
