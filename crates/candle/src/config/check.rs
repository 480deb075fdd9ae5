//! Validates settings by themselves, for the strategy, and for the data.

use std::fmt::{Display, LowerExp};
use std::ops::Bound::{Excluded, Included};
use std::ops::RangeBounds;

use candle_core::Device;
use serde_json::Value;

use super::Config;
use crate::model::ModelKind;
use unisono::{Choice, Vendor};
use unisono_data::{Dataset, Kind, OnBadSample, Source};
use unisono_strategies::Strategy;
use unisono_train::internals::IN_TREE;
use unisono_train::rate::ScheduleKind;
use unisono_train::{BucketBytes, Order, Overlap, TrainError, Wire, Wires, metrics};

/// The sources whose images stay in their files.
const IMAGE_FILES: &str = "--data images:DIR, tfrecord:FILES_OR_DIR or webdataset:FILES_OR_DIR";
/// The sources whose images may be varied and normalised.
const MAY_VARY: &str =
    "--data images:DIR, tfrecord:FILES_OR_DIR, webdataset:FILES_OR_DIR, npy:DIR or cifar:DIR";

const MOST_SHARDS: usize = 1 << 16;
const MOST_INPUT_THREADS: usize = 1 << 10;
/// The options that may be 0. All other whole numbers are counts from 1.
const MAY_BE_ZERO: [&str; 3] = ["checkpoint-every-s", "seed", "uncompressed-steps"];

/// The options of data and models that apply to any data and any model.
const OF_ANY: [&str; 4] = ["seed", "input-threads", "prefetch", "initial"];
/// The options that belong to the data server, with `--data service`.
const SERVED: [&str; 7] = ["context", "target", "colour", "image-size", "normalize", "augment", "snapshot"];

impl Config {
    /// Rejects a configuration that is invalid for any data and any world, and options that would have no effect.
    ///
    /// # Errors
    /// [`TrainError::Setting`] names the option, and its location if it comes from a file.
    pub fn check(&self) -> Result<(), TrainError> {
        let checked = self.check_counts().and_then(|()| self.check_rates());
        let checked = checked.and_then(|()| self.check_effect()).and_then(|()| self.check_together());
        checked.map_err(|error| self.placed(error))
    }

    pub(super) fn values(&self) -> Result<Value, TrainError> {
        let paths = [
            ("data-cache", &self.data_cache),
            ("snapshot", &self.snapshot),
            ("data-token-file", &self.data_token_file),
            ("initial", &self.initial),
            ("checkpoint-dir", &self.checkpoint_dir),
            ("log-dir", &self.log_dir),
        ];
        for (option, path) in paths.into_iter().filter_map(|(option, path)| Some((option, path.as_ref()?))) {
            match path.to_str() {
                Some("") => return refuse(format!("--{option} is empty: expected a path")),
                Some(_) => {}
                None => {
                    let path = path.display();
                    return refuse(format!(
                        "--{option} is `{path}`, which is not UTF-8: expected a path that a file can hold"
                    ));
                }
            }
        }
        let values = serde_json::to_value(self);
        values.map_err(|error| TrainError::Setting(format!("{error}: expected options that a file can hold")))
    }

    fn check_counts(&self) -> Result<(), TrainError> {
        let values = self.values()?;
        let mut counts = values.as_object().into_iter().flatten();
        let zero = counts.find(|(option, value)| !MAY_BE_ZERO.contains(&option.as_str()) && is_zero(value));
        let no_bytes = (self.bucket_bytes == BucketBytes::Fixed(0)).then_some("bucket-bytes");
        if let Some(option) = zero.map(|(option, _)| option.as_str()).or(no_bytes) {
            return refuse(format!("--{option} is 0: it must be at least 1"));
        }
        let threads = self.input_threads.unwrap_or(1);
        let limited = [
            ("shards", self.shards, MOST_SHARDS, "every step makes a pass for each shard"),
            ("input-threads", threads, MOST_INPUT_THREADS, "every rank starts so many threads"),
        ];
        match limited.into_iter().find(|(_, count, most, _)| count > most) {
            Some((option, count, most, why)) => {
                refuse(format!("--{option} is {count}: it must be at most {most}, because {why}"))
            }
            None => Ok(()),
        }
    }

