//! Parameter servers with ranks as threads.

use std::thread;
use std::time::{Duration, Instant};

use unisono::{Algorithm, Communicator};
use unisono_candle::{Config, model::ModelKind};
use unisono_strategies::{ParameterServer, ServerSettings, Staleness, Strategy};
use unisono_testing::suite::{self, Test};
use unisono_testing::tests;
use unisono_train::checkpoint::{When, load_newest};
use unisono_train::rate::{Rate, Schedule};
use unisono_train::{
    AdamW, Checkpoints, Event, Fill, Gradients, LossSums, NamedRule, OptimizerSettings, Order, Parameter,
    Progress, RandomAccessFeed, Replica, ReplicaError, Resumed, RunSettings, Sgd, Stop, Summary, TrainError,
    Wire, Wires, WorkersReport, metrics::VisitOutputs,
};

use crate::{digits, few_digits::SAMPLES};
use shares::Given;

pub(crate) mod evaluations;
pub(crate) mod shares;

const SYNCHRONOUS: ServerSettings =
    ServerSettings { servers: 1, staleness: Staleness::Steps(0), damps: false };

fn settings() -> Config {
    Config { epochs: 1, hidden: Some(vec![32]), ..Config::new(digits(), ModelKind::Mlp) }
}

/// Returns rank 0's result of a run, and the work of the workers in each epoch.
fn on_rank_0<T: Send>(
    ranks: usize,
    on_rank: impl Fn(&mut Communicator) -> Result<Option<T>, TrainError> + Sync,
) -> Result<T, TrainError> {
    let ended: Vec<_> = unisono::threads(ranks, |mut comm| on_rank(&mut comm));
    let mut ended = ended.into_iter();
    let first = ended.next().expect("there is a rank 0")?.expect("rank 0 has a summary");
    ended.try_for_each(|other| other.map(drop))?;
    Ok(first)
}

fn serve(ranks: usize, settings: &Config) -> Result<(Summary, Vec<WorkersReport>), TrainError> {
    on_rank_0(ranks, |comm| {
        let mut workers = Vec::new();
        let ended = settings.parameter_server(comm)?.run(|event| {
            if let Event::Workers(report) = event {
                workers.push(report);
            }
        })?;
        Ok(ended.summary.map(|summary| (summary, workers)))
    })
}

/// Returns the summary of mirrored training.
fn mirror(ranks: usize, settings: &Config) -> Summary {
    on_rank_0(ranks, |comm| {
        comm.set_choice(Algorithm::MasterWorker)?;
        settings.trainer(comm)?.run(|_| ()).map(Some)
    })
    .unwrap()
}

fn zero_staleness_gives_the_bits_of_master_worker() {
    for (workers, servers) in [(1, 1), (2, 1), (3, 2)] {
        let mirrored = mirror(workers, &settings());
        let (served, _) = serve(workers + servers, &Config { servers, ..settings() }).unwrap();
        assert_eq!(served.parameters_hash, mirrored.parameters_hash, "{workers} workers");
        assert_eq!(served.last.test_loss, mirrored.last.test_loss);
        assert!((served.last.loss - mirrored.last.loss).abs() < 1e-6);
    }
}

fn stale_gradients_train_within_the_staleness_bound() {
    // Half of the usual rate, since momentum and delay together are unstable.
    let several_epochs = Config { epochs: 12, learning_rate: 0.05, ..settings() };
    let steps = SAMPLES[0].div_ceil(3 * several_epochs.batch_size) as u64;
    // Tests each staleness once, alternately damped and not, or all pairs in the deep suite.
    for (at, (staleness, most)) in
        [(Staleness::Steps(1), 3), (Staleness::Steps(8), 24), (Staleness::Unbounded, u64::MAX)]
            .into_iter()
            .enumerate()
    {
        for damps in [false, true].into_iter().filter(|damps| suite::is_deep() || *damps == (at == 1)) {
            let stale = Config { servers: 2, staleness, damp_stale: damps, ..several_epochs.clone() };
            let (summary, workers) = serve(5, &stale).unwrap();
            assert!(summary.last.test_accuracy > 0.65, "{staleness}: {}", summary.last.test_accuracy);
            for report in &workers {
                let missed = report.staleness.keys().max().unwrap();
                assert!(*missed <= most, "{staleness}: {missed}");
                assert_eq!(report.workers.iter().map(|worker| worker.shares).sum::<u64>(), 3 * steps);
                assert_eq!(report.staleness.values().sum::<u64>(), 3 * steps);
            }
        }
    }
}

