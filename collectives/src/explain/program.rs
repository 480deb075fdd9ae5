//! Draws programs: a column for each rank, with one instruction after the other.

use std::collections::VecDeque;
use std::fmt::Display;

use super::{DRAWN_RANKS, chunks_text, header, title};
use crate::execution::Execution;
use crate::operation::Operation;
use crate::program::{Incoming, Instruction, Outgoing, Part, Program};
use crate::schedule::{Combine, Source};
use crate::world::Topology;

/// The largest number of instructions to draw: pipelined blocks repeat themselves from then on.
const DRAWN: usize = 24;

/// Draws the programs of all ranks (rank 0's first), with a description of the `execution` from which they result.
///
/// ```
/// use unisono_collectives::execution::{Capabilities, CompiledPlan};
/// use unisono_collectives::{Algorithm, Operation, Topology, explain_programs};
///
/// let world = Topology::single_node(2);
/// let compile = |rank| CompiledPlan::new(Algorithm::Ring, Operation::AllReduce, &world, rank).unwrap();
/// let shared = Capabilities { is_shared: true, ..Capabilities::default() };
/// let programs: Vec<_> = (0..2).map(|rank| compile(rank).program(1 << 20, 4, &shared)).collect();
/// let execution = compile(0).execution(1 << 20, 4, &shared);
/// let drawing = explain_programs("ring", Operation::AllReduce, &world, execution, &programs);
/// assert!(drawing.contains("a single pass over memory, in 4 blocks"));
/// ```
///
/// # Panics
/// If there is not one program for each rank.
pub fn explain_programs(
    name: &str,
    operation: Operation,
    topology: &Topology,
    execution: Execution,
    programs: &[Program],
) -> String {
    let ranks = topology.ranks();
    assert_eq!(programs.len(), ranks, "one program for each rank");
    let title = title(name, operation, topology) + ", carried out";
    let numbered = programs.iter().enumerate().take(DRAWN_RANKS);
    let columns: Vec<_> = numbered.map(|(rank, program)| column(format!("rank {rank}"), program)).collect();
    [header(&title, &kind(execution), ranks), table(&columns), legend(&programs[0])].join("\n")
}

fn kind(execution: Execution) -> String {
    let blocks = match execution.blocks() {
        1 => "at once".to_owned(),
        blocks => format!("in {blocks} blocks"),
    };
    match execution {
        Execution::Eager => "eager messages: each is sent as early as its data is there".to_owned(),
        Execution::ByVendor => "messages; in nodes MPI's own collectives in their place".to_owned(),
        Execution::Messages { .. } => format!("messages, {blocks}"),
        Execution::SinglePass { .. } => {
            format!("a single pass over memory, {blocks}: each rank reduces its own chunks of all buffers")
        }
        Execution::Moves { .. } => {
            format!("a single pass over memory, {blocks}: each rank moves its own chunk between buffers")
        }
        Execution::Pipelined { .. } => {
            format!(
                "pipelined, {blocks}: while one is between nodes, others are reduced and distributed inside"
            )
        }
    }
}

fn legend(program: &Program) -> String {
    let over_memory = program.instructions.iter().any(|(_, instruction)| *instruction == Instruction::Sync);
    let signs = if over_memory {
        "+c1←3 reduces chunk 1 of rank 3's buffer into its own   =c1←3 copies it   c1→3 writes it there   c3↔3 swaps chunk 3 with a chunk of rank 3's buffer"
    } else {
        "c1→3 sends chunk 1 to rank 3   +c1←3 reduces it in   =c1←3 puts it in place"
    };
    let each = program.blocks / program.rounds;
    let blocks = if each > 1 { "   c1.2 is block 2 of chunk 1" } else { "" };
    format!("{signs}{blocks}\n")
}

/// Returns the name of a rank, and its instructions in the first round. Lends are omitted, since they correspond to accesses of others.
fn column(name: String, program: &Program) -> Vec<String> {
    let has_blocks = program.blocks > program.rounds;
    let text = |Part { chunks, block }: Part| {
        let chunks = chunks_text(program.chunk_count, chunks);
        if has_blocks { format!("{chunks}.{block}") } else { chunks }
    };
    let sent = |send: &Outgoing| {
        let own = if send.source == Source::Original { "own " } else { "" };
        format!("{own}{}→{}", text(send.part), send.to)
    };
    let combined = |combine: Combine, part: Part, from: &dyn Display| {
        let sign = if combine.reduces() { '+' } else { '=' };
        format!("{sign}{}←{from}", text(part))
    };
    let received = |receive: &Incoming| combined(receive.combine, receive.part, &receive.from);
    let mut announced = VecDeque::new();
    let lines = program.instructions.iter().filter_map(|(_, instruction)| {
        Some(match instruction {
            Instruction::Exchange(send, receive) => {
                let halves = send.iter().map(sent).chain(receive.iter().map(received));
                halves.collect::<Vec<_>>().join(" ")
            }
            Instruction::Post(send, receive) => {
                announced.push_back(*receive);
                sent(send.as_ref()?)
            }
            Instruction::Complete => received(&announced.pop_front()??),
            Instruction::Send(send) => sent(send),
            Instruction::Lend { .. } => return None,
            Instruction::Sync => "sync".to_owned(),
            Instruction::Read { of, own, combine, .. } => combined(*combine, *own, of),
            Instruction::Write { to, own, .. } => format!("{}→{to}", text(*own)),
            Instruction::Swap { with, own, .. } => format!("{}↔{with}", text(*own)),
            Instruction::Vendor { steps, .. } => format!("MPI in place of the next {steps}"),
        })
    });
    std::iter::once(name).chain(lines).collect()
}

/// Joins columns, each as wide as its widest cell.
fn table(columns: &[Vec<String>]) -> String {
    let height = columns.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: &Vec<String>| {
        column.iter().take(DRAWN + 1).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let row = |row: usize| {
        let cell = |column: &Vec<String>| {
            let (text, width) = (column.get(row).map_or("", String::as_str), width(column));
            format!("{text:width$}")
        };
        columns.iter().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let more = height.saturating_sub(DRAWN + 1);
    let rest = if more > 0 { format!("… and {more} more\n") } else { String::new() };
    (0..height.min(DRAWN + 1)).map(row).collect::<String>() + &rest
}
