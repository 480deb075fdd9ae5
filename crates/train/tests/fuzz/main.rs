//! Fuzzes every reader of external bytes or text with inputs that are almost valid. A reader either reports an error, or accepts a complete value. It
//! never panics, never hangs, and allocates only in proportion to the input.

#![allow(unreachable_pub, reason = "a test has no users")]

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

mod files;
mod flights;
mod guard;
mod mutate;
mod reader;
mod seeds;
mod texts;

use reader::Reader;
use unisono_testing::random::Random;
use unisono_testing::soak::Soak;

fn main() -> ExitCode {
    guard::watch();
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let trials = reader::all().into_iter().map(|reader| {
        Trial::test(format!("reading {}", reader.name), move || {
            fuzz(reader);
            Ok(())
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn fuzz(reader: Reader) {
    let Reader { name, short, bound_bytes, mut corpus, mut read } = reader;
    let soak = Soak::from_environment();
    // A case is derived from the results of the previous ones, so reproducing it requires all of them.
    let cases = Soak { case: None, ..soak }.cases(soak.case.map_or(short, |case| case + 1));
    let (mut accepted, mut refused) = (0, 0);
    while let Some(number) = cases.take() {
        let input = corpus.draw(&mut Random::of(soak.seed, number));
        let again = soak.again(number);
        let said = Said { input: &input, again: &again };
        let answer = guard::guarded(&again, bound_bytes, || read(&input));
        std::mem::forget(said);
        *if answer.is_ok() { &mut accepted } else { &mut refused } += 1;
        corpus.learn(input, &answer.err().unwrap_or_default());
    }
    // If all inputs are accepted, or none, they are not almost valid.
    assert!(accepted > 0 && refused > 0, "{accepted} of {name} are accepted, {refused} refused");
    let counts = [(accepted, "accepted"), (refused, "refused"), (corpus.answers(), "kinds of answers")];
    cases.report(&format!("reading {name}"), &counts);
}

/// Prints the input during a panic.
struct Said<'a> {
    input: &'a [u8],
    again: &'a str,
}

impl Drop for Said<'_> {
    fn drop(&mut self) {
        let (input, length) = (self.input.escape_ascii().to_string(), self.input.len());
        eprintln!("the input of {length} bytes is {}", &input[..input.len().min(4000)]);
        eprintln!("to make this case again: {}", self.again);
    }
}