    fn check_rates(&self) -> Result<(), TrainError> {
        let above = |most: f64| (Excluded(0.0), Included(most));
        check_range("learning-rate", self.learning_rate, above(1e6), "above 0, and at most 1e6")?;
        check_range("weight-decay", self.weight_decay, 0.0..=1e6, "from 0 to 1e6")?;
        check_range("momentum", self.momentum.unwrap_or(0.0), 0.0..=1.0, "from 0 to 1")?;
        check_range("ema", self.ema.unwrap_or(0.0), 0.0..1.0, "from 0 to below 1")?;
        self.optimizer().check().or_else(refuse)?;
        check_range("clip-norm", self.clip_norm.unwrap_or(1.0), above(1e30), "above 0, and at most 1e30")?;
        check_range("warm-up", self.warm_up, 0.0..=1.0, "from 0 to 1")?;
        check_range("min-delta", self.min_delta, 0.0..=1e6, "from 0 to 1e6")?;
        check_range("dropout", self.dropout, 0.0..1.0, "from 0 to below 1")?;
        check_range("step-factor", self.step_factor, 0.0..=1.0, "from 0 to 1")
    }

    /// Returns a predicate on option names: whether the option's value differs from its value in `usual`.
    fn changed(&self, usual: &Self) -> Result<impl Fn(&str) -> bool + use<>, TrainError> {
        let (own, usual) = (self.values()?, usual.values()?);
        Ok(move |option: &str| own[option] != usual[option])
    }

    fn check_effect(&self) -> Result<(), TrainError> {
        let is_changed = self.changed(&Self::new(self.data.clone(), self.model))?;
        let is_given = |option: &&&str| is_changed(option);
        if let (Source::Service(_), Some(option)) = (&self.data, SERVED.iter().find(is_given)) {
            return refuse(format!(
                "--{option} has no effect on served data: remove it here, and start serve-data with it"
            ));
        }
        let has_files = self.data.has_image_files();
        let may_vary = has_files || matches!(self.data, Source::Cifar(_) | Source::Npy(_));
        let drops = matches!(self.model, ModelKind::Mlp | ModelKind::Transformer);
        let is_server = self.strategy == Some(Strategy::ParameterServer);
        let compresses = self.wires().iter().any(|wire| matches!(wire, Wire::Compressed(_)));
        let needs: [(&str, bool, &[&str]); 18] = [
            ("--data FORMAT:s3://… or https://…", self.data.is_remote(), &["data-cache"]),
            ("--data csv:FILES, parquet:FILES or arrow:FILES", self.data.is_table(), &["target"]),
            ("--data text:FILES", matches!(self.data, Source::Text(_)), &["context"]),
            (IMAGE_FILES, has_files, &["colour", "image-size", "snapshot", "on-bad-sample"]),
            ("--snapshot DIR", self.snapshot.is_some(), &["snapshot-compression"]),
            (MAY_VARY, may_vary, &["normalize", "augment"]),
            ("--data service:HOST:PORT", matches!(self.data, Source::Service(_)), &["data-token-file"]),
            ("--model mlp, resnet or transformer", self.model != ModelKind::Cnn, &["hidden"]),
            ("--model mlp or transformer", drops, &["dropout"]),
            ("--schedule step", self.schedule == ScheduleKind::Step, &["step-epochs", "step-factor"]),
            ("--optimizer sgd", self.optimizer.0.name() == "sgd", &["momentum", "nesterov"]),
            ("--strategy parameter-server", is_server, &["servers", "staleness", "elastic", "damp-stale"]),
            (
                "--strategy pipeline",
                self.strategy == Some(Strategy::Pipeline),
                &["stages", "micro-batches", "pipeline-schedule", "split-at"],
            ),
            ("a --wire that compresses, such as int8", compresses, &["uncompressed-steps"]),
            ("--local-steps N", self.local_steps.is_some(), &["outer"]),
            ("--order world-invariant", self.order == Order::Tree, &["shards"]),
            ("--patience N", self.patience.is_some(), &["min-delta"]),
            (
                "--checkpoint-dir DIR",
                self.checkpoint_dir.is_some(),
                &["checkpoint-every", "checkpoint-every-s", "keep", "resume", "overwrite"],
            ),
        ];
        let pointless = needs.iter().filter(|(_, has, _)| !has);
        match pointless.filter_map(|(needs, _, options)| Some((needs, options.iter().find(is_given)?))).next()
        {
            Some((needs, option)) => {
                refuse(format!("--{option} has no effect without {needs}: remove it, or add {needs}"))
            }
            None => Ok(()),
        }
    }

