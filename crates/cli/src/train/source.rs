//! The options of a data set and its input pipeline.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args as ClapArgs;
use unisono_candle::Settings;
use unisono_candle::model::ModelKind;
use unisono_data::{
    Augmentation, Cache, Compression, DataError, Depth, Normalize, OnBadSample, Service, SnapshotOptions,
    Source, Threads,
};

use crate::features::source;
use crate::values::{size, whole};

/// The data set.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Data and model")]
pub(crate) struct DatasetArgs {
    /// Data set: digits (generated), idx:DIR (MNIST format), cifar:DIR (CIFAR-10's binary files), images:DIR (one folder per class),
    /// tfrecord:FILES_OR_DIR, webdataset:FILES_OR_DIR (tar files), npy:DIR (NumPy's arrays), csv:FILES, parquet:FILES, arrow:FILES,
    /// text:FILES or service:HOST:PORT,… (servers started by serve-data). FILES are separated by commas, or patterns such as train-*.tar and
    /// train-{000..119}.tar; instead of a file or directory also s3://BUCKET/FOLDER_OR_OBJECT or https://HOST/FILE
    #[arg(long, default_value = "digits", value_parser = source)]
    data: Source,
    #[command(flatten)]
    cache: CacheArgs,
    /// With --data csv:, parquet: or arrow: the column of numbers to predict, a regression [default: classes, of the column `label` or the
    /// last one]
    #[arg(long, value_name = "COLUMN")]
    target: Option<String>,
    /// Characters per text sample
    #[arg(long, value_name = "N", value_parser = whole(0, usize::MAX))]
    context: Option<usize>,
    /// Read the images of images:, tfrecord: and webdataset: in colour (yes) or as grey (no) [default: in colour if they have any]
    #[arg(long, value_name = "YES_OR_NO", num_args = 0..=1, default_missing_value = "yes", value_parser = yes_or_no)]
    colour: Option<bool>,
    /// Resize and crop the images of images:, tfrecord: and webdataset: to this height and width, such as 64 or 64x48 [default: the medians]
    #[arg(long, value_name = "HxW", value_parser = sides)]
    image_size: Option<Sides>,
    /// Normalise images by means and deviations for each channel, such as 0.485,0.456,0.406/0.229,0.224,0.225, or by measured ones
    /// [default: measured for images:, tfrecord: and webdataset:, MNIST's 0.1307/0.3081 for others]
    #[arg(long, value_name = "MEANS/DEVIATIONS")]
    normalize: Option<Normalize>,
    /// Vary training images at random by these transforms: affine (shifts and rotations), crop, mirror, jitter (of colours) and erase, separated
    /// by commas, also with amounts as in crop:4 [default of --augment alone: mirror,crop for cifar:, affine for others]
    #[arg(long, value_name = "TRANSFORMS", num_args = 0..=1, default_missing_value = USUAL)]
    augment: Option<Augment>,
    /// Keep the images of images:, tfrecord: and webdataset: in this directory as they are when decoded, and read them from there in every epoch
    /// and run
    #[arg(long, value_name = "DIR")]
    snapshot: Option<PathBuf>,
    /// How a snapshot is stored: none (as it is) or lz4 [default: none]
    #[arg(long, value_name = "NAME", requires = "snapshot")]
    snapshot_compression: Option<Compression>,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// The data set, and how its batches are made.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Data and model")]
pub(crate) struct SourceArgs {
    #[command(flatten)]
    dataset: DatasetArgs,
    /// What becomes of damaged images: error, skip (they are left out, counted and named), or skip:N for at most N on each rank
    #[arg(long, value_name = "POLICY", default_value = "error")]
    on_bad_sample: OnBadSample,
    /// The most memory for batches that are prepared at once, on each rank, such as 512M [default: no bound]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    input_memory: Option<usize>,
    /// With --data service: the file with the servers' token
    #[arg(long, value_name = "FILE")]
    data_token_file: Option<PathBuf>,
    /// Input pipeline threads per rank [default: adjusted while running]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    input_threads: Option<u16>,
    /// Steps whose batches are prefetched [default: adjusted while running]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    prefetch: Option<u16>,
}

/// Where objects of servers are kept.
#[derive(Debug, ClapArgs)]
pub(crate) struct CacheArgs {
    /// Folder in which the files of data sets on servers are kept [default: one in the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    data_cache: Option<PathBuf>,
}

impl CacheArgs {
    pub(crate) fn cache(&self) -> Cache {
        Cache { folder: self.data_cache.clone(), tell: Some(|text| eprintln!("unisono: {text}")) }
    }
}

/// The word for the usual transforms of a source.
const USUAL: &str = "usual";

/// The augmentation of training images.
#[derive(Debug, Clone)]
enum Augment {
    Usual,
    By(Augmentation),
}

impl Augment {
    fn of(&self, source: &Source) -> Augmentation {
        match self {
            Self::Usual => source.usual_augmentation(),
            Self::By(augmentation) => augmentation.clone(),
        }
    }
}

impl FromStr for Augment {
    type Err = DataError;

