//! Runs of a user's model with the configuration of the command.

use std::fs;
use std::path::Path;

use candle_core::{Device, Result, Tensor};
use candle_nn::{Linear, Module as _, linear};
use unisono::Communicator;
use unisono_candle::{Config, Loss, Model, Parameters, fit, fit_with};
use unisono_strategies::Strategy;
use unisono_testing::suite::Test;
use unisono_testing::tests;
use unisono_train::rate::ScheduleKind;
use unisono_train::{AdamW, Callback, EpochReport, Event, Flow, NamedRule, Order, Summary, TrainError};

/// A sample: inputs and target.
type Sample = ([f32; 2], f32);

/// `wanted = weight . given + bias`.
struct Plane {
    parameters: Parameters,
    layer: Linear,
}

impl Plane {
    fn new(parameters: Parameters) -> Self {
        let layer = linear(2, 1, parameters.var_builder()).unwrap();
        Self { parameters, layer }
    }
}

fn loss(layer: &Linear, batch: &[Sample]) -> Result<Loss> {
    let (given, wanted): (Vec<_>, Vec<_>) = batch.iter().copied().unzip();
    let given = Tensor::from_vec(given.concat(), (batch.len(), 2), &Device::Cpu)?;
    Loss::squared_error(&layer.forward(&given)?, &wanted)
}

impl Model<Sample> for Plane {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn loss(&self, batch: &[Sample]) -> Result<Loss> {
        loss(&self.layer, batch)
    }
}

/// Returns training samples and held-out samples.
fn samples(count: usize) -> (Vec<Sample>, Vec<Sample>) {
    let point = |number: usize| {
        let [x, y] = [37, 53].map(|step| (number * step % 101) as f32 / 50.0 - 1.0);
        ([x, y], 2.0 * x - y + 0.5)
    };
    ((0..count).map(point).collect(), (count..count + 20).map(point).collect())
}

fn config() -> Config {
    let optimizer = NamedRule::new(AdamW::default());
    Config { epochs: 4, batch_size: 5, optimizer, learning_rate: 0.1, ..Config::default() }
}

/// Returns the result of rank 0 of two ranks.
fn run(config: &Config) -> std::result::Result<Summary, String> {
    let train =
        |mut comm: Communicator| fit(&mut comm, &Plane::new(Parameters::new(7)), samples(100), config);
    unisono::threads(2, train).swap_remove(0).map_err(|error| error.to_string())
}

fn struct_closure_and_file_give_the_same_run() {
    let by_struct = run(&config()).unwrap();
    assert!(by_struct.last.test_loss < 0.05, "{by_struct:?}");
    let mut rates = Vec::new();
    let closures = unisono::threads(2, |mut comm| {
        let Plane { parameters, layer } = Plane::new(Parameters::new(7));
        let model = (parameters, |batch: &[Sample]| loss(&layer, batch));
        let mut rates = Vec::new();
        let summary = fit_with(&mut comm, &model, samples(100), &config(), |event| {
            if let Event::Step(step) = event {
                rates.push(step.rate);
            }
        });
        (summary.unwrap().parameters_hash, rates)
    });
    for (hash, own) in closures {
        assert_eq!(hash, by_struct.parameters_hash);
        rates = own;
    }
    // The configured rate applies to any batch size, and the schedule covers all steps of the run.
    assert_eq!((rates.len(), rates.iter().copied().fold(0.0, f64::max)), (40, 0.1));
    assert!(rates[39] < 0.001, "{rates:?}");

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("run.toml");
    fs::write(&file, config().to_toml().unwrap()).unwrap();
    assert_eq!(run(&Config::read(&file).unwrap()).unwrap().parameters_hash, by_struct.parameters_hash);
}

/// A callback that stops a run after its second epoch.
struct AfterTwo;

impl Callback for AfterTwo {
    fn on_epoch_end(&mut self, report: &EpochReport) -> std::result::Result<Flow, TrainError> {
        Ok(if report.epoch == 2 { Flow::Stop } else { Flow::Continue })
    }
}

fn at(directory: &Path) -> Config {
    Config { checkpoint_dir: Some(directory.to_owned()), resume: true, ..config() }
}

