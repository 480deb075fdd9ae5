//! Commands in the documentation: their options exist, and the shown output is the actual output.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use unisono_testing::{suite::Test, tests};

use crate::{UNISONO, all_commands};

pub(crate) fn tests() -> Vec<Test> {
    tests![shown_output_matches_the_commands, drawings_match_the_commands, documented_options_exist]
}

/// Returns the documents for users.
fn documents() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pages = fs::read_dir(root.join("docs")).expect("there is a folder of documents");
    let pages = pages
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "md"));
    let others = ["README.md", "crates/preload/README.md"].map(|name| root.join(name));
    pages.chain(others).map(|path| (path.clone(), fs::read_to_string(&path).unwrap())).collect()
}

fn output(arguments: &str) -> String {
    let output =
        Command::new(UNISONO).args(arguments.split_whitespace()).output().expect("the command starts");
    assert!(output.status.success(), "unisono {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// A block that begins with `$ unisono …` shows the first lines of the command's output, or all of them.
fn shown_output_matches_the_commands() {
    let mut shown = 0;
    for (path, text) in documents() {
        for block in text.split("\n```text\n$ unisono ").skip(1) {
            let block = block.split("\n```").next().unwrap_or_default();
            let (command, expected) = block.split_once('\n').expect("a command and its output");
            // Measurements differ from run to run.
            if ["explain", "simulate"].iter().all(|exact| !command.starts_with(exact)) {
                continue;
            }
            let printed = output(command);
            let lines = expected.lines().take_while(|line| line.trim() != "…").map(str::trim_end);
            let printed: Vec<_> = printed.lines().map(str::trim_end).collect();
            for (line, number) in lines.zip(0..) {
                let is = printed.get(number);
                assert_eq!(is, Some(&line), "{}: unisono {command}, line {number}", path.display());
            }
            shown += 1;
        }
    }
    assert!(shown > 3, "{shown} blocks show the output of a command");
}

/// An image `![unisono …](FILE)` is the output of that command.
fn drawings_match_the_commands() {
    let mut drawn = 0;
    for (path, text) in documents() {
        for image in text.split("![unisono ").skip(1) {
            let (command, file) = image.split(')').next().and_then(|image| image.split_once("](")).unwrap();
            let file = path.with_file_name(file);
            let is_same = fs::read_to_string(&file).is_ok_and(|drawing| drawing == output(command));
            assert!(is_same, "{} must be the output of unisono {command}", file.display());
            drawn += 1;
        }
    }
    assert!(drawn > 9, "{drawn} images show the output of a command");
}

/// Every option in a block of code is in the help of its command.
fn documented_options_exist() {
    let known = all_commands();
    let mut helps = BTreeMap::new();
    let mut checked = 0;
    for (path, text) in documents() {
        for line in text.lines().filter(|line| line.contains("unisono ")) {
            for (command, options) in commands(line, &known) {
                let help =
                    helps.entry(command.clone()).or_insert_with(|| output(&format!("{command} --help")));
                for option in options {
                    let is_known = help.contains(&format!("{option} "))
                        || help.contains(&format!("{option}["))
                        || help.contains(&format!("{option}\n"));
                    assert!(is_known, "{}: unisono {command} has no {option}: {line}", path.display());
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 50, "{checked} options");
}

/// Returns the commands of a line, each with its options. `launch -n 2 -- unisono train --epochs 1` has two.
fn commands(line: &str, known: &[String]) -> Vec<(String, Vec<String>)> {
    // A command ends where its inline code ends.
    let line = line.replace('`', " ` ");
    let words: Vec<_> = line.split([' ', '(', ')', ',', ';', '"']).filter(|word| !word.is_empty()).collect();
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let mut is_open = false;
    for (at, word) in words.iter().enumerate() {
        let name = words.get(at + 1).copied().unwrap_or_default();
        if *word == "unisono" && known.iter().any(|command| command == name) {
            let both = format!("{name} {}", words.get(at + 2).copied().unwrap_or_default());
            found.push((if known.contains(&both) { both } else { name.to_owned() }, Vec::new()));
            is_open = true;
        } else if matches!(*word, "--" | "#" | "|" | "&&" | ":" | "`" | "mpirun") {
            is_open = false;
        } else if let Some(option) = word.strip_prefix("--").filter(|_| is_open) {
            let name = option.split('=').next().unwrap_or_default();
            let name = name.trim_end_matches(|c: char| !c.is_alphanumeric());
            found.last_mut().expect("a command is open").1.push(format!("--{name}"));
        }
    }
    found
}
