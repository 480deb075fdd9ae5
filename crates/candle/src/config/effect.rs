//! Options that would have no effect.

use super::Config;
use super::check::refuse;
use crate::model::ModelKind;
use unisono_data::Source;
use unisono_strategies::StrategyKind;
use unisono_train::rate::ScheduleKind;
use unisono_train::{Order, TrainError, Wire};

/// The sources whose images stay in their files.
const IMAGE_FILES: &str = "--data images:DIR, tfrecord:FILES_OR_DIR or webdataset:FILES_OR_DIR";
/// The sources whose images may be varied and normalised.
const MAY_VARY: &str =
    "--data images:DIR, tfrecord:FILES_OR_DIR, webdataset:FILES_OR_DIR, npy:DIR or cifar:DIR";

/// The options that are for who serves the data.
const SERVED: [&str; 7] = ["context", "target", "colour", "image-size", "normalize", "augment", "snapshot"];

impl Config {
    /// Returns whether an option has another value than in `usual`, by its name.
    pub(super) fn changed(&self, usual: &Self) -> impl Fn(&str) -> bool + use<> {
        let [own, usual] = [self, usual].map(|config| serde_json::to_value(config).unwrap_or_default());
        move |option| own[option] != usual[option]
    }

    /// Refuses options that are not at their defaults, and without effect.
    pub(super) fn check_effect(&self) -> Result<(), TrainError> {
        let is_changed = self.changed(&Self::new(self.data.clone(), self.model));
        let is_given = |option: &&&str| is_changed(option);
        if let (Source::Service(_), Some(option)) = (&self.data, SERVED.iter().find(is_given)) {
            return refuse(format!(
                "--{option} is up to those who serve the data: remove it here, and start serve-data with it"
            ));
        }
        let has_files = self.data.has_image_files();
        let may_vary = has_files || matches!(self.data, Source::Cifar(_) | Source::Npy(_));
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
            (
                "--model mlp or transformer",
                matches!(self.model, ModelKind::Mlp | ModelKind::Transformer),
                &["dropout"],
            ),
            ("--schedule step", self.schedule == ScheduleKind::Step, &["step-epochs", "step-factor"]),
            ("--optimizer sgd", self.optimizer.0.name() == "sgd", &["momentum", "nesterov"]),
            (
                "--strategy parameter-server",
                self.strategy == Some(StrategyKind::ParameterServer),
                &["servers", "staleness", "elastic", "damp-stale"],
            ),
            (
                "--strategy pipeline",
                self.strategy == Some(StrategyKind::Pipeline),
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
}