    fn check_together(&self) -> Result<(), TrainError> {
        let is_invariant_resnet = self.model == ModelKind::ResNet && self.order == Order::Tree;
        let refused = [
            (
                self.overwrite && self.resume,
                "--overwrite deletes what --resume would resume from: remove one of them",
            ),
            (
                is_invariant_resnet,
                "the resnet normalises over the samples of all ranks, so the bits depend on the number of ranks: use another \
                 model, or remove --order world-invariant",
            ),
        ];
        let refused = refused.into_iter().find(|(is_so, _)| *is_so).map(|(_, why)| why.to_owned());
        self.buckets(1).conflict().or(refused).map_or(Ok(()), refuse)
    }

    pub(super) fn check_strategy(&self, strategy: Strategy) -> Result<(), TrainError> {
        let is_resnet = self.model == ModelKind::ResNet;
        let is_across = self.overlap == Overlap::Across;
        let is_invariant = self.order == Order::Tree;
        let skips_bad = self.on_bad_sample != OnBadSample::Error;
        let is_undecided = matches!(self.wire, Wires::Auto(_));
        let names_algorithm = self.algorithm.as_ref().is_some_and(|choice| *choice != Choice::Auto);
        let refused = match strategy {
            Strategy::Pipeline => vec![
                (is_resnet, "--model resnet", "batch norm needs all samples of a step at once"),
                (self.dropout != 0.0, "--dropout", "a stage does not know the pass that it drops values of"),
                (
                    is_invariant,
                    "--order world-invariant",
                    "stages add the gradients of micro-batches in turn",
                ),
                (self.local_steps.is_some(), "--local-steps", "the stages of a model step together"),
                (is_undecided, "--wire auto", "stages would choose differently: name one format"),
                (is_across, "--overlap across", "a stage's update ends before its next pass"),
            ],
            // It refuses settings of gradients itself.
            Strategy::CentralStorage => vec![
                (is_undecided, "--wire auto", "no gradient travels"),
                (names_algorithm, "--algorithm", "ranks add gradients in memory that they share"),
            ],
            Strategy::ParameterServer => vec![
                (is_undecided, "--wire auto", "it compares all-reduces: name one format"),
                (names_algorithm, "--algorithm", "workers send gradients to servers"),
                (skips_bad, "--on-bad-sample skip", "samples that workers skip are not reported"),
            ],
            Strategy::OneDevice | Strategy::Mirrored | Strategy::MultiWorkerMirrored => Vec::new(),
        };
        if let Some((_, option, why)) = refused.into_iter().find(|(is_so, _, _)| *is_so) {
            return refuse(format!("{strategy} does not go with {option}: {why}"));
        }
        Ok(())
    }

