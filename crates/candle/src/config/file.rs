//! Reads and writes a configuration as a file, and as the options of a command line.

use std::fs;
use std::path::Path;

use clap::error::{ContextKind, ContextValue};
use clap::{ArgAction, ArgMatches, Args as _, Command, FromArgMatches as _};
use serde::de::Error as _;
use toml::de::{DeTable, Error};
use toml::{Spanned, Table};

use super::Config;
use super::check::refuse;
use unisono_train::TrainError;

/// The headings of options, each with the first option below it.
const HEADINGS: [(&str, &str); 6] = [
    ("data", "Data and model"),
    ("epochs", "Learning"),
    ("strategy", "Strategy"),
    ("algorithm", "Gradients"),
    ("evaluate_every", "Evaluation"),
    ("checkpoint_dir", "Checkpoints and logs"),
];

/// The names of types in messages of the parser, and the words for them.
const TYPES: [(&str, &str); 7] = [
    ("usize", "a whole number"),
    ("u64", "a whole number"),
    ("u32", "a whole number"),
    ("f64", "a number"),
    ("f32", "a number"),
    ("a sequence", "a list"),
    ("path string", "a path"),
];

/// The width of a comment in columns.
const COLUMNS: usize = 100;

/// The location of each key in the file that a configuration was read from. Error messages contain it.
#[derive(Debug, Clone, Default)]
pub struct Origin(Vec<(String, String)>);

impl Origin {
    /// Returns the message with the location of the first option in it that comes from the file.
    fn named(&self, message: &str) -> String {
        let words = message.split_inclusive(' ');
        let named = words.scan(false, |is_named, word| {
            let option = word.trim_end_matches([' ', ':', ',', ';']);
            let place = self.0.iter().find(|(key, _)| !*is_named && option.strip_prefix("--") == Some(key));
            *is_named |= place.is_some();
            Some(place.map_or(word.to_owned(), |(key, place)| {
                format!("`{key}` ({place}){}", &word[option.len()..])
            }))
        });
        named.collect()
    }
}

impl Config {
    /// Adds an option for each field, with its heading, and with its default in its help. [`Config::over`] reads the values.
    pub fn options(command: Command) -> Command {
        let mut heading = "";
        let options = Self::augment_args_for_update(Command::new("options"));
        options.get_arguments().fold(command, |command, option| {
            let id = option.get_id().as_str();
            heading = HEADINGS.iter().find(|(first, _)| *first == id).map_or(heading, |(_, next)| next);
            let mut help = option.get_help().map(ToString::to_string).unwrap_or_default();
            if let Some(default) = option.get_default_values().first().filter(|_| !help.contains("[default"))
            {
                help += &format!(" [default: {}]", default.display());
            }
            let option = option.clone().help(help).help_heading(heading).default_value(None);
            let option = match option.get_action() {
                // The command line may override a `true` in the file with `false`.
                ArgAction::SetTrue => {
                    let option = option.action(ArgAction::Set).value_name("false").hide_possible_values(true);
                    option.num_args(0..=1).require_equals(true).default_missing_value("true")
                }
                _ => option,
            };
            command.arg(option)
        })
    }

    /// Reads a TOML file whose keys are the names of the options.
    ///
    /// # Errors
    /// [`TrainError::Setting`] names the file, the line and the key.
    pub fn read(file: &Path) -> Result<Self, TrainError> {
        Self::over(Some(file), &Self::options(nothing()).get_matches_from([""; 0]))
    }

