//! Mutants of programs.

use unisono_collectives::program::{Incoming, Instruction, Outgoing, Part, Place, Program};
use unisono_collectives::{Chunks, Combine, Rank, Source};

/// Returns the next part. A part of several chunks is returned unchanged.
fn next_part(part: Part, chunk_count: usize) -> Part {
    match part.chunks.count() {
        1 => Part { chunks: Chunks::one((part.chunks.start + 1) % chunk_count), ..part },
        _ => part,
    }
}

fn others(combine: Combine) -> impl Iterator<Item = Combine> {
    let all = [Combine::Replace, Combine::Reduce, Combine::ReduceBefore];
    all.into_iter().filter(move |other| *other != combine)
}

/// Returns the mutants of one instruction. Some of them are equivalent to it.
fn changed(instruction: Instruction, rank: Rank, ranks: usize, chunk_count: usize) -> Vec<Instruction> {
    use Instruction::{Complete, Exchange, Lend, Post, Read, Send, Swap, Sync, Vendor, Write};
    // The next rank other than the executing one.
    let next = |other: Rank| match (other + 1) % ranks {
        next if next == rank => (next + 1) % ranks,
        next => next,
    };
    let moved = |part: Part| next_part(part, chunk_count);
    let sends = |send: Outgoing| {
        let source = if send.source == Source::Current { Source::Original } else { Source::Current };
        let part = moved(send.part);
        [Outgoing { to: next(send.to), ..send }, Outgoing { part, ..send }, Outgoing { source, ..send }]
    };
    let receives = |receive: Incoming| {
        let (part, from) = (moved(receive.part), next(receive.from));
        let combined = others(receive.combine).map(move |combine| Incoming { combine, ..receive });
        [Incoming { from, ..receive }, Incoming { part, ..receive }].into_iter().chain(combined)
    };
    type Make = fn(Option<Outgoing>, Option<Incoming>) -> Instruction;
    let halves = |send: Option<Outgoing>, receive: Option<Incoming>, make: Make| {
        let sends = send.into_iter().flat_map(sends).map(|send| make(Some(send), receive));
        let receives = receive.into_iter().flat_map(receives).map(|receive| make(send, Some(receive)));
        sends.chain(receives).chain([make(None, receive), make(send, None)]).collect()
    };
    let mut changed = match instruction {
        Exchange(send, receive) => halves(send, receive, Exchange),
        Post(send, receive) => halves(send, receive, Post),
        Send(outgoing) => sends(outgoing).map(Send).to_vec(),
        Complete | Sync | Vendor { .. } => Vec::new(),
        Lend { to, part, read, written } => vec![
            Lend { to: next(to), part, read, written },
            Lend { to, part: moved(part), read, written },
            Lend { to, part, read: !read, written },
            Lend { to, part, read, written: !written },
        ],
        Read { of, theirs, own, combine } => {
            let others = others(combine).map(|combine| Read { of, theirs: own, own, combine });
            let moved = [
                Read { of: next(of), theirs, own, combine },
                Read { of, theirs: moved(theirs), own, combine },
            ];
            moved.into_iter().chain(others).collect()
        }
        Write { to, theirs, own } => {
            vec![Write { to: next(to), theirs, own }, Write { to, theirs: moved(theirs), own }]
        }
        Swap { with, theirs, own } => {
            vec![Swap { with: next(with), theirs, own }, Swap { with, theirs: moved(theirs), own }]
        }
    };
    changed.retain(|mutant| *mutant != instruction);
    changed
}

/// Returns all mutants with one change: an instruction dropped, duplicated, swapped with the next one, or changed.
pub fn mutants(programs: &[Program]) -> Vec<(String, Vec<Program>)> {
    let mut mutants = Vec::new();
    for (rank, program) in programs.iter().enumerate() {
        let mut add = |name: String, instructions: Vec<(Place, Instruction)>| {
            let mut mutant = programs.to_vec();
            mutant[rank].instructions = instructions;
            mutants.push((format!("rank {rank}, {name}"), mutant));
        };
        let all = &program.instructions;
        for (at, &instruction) in all.iter().enumerate() {
            let (before, after) = (&all[..at], &all[at + 1..]);
            add(format!("{at} left out"), [before, after].concat());
            add(format!("{at} doubled"), [before, &[instruction; 2], after].concat());
            if let [next, rest @ ..] = after {
                add(format!("{at} after the next"), [before, &[*next, instruction], rest].concat());
            }
            let (place, instruction) = instruction;
            for mutant in changed(instruction, rank, programs.len(), program.chunk_count) {
                add(format!("{at} is {mutant:?}"), [before, &[(place, mutant)], after].concat());
            }
        }
    }
    mutants
}
