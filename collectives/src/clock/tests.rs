//! Compares the clock with closed forms, and with itself.

use super::*;
use crate::model::{Link, Range};
use crate::program::Program;
use crate::schedule::{Chunks, Schedule, Step};

/// Powers of two, for which the times below are exact.
const ALPHA_US: f64 = 2.0;
const GB_PER_S: f64 = 1.024;
/// The time of a KiB.
const KIB_US: f64 = 1.0;

fn uniform() -> Machine {
    let link = Link::uniform(ALPHA_US, GB_PER_S).unwrap();
    Machine {
        intra: link.clone(),
        one_pass: None,
        inter: link,
        segment_bytes: None,
        staging_bytes: None,
        cores: usize::MAX,
        hand_over_us: 0.0,
        eager_bytes: 1024,
        step_us: 0.0,
        call_us: 0.0,
    }
}

/// Returns a machine on which messages within a node take no time.
fn network_only() -> Machine {
    Machine { intra: Link::uniform(0.0, 1e12).unwrap(), ..uniform() }
}

fn all_reduce(algorithm: Algorithm, topology: &Topology, machine: &Machine, size_bytes: usize) -> f64 {
    predict(algorithm, Operation::AllReduce, topology, machine, size_bytes, 4).unwrap().time_us
}

/// Returns when each rank finishes its plan, if it is carried out by messages and every rank is simulated.
fn finish_us(
    plans: &[Plan],
    topology: &Topology,
    machine: &Machine,
    (count, element_size_bytes): (usize, usize),
) -> Result<Vec<f64>, Unpredictable> {
    let program = |rank: Rank| Program::of_plan(&plans[rank]);
    let world = World::folded(program, topology, topology.ranks(), count, LIMITS)?;
    Ok(simulate(&world, machine, (count, element_size_bytes))?.finish_us)
}

#[track_caller]
fn close(one: f64, other: f64) {
    assert!((one - other).abs() <= 1e-6 * other.abs(), "{one} and not {other}");
}

#[test]
fn times_match_closed_forms_on_a_uniform_machine() {
    for p in [2_usize, 4, 8, 64] {
        let world = Topology::single_node(p);
        let (ranks, log) = (p as f64, f64::from(p.ilog2()));
        let time = |algorithm| all_reduce(algorithm, &world, &uniform(), 64 << 10);
        let whole_us = 64.0 * KIB_US;
        let in_parts_us = 2.0 * (ranks - 1.0) / ranks * whole_us;
        close(time(Algorithm::Ring), 2.0 * (ranks - 1.0) * ALPHA_US + in_parts_us);
        close(time(Algorithm::RoundRobin), 2.0 * (ranks - 1.0) * ALPHA_US + in_parts_us);
        close(time(Algorithm::Butterfly), 2.0 * log * ALPHA_US + in_parts_us);
        // Each rank copies long data that it also reduces into.
        close(time(Algorithm::RecursiveDoubling), log * (ALPHA_US + 2.0 * whole_us));
        close(time(Algorithm::Tree), 2.0 * log * (ALPHA_US + whole_us));
        close(time(Algorithm::MasterWorker), 2.0 * (ranks - 1.0) * (ALPHA_US + whole_us));
    }
    let one = Topology::single_node(1);
    assert_eq!(all_reduce(Algorithm::Ring, &one, &uniform(), 1024), 0.0);
    let gather = Operation::Gather { root: 0 };
    let alone = predict(Algorithm::MasterWorker, gather, &one, &Machine::default(), 1 << 20, 4).unwrap();
    assert_eq!(alone.time_us, 0.0);
}

#[test]
fn steps_and_calls_add_their_own_time() {
    let machine = Machine { step_us: 0.5, call_us: 8.0, ..uniform() };
    let world = Topology::single_node(8);
    let bare = all_reduce(Algorithm::RecursiveDoubling, &world, &uniform(), 1024);
    close(all_reduce(Algorithm::RecursiveDoubling, &world, &machine, 1024), bare + 3.0 * 0.5 + 8.0);
}

#[test]
fn reducing_has_its_own_rate() {
    let range = Range {
        up_to_bytes: usize::MAX,
        alpha_us: 0.0,
        move_gb_per_s: 4.0 * GB_PER_S,
        reduce_gb_per_s: GB_PER_S,
    };
    let machine = Machine { intra: Link::new(vec![range]).unwrap(), ..uniform() };
    let world = Topology::single_node(2);
    // Half of the array is reduced, and half of it copied.
    close(all_reduce(Algorithm::Ring, &world, &machine, 2048), KIB_US + KIB_US / 4.0);
}

