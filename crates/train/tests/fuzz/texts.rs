//! Readers of text: sizes, choices and rules, data sources, tuning tables.

use unisono::select::Rules;
use unisono::{Choice, size};

use crate::mutate::Corpus;
use crate::reader::Reader;

/// The memory limit, which exceeds the needs of any text of this length.
const BOUND_BYTES: usize = 16 << 20;

pub fn readers() -> Vec<Reader> {
    let seeds = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    let reader = |name, short, corpus, read: fn(&str) -> Result<(), String>| {
        // A text parser does not receive bytes that are not UTF-8.
        let read = Box::new(move |input: &[u8]| read(&String::from_utf8_lossy(input)));
        Reader { name, short, bound_bytes: BOUND_BYTES, corpus, read }
    };
    let sizes = Corpus::new(seeds(&["8K", "0", "3G", "18446744073709551615"]), &["K", "M", "G", "-", "+"]);
    let choices =
        ["ring", "auto", "rail+mpi", "hierarchical-copy", "recursive-doubling:0-8K;ring:1M-", "tree:0-1"];
    let choices = Corpus::new(
        seeds(&choices),
        &["ring", "butterfly", "mpi", "nccl", "+", ";", ":", "-", "K", "0-", "all-to-all", "double-tree"],
    );
    #[allow(unused_mut, reason = "without these features nothing is added")]
    let mut readers =
        vec![reader("sizes", 20_000, sizes, size_of), reader("selections", 20_000, choices, choice)];
    {
        let tables = Corpus::new(
            tables().into_iter().map(String::into_bytes).collect(),
            &[
                "up_to",
                "any",
                "[shm.slice]",
                "[network]",
                "alpha_us = ",
                "nan",
                "inf",
                "\"8K\"",
                "{",
                "}",
                "[",
                "]",
                "\n",
            ],
        );
        readers.push(reader("tuning tables", 4_000, tables, table));
    }
    {
        let sources = ["digits", "idx:a", "text:a:b", "csv:x", "tfrecord:y", "images:z"];
        let sources = Corpus::new(seeds(&sources), &["digits", "idx", "csv", ":", "images"]);
        readers.push(reader("data sources", 10_000, sources, source));
    }
    readers
}

fn size_of(text: &str) -> Result<(), String> {
    let bytes = size::bytes(text).ok_or("no size")?;
    assert_eq!(size::bytes(&size::text(bytes)), Some(bytes));
    Ok(())
}

fn choice(text: &str) -> Result<(), String> {
    let rules = text.parse::<Rules>();
    if let Ok(rules) = &rules {
        assert_eq!(rules.to_string().parse().as_ref(), Ok(rules));
    }
    let choice: Choice = text.parse().map_err(|error| format!("{error}"))?;
    assert_eq!(choice.to_string().parse(), Ok(choice.clone()));
    assert!(rules.is_err() || matches!(choice, Choice::Rules(_)), "rules are a choice");
    Ok(())
}

fn source(text: &str) -> Result<(), String> {
    use unisono_data::Source;

    let source: Source = text.parse().map_err(|error| format!("{error}"))?;
    assert_eq!(source.to_string().parse::<Source>().unwrap(), source);
    Ok(())
}

fn tables() -> Vec<String> {
    use unisono::tuning::{Reach, Tuning, write};

    let sections = Reach::ALL.map(|reach| (reach, Tuning::default().section(reach).clone()));
    vec![write(&sections), write(&sections[..1]), write(&sections[4..])]
}

fn table(text: &str) -> Result<(), String> {
    use unisono::tuning::{Tuning, read, write};

    let sections = read(text).map_err(|error| error.to_string())?;
    // Numbers are written with a few digits, so only the written form survives a round trip.
    let written = write(&sections);
    let again = read(&written).unwrap_or_else(|error| panic!("{error}: {written}"));
    assert_eq!(write(&again), written);
    let _: Tuning = text.parse().expect("what is read as sections is a tuning");
    Ok(())
}
