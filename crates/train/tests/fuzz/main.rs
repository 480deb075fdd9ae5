//! Every reader of bytes or text from outside, given input that is almost valid: it reports an error, or what it accepts is whole.
//! It never panics, takes no memory that the input is not worth, and comes to an end.

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
    // A case is made from what those before it have brought: to make it again is to make all of them.
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
    // Inputs that are never accepted, or always, are not almost valid.
    assert!(accepted > 0 && refused > 0, "{accepted} of {name} are accepted, {refused} refused");
    let counts = [(accepted, "accepted"), (refused, "refused"), (corpus.answers(), "kinds of answers")];
    cases.tell(&format!("reading {name}"), &counts);
}

/// Says which input a panic is of.
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