    /// Returns the configuration from these [options](Self::options) of a command line. They override the values of the file, which override the
    /// defaults for the model.
    ///
    /// # Errors
    /// [`TrainError::Setting`] names the file, the line and the key.
    pub fn over(file: Option<&Path>, options: &ArgMatches) -> Result<Self, TrainError> {
        let name = file.unwrap_or(Path::new("")).display();
        let text = file.map_or_else(|| Ok(String::new()), fs::read_to_string);
        let text = text.map_err(|error| TrainError::Setting(format!("cannot read `{name}`: {error}")))?;
        let refuse =
            |at: usize, why: &str| TrainError::Setting(format!("{name}:{}: {why}", line_at(&text, at)));
        let known = Self::options(nothing());
        let mut keys = Vec::new();
        for (key, _) in DeTable::parse(&text).map(Spanned::into_inner).unwrap_or_default() {
            let at = key.span().start;
            if !known.get_arguments().any(|option| option.get_long() == Some(&**key.get_ref())) {
                return Err(refuse(
                    at,
                    &format!("there is no `{}`{}", key.get_ref(), nearest(&known, key.get_ref())),
                ));
            }
            keys.push((key.get_ref().to_string(), format!("{name}:{}", line_at(&text, at))));
        }
        let mut config = Self::of_text(&text, options).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
            let line = text[line..].lines().next().unwrap_or_default();
            refuse(at, &format!("`{line}`: {}", in_words(error.message())))
        })?;
        config.update_from_arg_matches(options).map_err(|error| TrainError::Setting(error.to_string()))?;
        config.apply_sgd(options)?;
        keys.retain(|(key, _)| !options.contains_id(&key.replace('-', "_")));
        Ok(Self { origin: Origin(keys), ..config })
    }

    /// Parses a configuration. Its defaults are those for the data and the model that the text or the command line specifies.
    fn of_text(text: &str, options: &ArgMatches) -> Result<Self, toml::de::Error> {
        // Only this parse reports the position of an error.
        let own: Self = toml::from_str(text)?;
        let table: Table = toml::from_str(text)?;
        let data = options.get_one("data").cloned().unwrap_or(own.data);
        let own_model = table.contains_key("model").then_some(own.model);
        let model = options.get_one("model").copied().or(own_model);
        let model = model.unwrap_or_else(|| Self::default_model(&data));
        let mut all = Table::try_from(Self::new(data, model)).map_err(Error::custom)?;
        all.extend(table.into_iter().filter(|(key, _)| !["data", "model"].contains(&key.as_str())));
        all.try_into()
    }

    /// Returns the configuration as a commented TOML file, which [`Config::read`] reads.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if TOML cannot represent a number, which is then above 2^63.
    pub fn to_toml(&self) -> Result<String, TrainError> {
        let values = toml::to_string(self).map_err(|error| TrainError::Setting(error.to_string()))?;
        if let Some(line) = values.lines().find(|line| line.parse::<Table>().is_err()) {
            return refuse(format!("a file cannot hold `{line}`: expected a number of at most {}", i64::MAX));
        }
        let value = |key: &str| values.lines().find(|line| line.split(" = ").next() == Some(key));
        let mut text = String::new();
        let mut heading = None;
        for option in Self::options(nothing()).get_arguments() {
            if heading.replace(option.get_help_heading()) != Some(option.get_help_heading()) {
                text += &format!("\n## {}\n", option.get_help_heading().unwrap_or_default());
            }
            let (key, help) =
                (option.get_long().unwrap_or_default(), option.get_help().map(ToString::to_string));
            text += &format!("\n{}\n", comment(&help.unwrap_or_default()));
            text += &value(key).map_or(format!("# {key} =\n"), |line| format!("{line}\n"));
        }
        Ok(text.trim_start().to_owned())
    }

    pub(super) fn of_data_and_model() -> Vec<String> {
        let options = Self::options(nothing());
        let own = options.get_arguments().filter(|option| option.get_help_heading() == Some(HEADINGS[0].1));
        own.filter_map(|option| option.get_long().map(str::to_owned)).collect()
    }

    /// Returns every option at its default for the MLP.
    pub(super) fn of_nothing() -> Self {
        let nothing = Self::augment_args(nothing()).get_matches_from([""; 0]);
        Self::from_arg_matches(&nothing).expect("every option has a default")
    }

    /// Adds to an error the location in the file of the option that it names.
    pub(super) fn placed(&self, error: TrainError) -> TrainError {
        match error {
            TrainError::Setting(why) => TrainError::Setting(self.origin.named(&why)),
            error => error,
        }
    }
}

fn nothing() -> Command {
    Command::new("options").no_binary_name(true).disable_help_flag(true)
}

fn line_at(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Returns a message of the parser with words for the type that it expects.
fn in_words(message: &str) -> String {
    let found = TYPES.iter().find_map(|(name, words)| Some((message.strip_suffix(name)?, words)));
    found.map_or(message.to_owned(), |(before, words)| format!("{before}{words}"))
}

/// Returns a "did you mean" question with the known option that is spelt most like this one.
fn nearest(known: &Command, key: &str) -> String {
    let error = known.clone().try_get_matches_from([format!("--{key}")]).err();
    match error.as_ref().and_then(|error| error.get(ContextKind::SuggestedArg)) {
        Some(ContextValue::String(option)) => format!(": did you mean `{}`?", option.trim_start_matches('-')),
        _ => ": keys are the options that unisono train --help lists".to_owned(),
    }
}

fn comment(text: &str) -> String {
    text.split_whitespace().fold(String::from("#"), |mut lines, word| {
        let used = lines.chars().rev().take_while(|&sign| sign != '\n').count();
        lines += if used + word.len() >= COLUMNS { "\n# " } else { " " };
        lines + word
    })
}