#[test]
fn direct_all_reduce_takes_one_pass_where_memory_is_shared() {
    let machine = Machine { one_pass: Some(Link::uniform(1.0, GB_PER_S).unwrap()), ..uniform() };
    let time = |algorithm, topology: &Topology| all_reduce(algorithm, topology, &machine, 4096);
    let (node, nodes) = (Topology::single_node(4), Topology::uniform(2, 2));
    // Three other ranks, and a KiB of each.
    close(time(Algorithm::RoundRobin, &node), 3.0 * (1.0 + KIB_US));
    close(time(Algorithm::Ring, &node), 6.0 * (ALPHA_US + KIB_US));
    close(time(Algorithm::RoundRobin, &nodes), all_reduce(Algorithm::RoundRobin, &nodes, &uniform(), 4096));
    // On half as many cores as ranks.
    let machine = Machine { cores: 2, ..machine };
    close(all_reduce(Algorithm::RoundRobin, &node, &machine, 4096), 6.0 * (1.0 + KIB_US));
}

#[test]
fn sender_of_a_staged_message_copies_it_while_the_receiver_works() {
    let machine = Machine { staging_bytes: Some(1024), ..uniform() };
    let world = Topology::single_node(2);
    let time = |algorithm, machine: &Machine, bytes| all_reduce(algorithm, &world, machine, bytes);
    // Two exchanges of halves.
    let exchange_us = |bytes: usize| time(Algorithm::Butterfly, &machine, 2 * bytes) / 2.0;
    close(exchange_us(2048), 2.0 * KIB_US + ALPHA_US + 2.0 * KIB_US);
    // The time of a short message includes its copy.
    close(exchange_us(1024), ALPHA_US + KIB_US);
    // A copy is read in place, also if the sender has it anyway.
    for algorithm in [Algorithm::RecursiveDoubling, Algorithm::AllToAll] {
        close(time(algorithm, &machine, 2048), time(algorithm, &uniform(), 2048));
    }
    // One message at a time.
    close(time(Algorithm::Tree, &machine, 2048), time(Algorithm::Tree, &uniform(), 2048));
    // Ranks that share a core wait for each other's turn twice in each message, after every KiB.
    let one = |machine: &Machine| Machine { cores: 1, hand_over_us: 4.0, ..machine.clone() };
    let [staged_us, plain_us] =
        [&machine, &uniform()].map(|machine| time(Algorithm::Tree, &one(machine), 2048));
    close(staged_us, plain_us + 2.0 * (2.0 * KIB_US + 4.0 * 4.0));
    // A message that staging memory can hold needs none of these turns, and its sender does not wait for its end.
    let roomy = Machine { staging_bytes: Some(2048), ..machine };
    close(time(Algorithm::Tree, &one(&roomy), 2048), staged_us - 2.0 * 4.0 * 4.0 - 4.0);
}

#[test]
fn oversubscribed_ranks_wait_for_the_work_of_all() {
    let world = Topology::single_node(4);
    let time = |algorithm, cores| all_reduce(algorithm, &world, &Machine { cores, ..uniform() }, 1024);
    let each_us = ALPHA_US + KIB_US;
    // Eight messages, in pairs one after the other; or six, one at a time.
    close(time(Algorithm::RecursiveDoubling, 4), 2.0 * each_us);
    close(time(Algorithm::RecursiveDoubling, 1), 8.0 * each_us);
    // The root continues once it has copied a message, and the others receive at the same time.
    close(time(Algorithm::MasterWorker, 4), 4.0 * each_us + 2.0 * KIB_US);
    close(time(Algorithm::MasterWorker, 1), 6.0 * (each_us + KIB_US));
    // One rank represents all.
    close(time(Algorithm::Ring, 1), 24.0 * (ALPHA_US + KIB_US / 4.0));
}

