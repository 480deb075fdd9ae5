//! Predicts a hierarchical plan in lanes: the time of one block, plus that of the slowest stage for each further block.

use super::Unpredictable;
use super::outline::World;
use super::play::play;
use crate::execution::LANES_DEPTH;
use crate::model::{Link, Machine};

/// The time at which the last rank has finished all blocks; `whole` is the world with whole arrays, `block` that with arrays of one
/// block.
///
/// There are three stages. In the node, ranks work on one block at a time. A port carries one block after the other, at the rate of
/// the whole: buffers on the way make a single block faster than a long sequence. And between the start and the end of a step between
/// nodes, [`LANES_DEPTH`] blocks are in flight.
pub(super) fn time_us(
    (whole, block): (&World<'_>, &World<'_>),
    (blocks, far_steps): (usize, usize),
    machine: &Machine,
    element_size_bytes: usize,
) -> Result<f64, Unpredictable> {
    let alone = play(block, machine, element_size_bytes)?;
    let no_wire = Link::uniform(0.0, f64::MAX).expect("an infinitely fast link is valid");
    let inside = Machine { inter: no_wire, call_us: 0.0, ..machine.clone() };
    let inside_us = play(block, &inside, element_size_bytes)?.time_us(block, &inside);
    let alone_us = alone.time_us(block, machine);
    let blocks = blocks as f64;
    let port_us = play(whole, machine, element_size_bytes)?.busiest_port_us() / blocks;
    let in_flight = LANES_DEPTH * far_steps.max(1);
    let step_us = (alone_us - inside_us) / in_flight as f64;
    let slowest_us = inside_us.max(alone.busiest_port_us()).max(port_us).max(step_us);
    Ok(alone_us + (blocks - 1.0) * slowest_us)
}