    fn from_str(names: &str) -> Result<Self, DataError> {
        if names == USUAL { Ok(Self::Usual) } else { names.parse().map(Self::By) }
    }
}

/// The height and width of images.
type Sides = [usize; 2];

fn yes_or_no(word: &str) -> Result<bool, String> {
    match word {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("expected `yes` or `no`".into()),
    }
}

fn sides(text: &str) -> Result<Sides, String> {
    let (height, width) = text.split_once('x').unwrap_or((text, text));
    let side = |text: &str| text.parse().ok().filter(|side| (1..=MOST_SIDE).contains(side));
    side(height).zip(side(width)).map(<Sides>::from).ok_or_else(|| {
        format!(
            "expected a height and a width from 1 to {MOST_SIDE}, such as `64x48`, or one number for both"
        )
    })
}

/// The longest side of an image.
const MOST_SIDE: usize = 1 << 15;

/// The sources whose images stay in their files.
const IMAGE_FILES: &str = "--data images:DIR, tfrecord:FILES_OR_DIR or webdataset:FILES_OR_DIR";
/// The sources whose images may be varied and normalised.
const MAY_VARY: &str =
    "--data images:DIR, tfrecord:FILES_OR_DIR, webdataset:FILES_OR_DIR, npy:DIR or cifar:DIR";

impl DatasetArgs {
    /// The error for an option that would have no effect.
    pub(crate) fn without_effect(&self) -> Option<String> {
        let has_files = self.data.has_image_files();
        let may_vary = has_files || matches!(self.data, Source::Cifar(_) | Source::Npy(_));
        let is_text = matches!(self.data, Source::Text(_));
        let has_cache = self.cache.data_cache.is_some();
        let options = [
            ("--context", self.context.is_some()),
            ("--target", self.target.is_some()),
            ("--colour", self.colour.is_some()),
            ("--image-size", self.image_size.is_some()),
            ("--normalize", self.normalize.is_some()),
            ("--augment", self.augment.is_some()),
            ("--snapshot", self.snapshot.is_some()),
        ];
        if let (Source::Service(_), Some((option, _))) =
            (&self.data, options.iter().find(|(_, is_given)| *is_given))
        {
            return Some(format!(
                "{option} is up to those who serve the data: remove it here, and start serve-data with it"
            ));
        }
        first_pointless(&[
            ("--data-cache", "--data FORMAT:s3://… or https://…", has_cache && !self.data.is_remote()),
            (
                "--target",
                "--data csv:FILES, parquet:FILES or arrow:FILES",
                self.target.is_some() && !self.data.is_table(),
            ),
            ("--context", "--data text:FILES", self.context.is_some() && !is_text),
            ("--colour", IMAGE_FILES, self.colour.is_some() && !has_files),
            ("--image-size", IMAGE_FILES, self.image_size.is_some() && !has_files),
            ("--normalize", MAY_VARY, self.normalize.is_some() && !may_vary),
            ("--snapshot", IMAGE_FILES, self.snapshot.is_some() && !has_files),
            ("--augment", MAY_VARY, self.augment.is_some() && !may_vary),
        ])
    }

    /// Why they cannot be served, if they cannot.
    #[cfg(feature = "service")]
    pub(crate) fn unservable(&self) -> Option<String> {
        match &self.data {
            Source::Service(servers) => Some(format!(
                "serve-data cannot serve what `{servers}` serve: it reads its data itself; --join them instead"
            )),
            Source::Digits => None,
            _ if self.target.is_some() => {
                Some("serve-data serves classes, and no numbers to predict: remove --target".to_owned())
            }
            _ => first_pointless(&[("--seed", "--data digits", self.seed != 0)]),
        }
    }

    /// The settings of these options, with defaults that suit the data and the model.
    pub(crate) fn settings(&self, model: Option<ModelKind>) -> Settings {
        let model = model.unwrap_or_else(|| Settings::default_model(&self.data));
        let usual = Settings::new(self.data.clone(), model);
        Settings {
            context: self.context.unwrap_or(usual.context),
            target: self.target.clone(),
            colour: self.colour,
            cache: self.cache.cache(),
            image_size: self.image_size,
            normalize: self.normalize.clone(),
            augmentation: self
                .augment
                .as_ref()
                .map_or_else(Augmentation::default, |asked| asked.of(&self.data)),
            snapshot: self.snapshot.clone().map(|directory| SnapshotOptions {
                directory,
                compression: self.snapshot_compression.unwrap_or_default(),
            }),
            seed: self.seed,
            ..usual
        }
    }
}

impl SourceArgs {
    /// The error for an option that would have no effect.
    pub(crate) fn without_effect(&self) -> Option<String> {
        let is_served = matches!(self.dataset.data, Source::Service(_));
        let token =
            ("--data-token-file", "--data service:HOST:PORT", self.data_token_file.is_some() && !is_served);
        let skips = self.on_bad_sample != OnBadSample::Error;
        let bad = ("--on-bad-sample", IMAGE_FILES, skips && !self.dataset.data.has_image_files());
        self.dataset.without_effect().or_else(|| first_pointless(&[token, bad]))
    }

    /// The settings of these options, with defaults that suit the data and the model.
    pub(crate) fn settings(&self, model: Option<ModelKind>) -> Settings {
        let usual = self.dataset.settings(model);
        let source = match usual.source {
            Source::Service(service) => {
                Source::Service(Service { token_file: self.data_token_file.clone(), ..service })
            }
            source => source,
        };
        Settings {
            source,
            on_bad_sample: self.on_bad_sample,
            input_memory: self.input_memory.map(|bytes| bytes as u64),
            input_threads: self.input_threads.map_or(Threads::Auto, |threads| Threads::Fixed(threads.into())),
            prefetch: self.prefetch.map_or(Depth::Auto, |depth| Depth::Fixed(depth.into())),
            ..usual
        }
    }
}

/// The error for the first option that has no effect, of options, what each needs, and whether it is given without that.
pub(super) fn first_pointless(options: &[(&str, &str, bool)]) -> Option<String> {
    let (option, needs, _) = options.iter().find(|(_, _, is_so)| *is_so)?;
    Some(format!("{option} has no effect without {needs}: remove it, or add {needs}"))
}
