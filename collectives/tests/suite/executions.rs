//! However a plan is carried out, the verifier finds nothing wrong with it, in every small world; and it objects to what is wrong.

use std::sync::Arc;

use unisono_collectives::execution::{Capabilities, CompiledPlan, EagerStep, Execution, Half, LaneAct, Move};
use unisono_collectives::{Algorithm, Defect, Operation, Topology, verify_executions};

/// Memory that all share, a network between nodes, and messages alone.
const EVERYWHERE: [Capabilities; 4] = {
    let messages = Capabilities {
        is_shared: false,
        has_lanes: false,
        eager_bytes: 4096,
        segment_bytes: 65_280,
        accumulates: false,
        by_vendor: false,
    };
    let shared = Capabilities { is_shared: true, ..messages };
    let wide = Capabilities { accumulates: true, ..shared };
    [messages, shared, wide, Capabilities { has_lanes: true, ..messages }]
};

/// Elements of four bytes: none, fewer than ranks, eager ones, one block of each chunk, and several.
const COUNTS: [usize; 6] = [0, 3, 1000, 20_000, 400_000, 1_500_000];

type World = (Vec<CompiledPlan>, Operation);

fn world(algorithm: Algorithm, operation: Operation, topology: &Topology) -> Option<World> {
    let compile = |rank| CompiledPlan::new(algorithm, operation, topology, rank);
    Some(((0..topology.ranks()).map(compile).collect::<Option<_>>()?, operation))
}

fn executions((compiled, _): &World, count: usize, capabilities: &Capabilities) -> Vec<Execution> {
    compiled.iter().map(|plan| plan.execution(count, 4, capabilities)).collect()
}

fn objections((compiled, operation): &World, executions: &[Execution]) -> Vec<Defect> {
    verify_executions(executions, compiled, *operation)
}

/// What an execution is, and whether it has several blocks.
fn kind(execution: &Execution) -> (&'static str, bool) {
    let kind = match execution {
        Execution::Eager(_) => "eager",
        Execution::Messages { .. } => "messages",
        Execution::SinglePass { .. } => "single pass",
        Execution::Moves(_) => "moves",
        Execution::Lanes(_) => "lanes",
    };
    (kind, execution.blocks() > 1)
}

fn topologies() -> impl Iterator<Item = Topology> {
    let flat = (1..=9).map(Topology::single_node);
    let even = [(2, 1), (2, 2), (2, 3), (3, 2), (4, 1), (4, 2), (8, 1)];
    let even = even.map(|(nodes, local)| Topology::uniform(nodes, local));
    let uneven = [&[3, 1][..], &[1, 3], &[2, 1, 1], &[2, 1, 1, 1]].map(Topology::from_node_sizes);
    flat.chain(even).chain(uneven).chain([Topology::from_node_of(vec![0, 1, 0, 1])])
}

#[test]
fn every_execution_in_every_small_world_is_right() {
    let mut seen = Vec::new();
    for topology in topologies() {
        for algorithm in Algorithm::ALL {
            for operation in Operation::all(topology.ranks() / 2) {
                let Some(world) = world(algorithm, operation, &topology) else { continue };
                for capabilities in EVERYWHERE {
                    for count in COUNTS {
                        let executions = executions(&world, count, &capabilities);
                        let alike = executions.iter().map(kind).collect::<Vec<_>>();
                        let name = format!("{algorithm}, {operation:?}, {topology:?}, {count} elements");
                        assert!(alike.iter().all(|kind| *kind == alike[0]), "{name}: {alike:?}");
                        let defects = objections(&world, &executions);
                        assert!(defects.is_empty(), "{name}, {:?}: {}", alike[0], defects[0]);
                        if !seen.contains(&alike[0]) {
                            seen.push(alike[0]);
                        }
                    }
                }
            }
        }
    }
    seen.sort_unstable();
    let both = |kind| [(kind, false), (kind, true)];
    let expected = [&[("eager", false)][..], &[("lanes", true)], &both("messages"), &both("moves")].concat();
    assert_eq!(seen, [expected, both("single pass").to_vec()].concat());
}

