//! The command line of `unisono train`, and of commands that use a part of a run.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args as ClapArgs, Command, Error, FromArgMatches, value_parser};
use unisono::Choice;
use unisono_candle::Config;
use unisono_data::Cache;
use unisono_train::optimizer::{self, NamedRule};

use crate::features::{needs, source};
use crate::output::Format;
use crate::values::named;
use crate::world::World;

/// The options that usually change from run to run. `-h` shows only these, and `--help` shows all.
pub(crate) const USUAL: [&str; 26] = [
    "data",
    "target",
    "colour",
    "augment",
    "seed",
    "input_threads",
    "model",
    "hidden",
    "epochs",
    "batch_size",
    "global_batch",
    "device",
    "optimizer",
    "learning_rate",
    "schedule",
    "weight_decay",
    "strategy",
    "wire",
    "metrics",
    "patience",
    "checkpoint_dir",
    "resume",
    "overwrite",
    "log_dir",
    "format",
    "threads",
];

/// The options of a data set, and of its batches.
const INPUT: [&str; 18] = [
    "data",
    "data_cache",
    "target",
    "context",
    "colour",
    "image_size",
    "normalize",
    "augment",
    "snapshot",
    "snapshot_compression",
    "seed",
    "on_bad_sample",
    "input_memory",
    "data_token_file",
    "input_threads",
    "prefetch",
    "epochs",
    "batch_size",
];

/// The number of these options that describe the data set.
#[cfg(feature = "service")]
const DATA: usize = 11;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) options: RunOptions,
    /// Print the configuration of this run as a file for --config, without training
    #[arg(long)]
    pub(super) write_config: bool,
    /// Output format
    #[arg(long, default_value = "table", value_parser = Format::without_csv())]
    pub(super) format: Format,
    #[command(flatten)]
    pub(super) world: World,
}

pub(crate) type RunOptions = Options<{ usize::MAX }>;
pub(crate) type InputOptions = Options<{ INPUT.len() }>;
#[cfg(feature = "service")]
pub(crate) type DataOptions = Options<DATA>;

/// The first options of [`INPUT`], or all options of a run, which override the values of a file.
#[derive(Debug, Clone)]
pub(crate) struct Options<const MOST: usize> {
    pub(crate) settings: Config,
    /// The number of epochs on the command line.
    pub(crate) epochs: Option<usize>,
}

impl<const MOST: usize> Options<MOST> {
    fn has(option: &str) -> bool {
        MOST > INPUT.len() || INPUT[..MOST].contains(&option)
    }
}

impl<const MOST: usize> ClapArgs for Options<MOST> {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config").long("config").value_name("FILE").value_parser(value_parser!(PathBuf));
        let file =
            file.help("Read the configuration from this file; options of the command line override it");
        // Unsupported options are parsed too, so that the error can be more specific.
        let options = Config::options(Command::new("options"));
        let options = options
            .mut_arg("data", |option| option.value_parser(source))
            .mut_arg("optimizer", |option| {
                option.value_parser(named(optimizer::names(), str::parse::<NamedRule>))
            })
            .mut_arg("algorithm", |option| option.value_parser(named(Choice::names(), str::parse::<Choice>)));
        let options = options.get_arguments().map(|option| {
            let is_hidden = !Self::has(option.get_id().as_str());
            option.clone().hide(is_hidden)
        });
        command.args(options).arg(file)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const MOST: usize> FromArgMatches for Options<MOST> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let known = Config::options(Command::new("options"));
        let other = known.get_arguments().map(|option| option.get_id().as_str());
        if let Some(option) = other.filter(|id| !Self::has(id)).find(|id| matches.contains_id(id)) {
            let option = option.replace('_', "-");
            return Err(Error::raw(ErrorKind::UnknownArgument, format!("this command has no --{option}")));
        }
        let invalid = |why: String| Error::raw(ErrorKind::ValueValidation, why);
        let file = matches.get_one::<PathBuf>("config").map(PathBuf::as_path);
        let settings = Config::over(file, matches).map_err(|error| invalid(error.to_string()))?;
        let missing = settings.data.missing_features();
        if !missing.is_empty() {
            return Err(invalid(format!("--data {} {}", settings.data, needs(&missing))));
        }
        Ok(Self {
            settings: Config { report: Some(print_notice), ..settings },
            epochs: matches.get_one("epochs").copied(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Where objects of servers are kept.
#[derive(Debug, ClapArgs)]
pub(crate) struct CacheArgs {
    /// Cache directory for files of remote data sets [default: unisono-data-cache-UID in the temporary directory of the system]
    #[arg(long, value_name = "DIR")]
    data_cache: Option<PathBuf>,
}

impl CacheArgs {
    pub(crate) fn cache(&self) -> Cache {
        Cache { folder: self.data_cache.clone(), report: Some(print_notice) }
    }
}

fn print_notice(text: &str) {
    eprintln!("unisono: {text}");
}