#[test]
fn context_switches_take_time() {
    let machine = Machine { cores: 1, hand_over_us: 4.0, ..uniform() };
    let (two, three) = (Topology::single_node(2), Topology::single_node(3));
    let (algorithm, short_us, long_us) =
        (Algorithm::RecursiveDoubling, ALPHA_US + KIB_US, ALPHA_US + 2.0 * KIB_US);
    // Rank 0 sends and waits, rank 1 sends and receives, rank 0 receives.
    close(all_reduce(algorithm, &two, &machine, 1024), 2.0 * 4.0 + 2.0 * short_us);
    // Each copies its message, and rank 1 must also detect that its message was received.
    close(all_reduce(algorithm, &two, &machine, 2048), 3.0 * 4.0 + 2.0 * (long_us + 2.0 * KIB_US));
    // Rank 0 waits, 1 sends and waits, 2 sends and waits, 0 receives both and sends twice, 1 and 2 receive. Each copies its messages.
    close(all_reduce(Algorithm::MasterWorker, &three, &machine, 1024), 5.0 * 4.0 + 4.0 * (short_us + KIB_US));
    // On two cores, ranks 0 and 2 share one, and rank 1 detects messages immediately on its own.
    let machine = Machine { cores: 2, ..machine };
    close(all_reduce(Algorithm::MasterWorker, &three, &machine, 1024), 3.0 * (4.0 + short_us + KIB_US));
    // One pass: all buffers are open when rank 1 has opened its own. It works and closes, then rank 0 does, and rank 1 detects that.
    let pass = Some(Link::uniform(1.0, GB_PER_S).unwrap());
    let machine = Machine { one_pass: pass, cores: 1, ..machine };
    close(all_reduce(Algorithm::RoundRobin, &two, &machine, 2048), 3.0 * 4.0 + 2.0 * (1.0 + KIB_US));
}

#[test]
fn predictions_for_oversubscribed_ranks_are_near_measurements() {
    // 8 bytes in registered memory, processes, an AMD EPYC of 2025 with 2 cores: median times of the slowest rank.
    let machine = Machine {
        intra: Link::uniform(0.4, 5.0).unwrap(),
        one_pass: Some(Link::uniform(0.4, 5.0).unwrap()),
        cores: 2,
        hand_over_us: 1.2,
        ..uniform()
    };
    for (algorithm, four_us, eight_us) in [
        (Algorithm::MasterWorker, 7.8, 17.8),
        (Algorithm::RoundRobin, 8.3, 25.4),
        (Algorithm::Tree, 8.3, 24.4),
        (Algorithm::RecursiveDoubling, 8.8, 24.9),
        (Algorithm::Butterfly, 8.9, 31.6),
        (Algorithm::AllToAll, 5.4, 18.4),
        (Algorithm::DoubleTree, 14.1, 37.0),
        (Algorithm::Ring, 15.3, 60.4),
    ] {
        for (ranks, measured_us) in [(4, four_us), (8, eight_us)] {
            let time_us = all_reduce(algorithm, &Topology::single_node(ranks), &machine, 8);
            let ratio = time_us / measured_us;
            assert!(
                (1.0 / 1.7..1.7).contains(&ratio),
                "{algorithm}, {ranks} ranks: {time_us}, not {measured_us}"
            );
        }
    }
}

#[test]
fn ranks_of_a_node_share_its_port() {
    // Local rank i of the first node sends to local rank i of the second.
    let topology = Topology::uniform(2, 2);
    let pair = |rank: Rank| {
        let step = Step::new();
        let whole = Chunks::one(0);
        let step = if rank < 2 { step.send(rank + 2, whole) } else { step.replace(rank - 2, whole) };
        Plan::single("pairs", topology.world(), Schedule::new(1, [step]))
    };
    let plans: Vec<_> = (0..4).map(pair).collect();
    let alone_us = ALPHA_US + 64.0 * KIB_US;
    let behind_us = ALPHA_US + 128.0 * KIB_US;
    let finish_us = |topology: &Topology| finish_us(&plans, topology, &uniform(), (64 << 10, 1)).unwrap();
    assert_eq!(finish_us(&topology), [alone_us, behind_us, alone_us, behind_us]);
    // With a node, and so a port, for each rank, none waits. If two share only the incoming port, the nearer goes first.
    assert_eq!(finish_us(&Topology::uniform(4, 1)), [alone_us; 4]);
    assert_eq!(finish_us(&Topology::from_node_sizes(&[1, 1, 2])), [behind_us, alone_us, behind_us, alone_us]);
}