/// Worlds whose executions are of each kind, one call each.
fn samples() -> Vec<(World, Vec<Execution>)> {
    let [_, shared, _, lanes] = EVERYWHERE;
    let (four, nodes) = (Topology::single_node(4), Topology::uniform(2, 2));
    let sample = |algorithm, operation, topology: &Topology, count, capabilities: &Capabilities| {
        let world = world(algorithm, operation, topology).unwrap();
        let executions = executions(&world, count, capabilities);
        assert_eq!(objections(&world, &executions), []);
        (world, executions)
    };
    use Operation::{AllGather, AllReduce, AllToAll, Broadcast};
    vec![
        sample(Algorithm::RecursiveDoubling, AllReduce, &four, 8, &shared),
        sample(Algorithm::AllToAll, AllReduce, &four, 8, &shared),
        sample(Algorithm::Ring, AllReduce, &four, 8, &shared),
        sample(Algorithm::Ring, AllReduce, &four, 1_500_000, &shared),
        sample(Algorithm::RoundRobin, AllReduce, &four, 1_500_000, &shared),
        sample(Algorithm::RoundRobin, AllGather, &four, 400_000, &shared),
        sample(Algorithm::RoundRobin, AllToAll, &four, 400_000, &shared),
        sample(Algorithm::MasterWorker, Broadcast { root: 1 }, &four, 400_000, &shared),
        sample(Algorithm::HierarchicalCopy, AllReduce, &nodes, 100_000, &lanes),
        sample(Algorithm::Rail, AllReduce, &nodes, 100_000, &lanes),
    ]
}

/// How many acts an execution lists.
fn length(execution: &Execution) -> usize {
    match execution {
        Execution::Eager(steps) => steps.len(),
        Execution::Messages { .. } => 0,
        Execution::SinglePass { direct, .. } => direct.from.len(),
        Execution::Moves(moves) => moves.moves.len(),
        Execution::Lanes(timetable) => timetable.acts.len(),
    }
}

fn remove(execution: &mut Execution, place: usize) {
    match execution {
        Execution::Eager(steps) => drop(steps.remove(place)),
        Execution::Messages { .. } => {}
        Execution::SinglePass { direct, .. } => {
            Arc::make_mut(direct).from.remove(place);
        }
        Execution::Moves(moves) => drop(moves.moves.remove(place)),
        Execution::Lanes(timetable) => drop(timetable.acts.remove(place)),
    }
}

/// Whether an act is nothing to a rank: not all of a node have steps between nodes.
fn is_idle((compiled, _): &World, rank: usize, execution: &Execution, place: usize) -> bool {
    let has_far_phase = || compiled[rank].plan().phases().iter().any(|phase| !phase.is_in_node());
    match execution {
        Execution::Lanes(timetable) => match timetable.acts[place] {
            LaneAct::Post { .. } | LaneAct::Complete { .. } => !has_far_phase(),
            LaneAct::Inward { .. } | LaneAct::Outward { .. } => false,
        },
        _ => false,
    }
}

#[test]
fn what_is_left_out_is_seen() {
    for (number, (world, executions)) in samples().iter().enumerate() {
        for rank in 0..executions.len() {
            for place in 0..length(&executions[rank]) {
                if is_idle(world, rank, &executions[rank], place) {
                    continue;
                }
                let mut mutant = executions.clone();
                remove(&mut mutant[rank], place);
                let defects = objections(world, &mutant);
                assert!(!defects.is_empty(), "sample {number}, rank {rank}: act {place} left out");
            }
        }
    }
}

#[test]
fn a_rank_with_other_blocks_or_another_kind_is_seen() {
    for (number, (world, executions)) in samples().iter().enumerate() {
        let step_by_step = Execution::Messages { blocks: executions[0].blocks() + 1, by_vendor: false };
        let mut mutant = executions.clone();
        mutant[1] = step_by_step;
        assert!(!objections(world, &mutant).is_empty(), "sample {number}");
    }
}