fn gradients_can_be_sent_in_half_the_bytes() {
    let bits = |wire| {
        let settings = Config { wire: Wires::One(wire), ..settings() };
        let (summary, _) = serve(3, &settings).unwrap();
        (summary.parameters_hash, summary.last.test_loss)
    };
    let (whole, loss) = bits(Wire::F32);
    for wire in [Wire::Bf16, Wire::F16] {
        let (rounded, near) = bits(wire);
        assert_ne!(rounded, whole, "{wire}: nothing was rounded");
        assert!((near - loss).abs() < 0.02, "{wire}: {near}, unrounded {loss}");
        if wire == Wire::Bf16 || suite::is_deep() {
            assert_eq!(bits(wire).0, rounded, "{wire}: the bits differ from run to run");
        }
    }
}

/// Returns a run of two epochs of 100 steps that saves at every 50th step, and can be stopped.
fn saving(directory: &std::path::Path, stop: Stop) -> Config {
    Config {
        epochs: 2,
        global_batch: Some(20),
        checkpoint_dir: Some(directory.to_owned()),
        checkpoint_every: Some(50),
        resume: true,
        stop,
        optimizer: NamedRule::new(AdamW::default()),
        weight_decay: 0.0,
        learning_rate: 1e-3,
        ..settings()
    }
}

fn run_resumes_under_another_strategy_with_the_same_bits() {
    let directory = tempfile::tempdir().unwrap();
    let undisturbed = mirror(2, &saving(directory.path(), Stop::default()).without_checkpoints());
    for mirrored_first in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let stop = Stop::default();
        let first = saving(directory.path(), stop.clone());
        let stops = |event| {
            if let Event::Step(step) = event
                && step.epoch == 1
                && step.step == 70
            {
                stop.ask();
            }
        };
        let stopped = on_rank_0(if mirrored_first { 2 } else { 4 }, |comm| {
            comm.set_choice(if mirrored_first {
                Algorithm::MasterWorker.into()
            } else {
                unisono::Choice::Auto
            })?;
            match mirrored_first {
                true => first.trainer(comm)?.run(stops).map(Some),
                false => {
                    let served = Config { servers: 2, ..first.clone() };
                    Ok(served.parameter_server(comm)?.run(stops)?.summary)
                }
            }
        });
        let step = stopped.unwrap().stopped.expect("it was asked to stop").step;
        assert!((70..100).contains(&step), "it stopped after step {step}");
        let then = saving(directory.path(), Stop::default());
        let ended = match mirrored_first {
            true => serve(3, &then).unwrap().0,
            false => mirror(2, &then),
        };
        assert_eq!(ended.parameters_hash, undisturbed.parameters_hash, "mirrored first: {mirrored_first}");
        assert_eq!(ended.last.test_accuracy, undisturbed.last.test_accuracy);
    }
}

