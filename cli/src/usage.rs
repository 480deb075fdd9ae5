//! What is typed: understood, or refused in one line.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Arg, Command, CommandFactory as _, Error, FromArgMatches as _};

use super::Cli;

/// Why there is nothing to be run.
pub(super) enum Unrun {
    /// Help or the version was asked for, and this is it; or nothing was.
    Help(Error),
    /// What makes no sense, in a line.
    Nonsense(String),
}

/// What was typed.
pub(super) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, Unrun> {
    let words: Vec<_> = words.into_iter().collect();
    let mut command = command();
    let parsed = command.try_get_matches_from_mut(&words).and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Unrun::Help(error),
        _ => Unrun::Nonsense(joined(line(&error), &format!("see unisono {}--help", asked(&command, &words)))),
    })
}

/// The command line as it is understood: a negative number is a value, and not an option that nobody knows, so that it is
/// refused by the range that it is out of.
fn command() -> Command {
    let negative = |argument: Arg| {
        let is_valued = argument.get_action().takes_values() && !argument.is_positional();
        if is_valued { argument.allow_negative_numbers(true) } else { argument }
    };
    Cli::command().mut_subcommands(|command| command.mut_args(negative))
}

/// The command that was asked for, and a space; nothing if there is no such command.
fn asked(command: &Command, words: &[OsString]) -> String {
    let known = words.iter().skip(1).find_map(|word| command.find_subcommand(word));
    known.map_or_else(String::new, |command| format!("{} ", command.get_name()))
}

/// What clap says in paragraphs, with neither the usage nor advice on help.
fn line(error: &Error) -> String {
    let text = error.to_string();
    let said = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let said = said.filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    said.fold(String::new(), |told, line| joined(told, &advice(line.strip_prefix("error: ").unwrap_or(line))))
}

/// Two parts of a line.
fn joined(told: String, line: &str) -> String {
    match told.chars().last() {
        None => line.to_owned(),
        Some(':' | '?') => format!("{told} {line}"),
        Some(_) => format!("{told}; {line}"),
    }
}

/// Clap's tips as questions, and the values that there are as other options have them.
fn advice(line: &str) -> String {
    let tip = line.strip_prefix("tip: ");
    let values = line.strip_prefix("[possible values: ").and_then(|values| values.strip_suffix(']'));
    // One thing that is like it exists, or several exist.
    let alike = |exist| tip.and_then(|tip| tip.split_once(exist));
    let alike = alike(" exists: ").or_else(|| alike(" exist: "));
    match (tip.map(|tip| alike.ok_or(tip)), values) {
        (Some(Ok((_, alike))), _) => format!("did you mean {}?", alike.replace(", ", " or ")),
        (Some(Err(tip)), _) => tip.to_owned(),
        (None, Some(values)) => format!("there are {values}"),
        (None, None) => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line that refuses what was typed.
    fn refused(typed: &str) -> String {
        let words = ["unisono"].into_iter().chain(typed.split_whitespace()).map(OsString::from);
        match parse(words) {
            Err(Unrun::Nonsense(line)) => line,
            Err(Unrun::Help(help)) => panic!("{typed}: {help}"),
            Ok(cli) => panic!("{typed}: {cli:?}"),
        }
    }

    #[test]
    fn what_clap_refuses_is_one_line() {
        for (typed, said) in [
            (
                "bench --byts 8",
                "unexpected argument '--byts' found; did you mean '--bytes'? see unisono bench --help",
            ),
            ("explan", "unrecognized subcommand 'explan'; did you mean 'explain'? see unisono --help"),
            (
                "explain ring",
                "the following required arguments were not provided: --ranks <P>; see unisono explain --help",
            ),
            (
                "bench --format jsn",
                "invalid value 'jsn' for '--format <FORMAT>'; there are table, json, csv; did you mean 'json'? see \
                 unisono bench --help",
            ),
            (
                "bench --threads 1025",
                "invalid value '1025' for '--threads <N>': expected a whole number from 1 to 1024; see unisono bench --help",
            ),
        ] {
            assert_eq!(refused(typed), said);
        }
    }

    #[test]
    fn negative_numbers_are_values() {
        for typed in [
            "bench --threads -1",
            "bench --iterations -5",
            "explain ring --ranks -3",
            "supervise --wait-s -1 -- true",
        ] {
            let said = refused(typed);
            assert!(said.contains("': expected a whole number "), "{typed}: {said}");
        }
        assert!(refused("bench --bytes -8").contains("expected MIN:MAX"));
        assert!(refused("bench -x").starts_with("unexpected argument '-x' found; "));
    }

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }
}