/// Swapped neighbours may do no harm; of those that do, some give another sum, some wait for ever, and some the same sum of other bits.
#[test]
fn another_order_is_seen_where_it_matters() {
    let mut kinds = [0; 3];
    for (world, executions) in samples() {
        for rank in 0..executions.len() {
            for place in 1..length(&executions[rank]) {
                let mut mutant = executions.clone();
                match &mut mutant[rank] {
                    Execution::Eager(steps) => steps.swap(place - 1, place),
                    Execution::SinglePass { direct, .. } => {
                        Arc::make_mut(direct).from.swap(place - 1, place);
                    }
                    Execution::Lanes(timetable) => timetable.acts.swap(place - 1, place),
                    Execution::Messages { .. } | Execution::Moves(_) => continue,
                }
                let defects = objections(&world, &mutant);
                let has = |kind: fn(&Defect) -> bool| usize::from(defects.iter().any(kind));
                kinds[0] += has(|defect| matches!(defect, Defect::OtherOrder { .. }));
                kinds[1] +=
                    has(|defect| matches!(defect, Defect::Deadlock { .. } | Defect::Unmatched { .. }));
                kinds[2] += has(|defect| matches!(defect, Defect::Missing { .. } | Defect::Foreign { .. }));
            }
        }
    }
    assert!(kinds.iter().all(|&count| count > 5), "{kinds:?}");
}

#[test]
fn what_is_sent_before_it_is_there_is_seen() {
    let topology = Topology::single_node(4);
    let world = world(Algorithm::Ring, Operation::AllReduce, &topology).unwrap();
    let mut executions = executions(&world, 8, &EVERYWHERE[1]);
    let Execution::Eager(steps) = &mut executions[2] else { panic!("it is short") };
    // All sends at once, as if none of them read what was received.
    steps.sort_by_key(|EagerStep { half, .. }| !matches!(half, Half::Send { .. }));
    let defects = objections(&world, &executions);
    assert!(defects.iter().any(|defect| matches!(defect, Defect::Missing { .. })), "{defects:?}");
}

#[test]
fn two_ranks_in_one_place_are_a_race() {
    let topology = Topology::single_node(4);
    let shared = &EVERYWHERE[1];
    let gather = world(Algorithm::RoundRobin, Operation::AllGather, &topology).unwrap();
    let mut mutant = executions(&gather, 400_000, shared);
    let Execution::Moves(moves) = &mut mutant[0] else { panic!("it only moves") };
    moves.moves[0] = Move::Swap { with: 1 };
    let defects = objections(&gather, &mutant);
    assert!(defects.iter().any(|defect| matches!(defect, Defect::Race { .. })), "{defects:?}");
}

#[test]
fn a_buffer_that_is_partitioned_differently_is_seen() {
    let topology = Topology::single_node(4);
    let reduction = world(Algorithm::RoundRobin, Operation::AllReduce, &topology).unwrap();
    let mut mutant = executions(&reduction, 400_000, &EVERYWHERE[1]);
    let Execution::SinglePass { direct, .. } = &mut mutant[0] else { panic!("it is a single pass") };
    Arc::make_mut(direct).owned.swap(1, 2);
    let defects = objections(&reduction, &mutant);
    assert!(defects.iter().any(|defect| matches!(defect, Defect::WrongChunk { .. })), "{defects:?}");
}

#[test]
fn a_block_that_is_begun_before_it_is_reduced_is_seen() {
    let world = world(Algorithm::Rail, Operation::AllReduce, &Topology::uniform(2, 2)).unwrap();
    let mut executions = executions(&world, 100_000, &EVERYWHERE[3]);
    for execution in &mut executions {
        let Execution::Lanes(timetable) = execution else { panic!("there are lanes") };
        let post = timetable.acts.iter().position(|act| matches!(act, LaneAct::Post { .. })).unwrap();
        let early = timetable.acts.remove(post);
        timetable.acts.insert(0, early);
    }
    let defects = objections(&world, &executions);
    assert!(defects.iter().any(|defect| matches!(defect, Defect::Missing { .. })), "{defects:?}");
}