fn stopped_run_resumes_with_its_configuration_and_refuses_others() {
    let directory = tempfile::tempdir().unwrap();
    let whole = run(&config()).unwrap();
    let stopped = unisono::threads(2, |mut comm| {
        let plane = Plane::new(Parameters::new(7));
        fit_with(&mut comm, &plane, samples(100), &at(directory.path()), AfterTwo).unwrap()
    });
    assert_eq!((stopped[0].last.epoch, stopped[0].ended_early), (2, None));
    let refused = |config: Config| run(&config).unwrap_err();
    let usual = || at(directory.path());
    for (config, expected) in [
        (Config { learning_rate: 0.2, ..usual() }, "its learning rate is 0.1, and this run's is 0.2: use"),
        (Config { clip_norm: Some(1.0), ..usual() }, "is not set, and this run's is 1.0 (--clip-norm): use"),
        (Config { ema: Some(0.5), ..usual() }, "is not set, and this run's is \"0.5\" (--ema): use"),
        (Config { weight_decay: 0.5, ..usual() }, "this run's is \"0.5\" (--weight-decay): use"),
        (Config { optimizer: "lion".parse().unwrap(), ..usual() }, "(--optimizer, --momentum, --nesterov)"),
        (Config { schedule: ScheduleKind::Constant, ..usual() }, "its schedule is \"cosine\""),
        (Config { local_steps: Some(4), ..usual() }, "(--local-steps, --outer): use"),
        (Config { order: Order::Tree, shards: 4, ..usual() }, "this run's is 4 (--order, --shards): use"),
    ] {
        let why = refused(config);
        assert!(why.contains(expected), "{why}");
    }
    let fresh = refused(Config { resume: false, ..at(directory.path()) });
    assert!(fresh.contains("holds the checkpoints of another run"), "{fresh}");
    let fewer = unisono::threads(2, |mut comm| {
        let plane = Plane::new(Parameters::new(7));
        fit(&mut comm, &plane, samples(90), &at(directory.path())).unwrap_err().to_string()
    });
    assert!(fewer[0].contains("its samples is 100, and this run's is 90"), "{fewer:?}");

    let resumed = run(&at(directory.path())).unwrap();
    assert_eq!((resumed.last.epoch, resumed.parameters_hash), (4, whole.parameters_hash));

    // Another run starts with the parameters of this one.
    let newest = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let newest = newest.filter(|path| path.is_dir()).max().unwrap().join("parameters.safetensors");
    let tuned = run(&Config { initial: Some(newest), learning_rate: 1e-9, epochs: 1, ..config() }).unwrap();
    let difference = (tuned.last.test_loss - whole.last.test_loss).abs();
    assert!(difference < 1e-6, "{} after {}", tuned.last.test_loss, whole.last.test_loss);
}

fn invalid_options_and_options_without_effect_are_refused() {
    let refused = |config: Config| run(&config).unwrap_err();
    for (config, option) in [
        (Config { hidden: Some(vec![8]), ..config() }, "hidden"),
        (Config { dropout: 0.5, ..config() }, "dropout"),
        (Config { colour: Some(true), ..config() }, "colour"),
        (Config { data: "csv:table.csv".parse().unwrap(), ..config() }, "data"),
        (Config { device: "cpu".parse().unwrap(), ..config() }, "device"),
    ] {
        let why = format!(
            "--{option} has no effect here: the program has a model and samples of its own; remove it"
        );
        assert_eq!(refused(config), why);
    }
    let strategy = |kind| refused(Config { strategy: Some(kind), ..config() });
    assert!(strategy(Strategy::Pipeline).contains("--strategy pipeline has a run of its own"));
    assert!(strategy(Strategy::CentralStorage).contains("build the model from `Parameters::shared`"));
    assert_eq!(refused(Config { epochs: 0, ..config() }), "--epochs is 0: it must be at least 1");
    assert!(refused(Config { batch_size: 51, ..config() }).contains("there are only 100 to train on"));
    let none = unisono::threads(1, |mut comm| {
        fit(&mut comm, &Plane::new(Parameters::new(7)), samples(0), &config()).unwrap_err().to_string()
    });
    assert_eq!(none, ["there are no samples to train on"]);

    let uneven = unisono::threads(2, |mut comm| {
        let (plane, count) = (Plane::new(Parameters::new(7)), 100 - comm.rank());
        fit(&mut comm, &plane, samples(count), &config()).unwrap_err().to_string()
    });
    assert_eq!(uneven[0], "rank 1 reports an error");
    assert!(
        uneven[1].starts_with("rank 1 has 99 samples to train on and 20 held out, and rank 0 100 and 20")
    );
}

fn shared_parameters_train_with_central_storage() {
    let train = |strategy| {
        unisono::threads(2, |mut comm| {
            let plane = Plane::new(Parameters::shared(7, &mut comm).unwrap());
            fit(&mut comm, &plane, samples(100), &Config { strategy, ..config() })
                .map_err(|error| error.to_string())
        })
        .swap_remove(0)
    };
    assert!(train(Some(Strategy::CentralStorage)).unwrap().last.test_loss < 0.05);
    assert!(train(None).unwrap_err().contains("need --strategy central-storage"));
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        stopped_run_resumes_with_its_configuration_and_refuses_others,
        struct_closure_and_file_give_the_same_run,
        shared_parameters_train_with_central_storage,
        invalid_options_and_options_without_effect_are_refused
    ]
}
