//! Draws executions: a column for each rank, with one act after the other.

use std::fmt::Display;

use super::{DRAWN_RANKS, chunks_text};
use crate::execution::{Execution, Half, LaneAct, Move};
use crate::operation::Operation;
use crate::plan::Plan;
use crate::schedule::{Chunks, Combine, Step};
use crate::world::{Rank, Topology};

/// The largest number of acts to draw: lanes repeat themselves from then on.
const DRAWN_ACTS: usize = 24;

/// Draws how all ranks (rank 0's first) execute their plans.
///
/// ```
/// use unisono_collectives::execution::{Capabilities, CompiledPlan};
/// use unisono_collectives::{Algorithm, Operation, Topology, explain_executions};
///
/// let world = Topology::single_node(2);
/// let compiled: Vec<_> = (0..2)
///     .map(|rank| CompiledPlan::new(Algorithm::Ring, Operation::AllReduce, &world, rank).unwrap())
///     .collect();
/// let shared = Capabilities { is_shared: true, ..Capabilities::default() };
/// let executions: Vec<_> = compiled.iter().map(|plan| plan.execution(1 << 20, 4, &shared)).collect();
/// let plans: Vec<_> = compiled.iter().map(|plan| plan.plan().clone()).collect();
/// let drawing = explain_executions("ring", Operation::AllReduce, &world, &plans, &executions);
/// assert!(drawing.contains("a single pass over memory, in 4 blocks"));
/// ```
///
/// # Panics
/// If there is not one plan and one execution for each rank.
pub fn explain_executions(
    name: &str,
    operation: Operation,
    topology: &Topology,
    plans: &[Plan],
    executions: &[Execution],
) -> String {
    let ranks = topology.ranks();
    assert_eq!([plans.len(), executions.len()], [ranks; 2], "one plan and one execution for each rank");
    let places = if topology.nodes() > 1 { format!(" on {} nodes", topology.nodes()) } else { String::new() };
    let title = format!("{name}: {operation} over {ranks} ranks{places}, carried out");
    let rule = "─".repeat(title.chars().count());
    let columns: Vec<_> = match executions[0] {
        // All ranks share one timetable.
        Execution::Lanes(_) => vec![column("all ranks".to_owned(), 0, &plans[0], &executions[0])],
        _ => (0..ranks.min(DRAWN_RANKS))
            .map(|rank| column(format!("rank {rank}"), rank, &plans[rank], &executions[rank]))
            .collect(),
    };
    let hidden = if ranks > DRAWN_RANKS && columns.len() > 1 {
        format!("(ranks {DRAWN_RANKS} to {} are not drawn)\n", ranks - 1)
    } else {
        String::new()
    };
    [
        format!("{title}\n{rule}\n{}\n{hidden}", kind(&executions[0])),
        table(&columns),
        legend(&executions[0]).to_owned(),
    ]
    .join("\n")
}

fn kind(execution: &Execution) -> String {
    let blocks = match execution.blocks() {
        1 => "at once".to_owned(),
        blocks => format!("in {blocks} blocks"),
    };
    match execution {
        Execution::Eager(_) => "eager steps: each send as early as what it reads is there".to_owned(),
        Execution::Messages { by_vendor: true, .. } => {
            "messages; in nodes MPI's own collectives in their place".to_owned()
        }
        Execution::Messages { .. } => format!("messages, {blocks}"),
        Execution::SinglePass { .. } => {
            format!("a single pass over memory, {blocks}: each rank reduces its own chunks of all buffers")
        }
        Execution::Moves(_) => {
            format!("a single pass over memory, {blocks}: each rank moves its own part between buffers")
        }
        Execution::Lanes(_) => {
            format!("lanes, {blocks}: while one is between nodes, others are reduced and spread inside")
        }
    }
}