    /// Rejects options that a run of a user's model does not support, or that would have no effect on it.
    pub(super) fn check_own(&self, strategy: Strategy, shares_values: bool) -> Result<(), TrainError> {
        let is_changed = self.changed(&Self::default())?;
        let built_in = Self::of_data_and_model().into_iter().filter(|option| !OF_ANY.contains(&&**option));
        if let Some(option) = built_in.chain(["device".to_owned()]).find(|option| is_changed(option)) {
            return refuse(format!(
                "--{option} has no effect here: the program has a model and samples of its own; remove it"
            ));
        }
        self.check()?;
        self.check_strategy(strategy)?;
        match strategy {
            Strategy::ParameterServer | Strategy::Pipeline => refuse(format!(
                "--strategy {strategy} has a run of its own: use another strategy, or `ParameterServer` or `Pipeline` of unisono-strategies"
            )),
            Strategy::CentralStorage if !shares_values => refuse(
                "--strategy central-storage needs parameters that ranks share: build the model from `Parameters::shared`".to_owned(),
            ),
            Strategy::OneDevice | Strategy::Mirrored | Strategy::MultiWorkerMirrored if shares_values => {
                refuse("parameters that ranks share need --strategy central-storage: add it, or build the model from `Parameters::new`".to_owned())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn check_choice(
        &self,
        choice: &Choice,
        device: &Device,
        computes: Option<&str>,
    ) -> Result<(), TrainError> {
        if choice.vendor() == Some(Vendor::Nccl) && device.is_cpu() {
            return refuse(format!(
                "the algorithm {choice} works on GPU memory, and this run computes {}: choose another one, or auto",
                computes.unwrap_or("on the CPU: there is no GPU")
            ));
        }
        if self.order == Order::Tree && ![Choice::Auto, IN_TREE.into()].contains(choice) {
            return refuse(format!(
                "the algorithm {choice} would not be used: a result independent of the number of ranks requires {IN_TREE}; remove \
                 --algorithm"
            ));
        }
        Ok(())
    }

    pub(super) fn check_world(&self, ranks: usize) -> Result<(), TrainError> {
        match self.world_invariant() {
            Some(parts) if !parts.is_power_of_two() || !parts.is_multiple_of(ranks) => refuse(format!(
                "{parts} shards per step on {ranks} ranks: the number of shards must be a power of two and a multiple of the \
                 number of ranks"
            )),
            _ => Ok(()),
        }
    }

    /// Rejects a global batch larger than the data set, and metrics that do not apply to the data.
    pub(super) fn check_data(
        &self,
        dataset: Dataset,
        global_batch: usize,
        ranks: usize,
    ) -> Result<Dataset, TrainError> {
        let classes = match &dataset.kind {
            Kind::Images { classes, .. } | Kind::Table { classes, .. } => *classes,
            Kind::Text { vocabulary, .. } => vocabulary.len(),
        };
        if classes == 1 && dataset.schema.target.is_none() {
            return refuse(format!("{} has one class alone: there is nothing to learn", self.data));
        }
        metrics::check(&self.metrics(dataset.schema.target.is_some()), Some(classes))?;
        let samples = dataset.train.len();
        if global_batch > samples {
            return refuse(format!(
                "a global batch of {global_batch} samples on {ranks} ranks, but {} has only {samples} to train on: choose a \
                 smaller batch",
                self.data
            ));
        }
        Ok(dataset)
    }
}

pub(super) fn refuse<T>(why: String) -> Result<T, TrainError> {
    Err(TrainError::Setting(why))
}

/// Returns whether the value of an option is the whole number 0, or a list with it.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Array(values) => values.iter().any(is_zero),
        value => value.as_u64() == Some(0),
    }
}

/// Rejects an option whose value is outside a range, which `expected` names.
fn check_range(
    option: &str,
    value: impl Copy + Into<f64> + Display + LowerExp,
    range: impl RangeBounds<f64>,
    expected: &str,
) -> Result<(), TrainError> {
    let why = || format!("--{option} is {}: it must be {expected}", figure(value));
    let number: f64 = value.into();
    if range.contains(&number) { Ok(()) } else { refuse(why()) }
}

/// Returns a human-readable number: with an exponent if it would have many digits. An `f32` has other digits as an `f64`.
pub(crate) fn figure(value: impl Copy + Into<f64> + Display + LowerExp) -> String {
    let number: f64 = value.into();
    match number.abs() {
        0.0 | 1e-4..1e6 => format!("{value}"),
        _ => format!("{value:e}"),
    }
}