fn incompatible_options_are_refused_on_all_ranks() {
    let servers = |servers| Config { servers, ..settings() };
    let clipping = Config { clip_norm: Some(1.0), ..settings() };
    let resnet = Config { hidden: None, ..Config::new(digits(), ModelKind::ResNet) };
    let compressed = Config { wire: "int8".parse().unwrap(), ..settings() };
    let undecided = Config { wire: "auto:f32,bf16".parse().unwrap(), ..settings() };
    let invariant = Config { order: Order::Tree, ..settings() };
    let tree = Config { algorithm: Some(Algorithm::Tree.into()), ..settings() };
    let damped = Config { damp_stale: true, ..settings() };
    for (settings, expected) in [
        (servers(3), "3 of 3 ranks serve"),
        (servers(0), "--servers is 0"),
        (servers(usize::MAX), "of 3 ranks serve"),
        (clipping, "norm"),
        (resnet, "batch norm"),
        (compressed, "sends gradients as f32, bf16 or f16, and not as int8"),
        (undecided, "does not go with --wire auto"),
        (invariant, "remove --order world-invariant"),
        (tree, "does not go with --algorithm"),
        (damped, "damp"),
    ] {
        let refused = unisono::threads(3, |mut comm| settings.parameter_server(&mut comm).map(drop));
        let lowest = refused[0].as_ref().unwrap_err().to_string();
        assert!(lowest.contains(expected), "{lowest}");
        assert!(refused.iter().all(Result::is_err));
    }
    let alone = unisono::threads(1, |mut comm| {
        let strategy = Some(Strategy::Mirrored);
        Config { strategy, ..settings() }.trainer(&mut comm).map(drop)
    });
    assert!(alone[0].is_ok(), "one rank is one node");
    let two = unisono::threads(2, |mut comm| {
        let strategy = Some(Strategy::OneDevice);
        Config { strategy, ..settings() }.trainer(&mut comm).map(drop).unwrap_err().to_string()
    });
    assert!(two[0].contains("one-device is for one rank"), "{}", two[0]);
    assert_eq!(two[1], "rank 0 reports an error");
}

/// The metrics of a regression, which parameter servers do not measure, are not added.
fn regression_is_accepted_without_a_named_strategy() {
    let directory = tempfile::tempdir().unwrap();
    let table = directory.path().join("table.csv");
    let rows = (0..100).map(|row| format!("{row},{}\n", 2 * row));
    std::fs::write(&table, format!("x,y\n{}", rows.collect::<String>())).unwrap();
    let data = format!("csv:{}", table.display()).parse().unwrap();
    let regression = Config { data, target: Some("y".to_owned()), batch_size: 8, ..settings() };
    serve(2, &regression).unwrap();
}

/// A model of one number whose passes take a fixed time, and which diverges at a step.
struct Slow {
    parameters: Vec<Parameter>,
    value: f32,
    takes: Duration,
    diverges_at: Option<usize>,
    /// The step with a gradient that is not finite.
    spoils_at: Option<usize>,
}

impl Slow {
    fn new(takes: Duration) -> Self {
        let parameters = vec![Parameter::new("value", [1])];
        Self { parameters, value: 0.0, takes, diverges_at: None, spoils_at: None }
    }
}

impl Replica for Slow {
    type Batch = usize;

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn pass(&mut self, &step: &usize, gradients: &mut dyn Gradients) -> Result<(), ReplicaError> {
        thread::sleep(self.takes);
        let loss = if self.diverges_at == Some(step) { f64::NAN } else { 1.0 };
        gradients.record_loss(LossSums { targets: 1.0, loss, correct: 0.0 });
        let slope = if self.spoils_at == Some(step) { f32::INFINITY } else { 1.0 };
        gradients.put(0, &mut |gradient, _: Fill| gradient[0] = slope);
        Ok(())
    }

    fn evaluate(&mut self, _: &usize, _: Option<VisitOutputs<'_>>) -> Result<LossSums, ReplicaError> {
        Ok(LossSums::default())
    }

