//! Parses the command line, or explains in one line why it is invalid.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory as _, Error, FromArgMatches as _};

use super::{Cli, features};

/// The reason why there is no command to run.
pub(super) enum Unrun {
    /// Help or version output; also help for an empty command line.
    Help(Error),
    /// The error, in one line.
    Invalid(String),
}

pub(super) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, Unrun> {
    let words: Vec<_> = words.into_iter().collect();
    let mut command = command();
    let parsed = command.try_get_matches_from_mut(&words).and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Unrun::Help(error),
        ErrorKind::InvalidSubcommand if let Some(message) = missing(&error) => Unrun::Invalid(message),
        _ => Unrun::Invalid(joined(line(&error), &format!("see unisono {}--help", asked(&command, &words)))),
    })
}

/// Returns the error if the command exists but is not compiled in.
fn missing(error: &Error) -> Option<String> {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    features::missing_command(name)
}

/// Returns the command line parser. It parses a negative number as a value and not as an unknown option, so that the error names the valid range.
pub(super) fn command() -> Command {
    let negative = |argument: Arg| {
        let is_valued = argument.get_action().takes_values() && !argument.is_positional();
        if is_valued { argument.allow_negative_numbers(true) } else { argument }
    };
    let command = Cli::command().mut_subcommands(|command| {
        command.mut_args(negative).mut_subcommands(|nested| nested.mut_args(negative))
    });
    #[cfg(feature = "candle")]
    let command = command.mut_subcommand("train", |train| {
        train.mut_args(|argument| {
            let is_usual = super::train::USUAL.contains(&argument.get_id().as_str());
            argument.hide_short_help(!is_usual)
        })
    });
    command
}

/// Returns the names of the subcommand and of its own one, each with a space, as far as there are any.
fn asked(mut command: &Command, words: &[OsString]) -> String {
    let mut names = String::new();
    for word in words.iter().skip(1) {
        if let Some(known) = command.find_subcommand(word) {
            names = format!("{names}{} ", known.get_name());
            command = known;
        }
    }
    names
}

/// Formats clap's error in one line, without the usage and the hint at `--help`.
fn line(error: &Error) -> String {
    let text = error.to_string().replace("invalid digit found in string", "expected a whole number from 0");
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    // Unisono's own errors have no context.
    let is_clap = error.context().next().is_some();
    lines.fold(String::new(), |start, line| {
        let line = advice(line.strip_prefix("error: ").unwrap_or(line));
        joined(start, &if is_clap { quoted(&line) } else { line })
    })
}

/// Puts values and options into backticks, as in all other errors. Clap uses apostrophes. A reason after them is Unisono's text.
fn quoted(line: &str) -> String {
    match line.split_once("': ") {
        Some((clap, reason)) => format!("{}`: {reason}", clap.replace('\'', "`")),
        None => line.replace('\'', "`"),
    }
}

fn joined(start: String, line: &str) -> String {
    match start.chars().last() {
        None => line.to_owned(),
        Some(':' | '?') => format!("{start} {line}"),
        Some(_) => format!("{start}; {line}"),
    }
}

/// Rewords clap's tips as questions, and its lists of values as the other options word them.
fn advice(line: &str) -> String {
    let tip = line.strip_prefix("tip: ");
    let values = line.strip_prefix("[possible values: ").and_then(|values| values.strip_suffix(']'));
    // "a similar argument exists" or "some similar values exist".
    let alike = |exist| tip.and_then(|tip| tip.split_once(exist));
    let alike = alike(" exists: ").or_else(|| alike(" exist: "));
    match (tip.map(|tip| alike.ok_or(tip)), values) {
        (Some(Ok((_, alike))), _) => format!("did you mean {}?", alike.replace(", ", " or ")),
        (Some(Err(tip)), _) => tip.to_owned(),
        (None, Some(values)) => format!("expected one of {values}"),
        (None, None) => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error line for a command line.
    fn refused(typed: &str) -> String {
        let words = ["unisono"].into_iter().chain(typed.split_whitespace()).map(OsString::from);
        match parse(words) {
            Err(Unrun::Invalid(line)) => line,
            Err(Unrun::Help(help)) => panic!("{typed}: {help}"),
            Ok(cli) => panic!("{typed}: {cli:?}"),
        }
    }

    #[test]
    fn errors_of_clap_are_one_line() {
        for (typed, message) in [
            (
                "bench --byts 8",
                "unexpected argument `--byts` found; did you mean `--bytes`? see unisono bench --help",
            ),
            ("explan", "unrecognized subcommand `explan`; did you mean `explain`? see unisono --help"),
            (
                "explain ring",
                "the following required arguments were not provided: --ranks <P>; see unisono explain --help",
            ),
            (
                "bench --format jsn",
                "invalid value `jsn` for `--format <FORMAT>`; expected one of table, json, csv; did you mean `json`? see \
                 unisono bench --help",
            ),
            (
                "bench --threads 1025",
                "invalid value `1025` for `--threads <N>`: expected a whole number from 1 to 1024; see unisono bench --help",
            ),
        ] {
            assert_eq!(refused(typed), message);
        }
    }

    #[test]
    fn commands_and_data_sets_that_are_not_compiled_in_name_their_features() {
        let build = "build with `cargo build --release -p unisono-cli --features";
        if cfg!(not(feature = "plot")) {
            for typed in ["plot a.json --out a.svg", "plot --help", "help plot"] {
                assert_eq!(
                    refused(typed),
                    format!("`plot` needs the feature `plot`; {build} plot`"),
                    "{typed}"
                );
            }
        }
        if cfg!(not(feature = "service")) {
            let message = refused("serve-data --listen 127.0.0.1:0");
            assert_eq!(message, format!("`serve-data` needs the feature `service`; {build} service`"));
        }
        if cfg!(not(feature = "candle")) {
            assert_eq!(refused("train"), format!("`train` needs the feature `candle`; {build} candle`"));
        } else if cfg!(not(any(feature = "parquet", feature = "remote"))) {
            for typed in [
                "train --data parquet:s3://b/a",
                "inspect-input --data parquet:s3://b/a",
                "evaluate --checkpoint a --data parquet:s3://b/a",
                "predict --checkpoint a --data parquet:s3://b/a",
            ] {
                let message = refused(typed);
                let expected =
                    format!("`: needs the features `parquet` and `remote`; {build} parquet,remote`");
                assert!(message.contains("`--data <") && message.contains(&expected), "{typed}: {message}");
            }
        }
    }

    #[test]
    fn negative_numbers_are_values() {
        for typed in [
            "bench --threads -1",
            "bench --iterations -5",
            "explain ring --ranks -3",
            "supervise --wait-s -1 -- true",
            "explain pipeline --micro-batches 2 --stages -3",
        ] {
            let message = refused(typed);
            assert!(message.contains("`: expected a whole number "), "{typed}: {message}");
        }
        assert!(refused("simulate step --parameters x").ends_with("see unisono simulate step --help"));
        assert!(refused("bench --bytes -8").contains("or MIN:MAX"));
        assert!(refused("bench -x").starts_with("unexpected argument `-x` found; "));
    }

    #[test]
    fn command_line_definition_is_valid() {
        command().debug_assert();
    }
}