#[test]
fn waiting_message_does_not_block_an_idle_port() {
    // Rank 1 waits behind rank 0 for the outgoing port of their node; meanwhile rank 2 can reach the node of rank 1's
    // target.
    let topology = Topology::from_node_sizes(&[2, 1, 1, 2]);
    let whole = Chunks::one(0);
    let steps = [
        Step::new().send(3, whole),
        Step::new().send(4, whole),
        Step::new().send(5, whole),
        Step::new().replace(0, whole),
        Step::new().replace(1, whole),
        Step::new().replace(2, whole),
    ];
    let plan = |step| Plan::single("star", topology.world(), Schedule::new(1, [step]));
    let finish_us = finish_us(&steps.map(plan), &topology, &uniform(), (1024, 1)).unwrap();
    let alone_us = ALPHA_US + KIB_US;
    assert_eq!(finish_us[3..], [alone_us, alone_us + KIB_US, alone_us]);
}

#[test]
fn rails_keep_the_port_busy_where_a_flat_ring_waits() {
    // On 4 nodes of 4: in each of 30 steps, a flat ring's port carries one message of n/16. The rails' port carries 2n/4 *
    // 3/4 for each of 4 ranks, and is never idle after the first byte.
    let world = Topology::uniform(4, 4);
    let size_bytes = 1 << 20;
    let whole_us = 1024.0 * KIB_US;
    let ring = all_reduce(Algorithm::Ring, &world, &network_only(), size_bytes);
    close(ring, 30.0 * (ALPHA_US + whole_us / 16.0));
    let rail = all_reduce(Algorithm::Rail, &world, &network_only(), size_bytes);
    close(rail, ALPHA_US + 2.0 * whole_us * 3.0 / 4.0);
    assert!(rail < ring);
}

#[test]
fn slowest_stage_determines_the_time_of_a_pipeline() {
    // On 2 nodes of 2, whose ports are as busy as without a pipeline; the rest, 4 messages of n/2 in the node, overlaps.
    let world = Topology::uniform(2, 2);
    let size_bytes = 16 << 20;
    let whole_us = 16.0 * 1024.0 * KIB_US;
    let in_turn = Machine { intra: Link::uniform(0.0, 8.0 * GB_PER_S).unwrap(), ..uniform() };
    let pipelined = Machine { segment_bytes: Some(1), ..in_turn.clone() };
    let time = |machine| all_reduce(Algorithm::Rail, &world, machine, size_bytes);
    close(time(&in_turn), whole_us / 8.0 + ALPHA_US + whole_us);
    // 32 blocks: the first one passes all stages, and the wire is never idle from then on.
    let block_us = whole_us / 32.0;
    close(time(&pipelined), block_us / 8.0 + ALPHA_US + block_us + 31.0 * block_us);
    // If the nodes are slower than the wire, they determine the time.
    let slow = Machine { intra: Link::uniform(0.0, GB_PER_S / 8.0).unwrap(), ..pipelined.clone() };
    close(time(&slow), 8.0 * whole_us + ALPHA_US + block_us);
    // A single block runs as before, and so do plans that are not hierarchical.
    let time = |algorithm, machine, size_bytes| all_reduce(algorithm, &world, machine, size_bytes);
    assert_eq!(time(Algorithm::Rail, &pipelined, 4096), time(Algorithm::Rail, &in_turn, 4096));
    assert_eq!(time(Algorithm::Ring, &pipelined, size_bytes), time(Algorithm::Ring, &in_turn, size_bytes));
}

#[test]
fn pipelined_blocks_are_no_faster_on_the_wire_than_the_whole() {
    let world = Topology::uniform(2, 1);
    let range = |up_to_bytes, gb_per_s| Range {
        up_to_bytes,
        alpha_us: 0.0,
        move_gb_per_s: gb_per_s,
        reduce_gb_per_s: gb_per_s,
    };
    let inter = Link::new(vec![range(1 << 20, 4.0 * GB_PER_S), range(usize::MAX, GB_PER_S)]).unwrap();
    let machine = Machine { inter, segment_bytes: Some(1), ..network_only() };
    // 32 blocks of 512 KiB, each a quarter of its share by itself.
    let share_us = 16.0 * 1024.0 * KIB_US / 32.0;
    let time_us = all_reduce(Algorithm::Rail, &world, &machine, 16 << 20);
    close(time_us, share_us / 4.0 + 31.0 * share_us);
}