    fn with_values(&mut self, _: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError> {
        visit(std::slice::from_mut(&mut self.value));
        Ok(())
    }
}

/// Returns a feed in which each share is the number of its step.
fn numbered(steps: usize) -> impl RandomAccessFeed<Batch = usize> {
    Given::new(steps, |step| Ok(vec![Some(step)]))
}

fn numbers(
    steps: usize,
    staleness: Staleness,
    replica: impl Fn(usize) -> Slow + Sync,
) -> Result<WorkersReport, TrainError> {
    let rate = Rate::new(Schedule::Constant, 0.01, 0.0, 1);
    let run = RunSettings::new(1, 4, OptimizerSettings::new(Sgd::default()), rate);
    on_rank_0(5, |comm| {
        let (replica, mut report) = (replica(comm.rank()), None);
        let servers = ServerSettings { servers: 1, staleness, damps: false };
        let server = ParameterServer::new(comm, replica, numbered(steps), run.clone(), servers, None)?;
        let ended = server.run(|event| {
            if let Event::Workers(found) = event {
                report = Some(found);
            }
        })?;
        Ok(ended.summary.and(report))
    })
}

/// One of four workers takes five times as long. If none waits, all together compute 3.2 times the shares of one fast worker.
fn slow_worker_delays_no_other() {
    const STEPS: usize = 25;
    let takes = Duration::from_millis(10);
    let slow = |rank| Slow::new(takes * if rank == 4 { 5 } else { 1 });
    let timed = |staleness| {
        let began = Instant::now();
        let report = numbers(STEPS, staleness, slow).unwrap();
        (began.elapsed(), report)
    };
    let (asynchronous, report) = timed(Staleness::Steps(8));
    let together = 4.0 * STEPS as f64 / asynchronous.as_secs_f64();
    let alone = 3.2 / takes.as_secs_f64();
    println!(
        "counted: server: {:.0} % of what the workers make alone; {:?}",
        100.0 * together / alone,
        report.staleness
    );
    assert!(*report.staleness.keys().max().unwrap() <= 32, "{:?}", report.staleness);
    let shares: Vec<u64> = report.workers.iter().map(|worker| worker.shares).collect();
    assert!(shares[3] * 2 < shares[0], "{shares:?}");
    // Measured right afterwards, because a loaded machine slows down both.
    let (synchronous, _) = timed(Staleness::Steps(0));
    assert!(asynchronous * 5 < synchronous * 4, "{asynchronous:?}, and {synchronous:?} where all wait");
}

fn diverging_share_ends_the_run_and_is_named() {
    for staleness in [Staleness::Steps(0), Staleness::Unbounded] {
        let diverging = |_| Slow { diverges_at: Some(7), ..Slow::new(Duration::ZERO) };
        let error = numbers(20, staleness, diverging).unwrap_err().to_string();
        assert!(error.contains("is not finite") && error.contains("epoch 1, step 8"), "{error}");
    }
}

fn diverging_parameter_ends_the_run_and_is_named_with_its_server() {
    for staleness in [Staleness::Steps(0), Staleness::Unbounded] {
        let spoiling = |_| Slow { spoils_at: Some(7), ..Slow::new(Duration::ZERO) };
        let error = numbers(20, staleness, spoiling).unwrap_err();
        let TrainError::NotFinite { parameter, rank: 0, found, .. } = &error else { panic!("{error}") };
        assert!(parameter == "value" && !found.is_finite(), "{error}");
    }
}

/// Uses AdamW, whose steps depend on their number.
fn server_checkpoints_count_steps_and_not_shares() {
    let directory = tempfile::tempdir().unwrap();
    let when = When { every_steps: Some(10), every: None };
    let checkpoints =
        Checkpoints { directory: directory.path().to_owned(), keep: 1, overwrites: false, when };
    let rate = Rate::new(Schedule::Constant, 0.01, 0.0, 1);
    let servers = ServerSettings { servers: 1, staleness: Staleness::Unbounded, damps: false };
    for epochs in [1, 2] {
        let settings = RunSettings {
            checkpoints: Some(checkpoints.clone()),
            ..RunSettings::new(epochs, 3, OptimizerSettings::new(AdamW::default()), rate)
        };
        on_rank_0(4, |comm| {
            let resumed = Resumed::find(comm, directory.path())?;
            let replica = Slow::new(Duration::ZERO);
            let run = ParameterServer::new(comm, replica, numbered(20), settings.clone(), servers, resumed)?;
            Ok(run.run(|_| ())?.summary)
        })
        .unwrap();
        let saved = load_newest::<Progress>(directory.path()).unwrap().unwrap().checkpoint;
        assert_eq!((saved.step, saved.state.updates), (20 * epochs as u64, 20 * epochs as u64));
    }
}

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = tests![
        zero_staleness_gives_the_bits_of_master_worker,
        stale_gradients_train_within_the_staleness_bound,
        gradients_can_be_sent_in_half_the_bytes,
        run_resumes_under_another_strategy_with_the_same_bits,
        incompatible_options_are_refused_on_all_ranks,
        regression_is_accepted_without_a_named_strategy,
        diverging_share_ends_the_run_and_is_named,
        diverging_parameter_ends_the_run_and_is_named_with_its_server,
        server_checkpoints_count_steps_and_not_shares,
    ];
    tests.push(Test::new("slow_worker_delays_no_other", slow_worker_delays_no_other).timed());
    tests
}