fn legend(execution: &Execution) -> &'static str {
    match execution {
        Execution::Eager(_) | Execution::Messages { .. } => {
            "c1→3 sends chunk 1 to rank 3   +c1←3 reduces it in   =c1←3 puts it in place\n"
        }
        Execution::SinglePass { .. } => {
            "+c1←3 reduces chunk 1 of rank 3's buffer into its own   c1→3 writes the result there\n"
        }
        Execution::Moves(_) => {
            "=p1←3 copies part 1 from rank 3's buffer   p1→3 copies it there   p3↔3 changes part 3 here for this rank's part there\n"
        }
        Execution::Lanes(_) => "a block is a part of each chunk\n",
    }
}

/// A rank's name, and its acts.
fn column(name: String, rank: Rank, plan: &Plan, execution: &Execution) -> Vec<String> {
    let acts: Vec<_> = match execution {
        Execution::Eager(steps) => steps.iter().map(|step| of_half(plan, step.half)).collect(),
        Execution::Messages { .. } => {
            plan.flattened().steps().iter().map(|step| of_step(plan, step)).collect()
        }
        Execution::SinglePass { direct, .. } => {
            let own = direct.owned[rank];
            let reads = direct.from.iter().map(|&from| received(plan, own, from, Combine::Reduce));
            reads.chain(direct.from.iter().map(|&to| sent(plan, own, to))).collect()
        }
        Execution::Moves(moves) => moves.moves.iter().map(|one| of_move(rank, one)).collect(),
        Execution::Lanes(timetable) => timetable.acts.iter().map(of_lane).collect(),
    };
    std::iter::once(name).chain(acts).collect()
}

fn sent(plan: &Plan, chunks: Chunks, to: Rank) -> String {
    format!("{}→{to}", chunks_text(plan, chunks))
}

fn received(plan: &Plan, chunks: Chunks, from: impl Display, combine: Combine) -> String {
    let sign = if combine == Combine::Reduce { '+' } else { '=' };
    format!("{sign}{}←{from}", chunks_text(plan, chunks))
}

fn of_step(plan: &Plan, step: &Step) -> String {
    let send = step.send.map(|send| sent(plan, send.chunks, send.to));
    let receive = step.receive.map(|receive| received(plan, receive.chunks, receive.from, receive.combine));
    send.into_iter().chain(receive).collect::<Vec<_>>().join(" ")
}

fn of_half(plan: &Plan, half: Half) -> String {
    match half {
        Half::Send { to, chunks } => sent(plan, chunks, to),
        Half::Receive { from, chunks, combine } => received(plan, chunks, from, combine),
        Half::Original { to, combine, .. } => received(plan, to, "own", combine),
    }
}

fn of_move(rank: Rank, one: &Move) -> String {
    match one {
        Move::Take { from } => format!("=p{rank}←{from}"),
        Move::Give { to } => format!("p{rank}→{to}"),
        Move::Swap { with } => format!("p{with}↔{with}"),
    }
}

fn of_lane(act: &LaneAct) -> String {
    match act {
        LaneAct::Inward { block } => format!("block {block} is reduced in the node"),
        LaneAct::Post { step, block } => format!("    block {block} is posted in step {step}"),
        LaneAct::Complete { step, block } => format!("    block {block} is completed in step {step}"),
        LaneAct::Outward { block } => format!("        block {block} is spread in the node"),
    }
}

/// Joins columns, each as wide as its widest cell.
fn table(columns: &[Vec<String>]) -> String {
    let height = columns.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: &Vec<String>| {
        column.iter().take(DRAWN_ACTS + 1).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let row = |row: usize| {
        let cell = |column: &Vec<String>| {
            let (text, width) = (column.get(row).map_or("", String::as_str), width(column));
            format!("{text:width$}")
        };
        columns.iter().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let more = height.saturating_sub(DRAWN_ACTS + 1);
    let rest = if more > 0 { format!("… and {more} more\n") } else { String::new() };
    (0..height.min(DRAWN_ACTS + 1)).map(row).collect::<String>() + &rest
}