#[test]
fn between_nodes_a_rank_without_its_own_core_waits_for_its_turn() {
    let (algorithm, world) = (Algorithm::RecursiveDoubling, Topology::uniform(2, 4));
    let time =
        |cores| all_reduce(algorithm, &world, &Machine { cores, hand_over_us: 3.0, ..uniform() }, 1024);
    let fast = Machine { intra: Link::uniform(0.0, 1e12).unwrap(), ..uniform() };
    let fast =
        |cores| all_reduce(algorithm, &world, &Machine { cores, hand_over_us: 3.0, ..fast.clone() }, 1024);
    // Two messages in the node and one between nodes; on each core two ranks, or four. With two, the first rank switches and receives, twice,
    // then waits while the other one does, switches again, and runs when the message from the other node arrives.
    let each_us = ALPHA_US + KIB_US;
    close(time(4), 4.0 * each_us);
    close(time(2), 2.0 * (2.0 * 3.0 + 2.0 * each_us) + 3.0 + each_us);
    // Without work in the node each message takes two turns, until the last rank has sent, and the next one that has arrived.
    close(fast(4), 2.0 * each_us);
    close(fast(1), 12.0 * 3.0);
}

#[test]
fn representative_ranks_give_the_times_of_all() {
    let machine = Machine::default();
    for topology in
        [Topology::uniform(4, 3), Topology::uniform(5, 4), Topology::uniform(7, 1), Topology::single_node(6)]
    {
        for algorithm in [Algorithm::Ring, Algorithm::RoundRobin] {
            for operation in [Operation::AllReduce, Operation::AllGather, Operation::AllToAll] {
                let Some(plans) = algorithm.plans(operation, &topology) else { continue };
                let count = 840 * topology.ranks();
                let every_rank = finish_us(&plans, &topology, &machine, (count, 4)).unwrap();
                let program = |rank: Rank| Program::of_plan(&plans[rank]);
                let world = World::folded(program, &topology, topology.stride(), count, LIMITS).unwrap();
                assert!(world.simulated.len() < topology.ranks());
                let folded = simulate(&world, &machine, (count, 4)).unwrap().finish_us;
                let expected: Vec<_> =
                    (0..topology.ranks()).map(|rank| folded[rank % folded.len()]).collect();
                assert_eq!(every_rank, expected, "{algorithm}, {operation}, {topology:?}");
            }
        }
    }
}

#[test]
fn times_grow_with_the_size_and_are_reproducible() {
    for topology in [Topology::single_node(7), Topology::uniform(3, 4), Topology::from_node_sizes(&[3, 1, 2])]
    {
        for algorithm in Algorithm::ALL {
            let time = |size_bytes| all_reduce(algorithm, &topology, &Machine::default(), size_bytes);
            let times: Vec<_> = (0..26).map(|shift| time(3 << shift)).collect();
            assert!(times.is_sorted(), "{algorithm}: {times:?}");
            assert!(times[0] > 0.0 && times[25].is_finite());
            assert_eq!(time(12_345_678).to_bits(), time(12_345_678).to_bits());
        }
    }
}

#[test]
fn busiest_rank_is_counted() {
    let world = Topology::single_node(4);
    let predicted =
        |algorithm| predict(algorithm, Operation::AllReduce, &world, &uniform(), 4000, 4).unwrap();
    let Prediction { steps, messages, sent_bytes, .. } = predicted(Algorithm::Ring);
    assert_eq!((steps, messages, sent_bytes), (6, 6, 6000));
    let Prediction { messages, sent_bytes, .. } = predicted(Algorithm::AllToAll);
    assert_eq!((messages, sent_bytes), (3, 12_000));
}

#[test]
fn unpredictable_collectives_are_reported() {
    let world = Topology::single_node(2);
    let refused = predict(Algorithm::Ring, Operation::Broadcast { root: 0 }, &world, &uniform(), 4, 4);
    assert_eq!(refused.unwrap_err().to_string(), "ring does not offer broadcast");
    // Rank 0 sends to rank 1, which has nothing to do.
    let plans = [Some(Step::new().send(1, Chunks::one(0))), None]
        .map(|step| Plan::single("half", world.world(), Schedule::new(1, step)));
    assert_eq!(finish_us(&plans, &world, &uniform(), (1, 4)), Err(Unpredictable::DoesNotFinish { rank: 0 }));
}
