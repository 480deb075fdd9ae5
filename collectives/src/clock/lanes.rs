//! How long a plan of levels takes in lanes: as long as one block by itself, and for each block after it as long as the slowest stage.

use super::Unpredictable;
use super::outline::World;
use super::play::play;
use crate::execution::{LANES_DEPTH, Timetable};
use crate::model::{Link, Machine};

/// When the last rank is done with all blocks; `block` is the world in which arrays are one of them.
///
/// There are three stages. In the node, ranks work on one block at a time; a port carries one block after the other; and between the
/// beginning and the end of a step between nodes there are as many blocks as are under way at a time.
pub(super) fn time_us(
    block: &World<'_>,
    timetable: &Timetable,
    machine: &Machine,
    element_size_bytes: usize,
) -> Result<f64, Unpredictable> {
    let alone = play(block, machine, element_size_bytes)?;
    let no_wire = Link::uniform(0.0, f64::MAX).expect("a link without a wire is a link");
    let inside = Machine { inter: no_wire, call_us: 0.0, ..machine.clone() };
    let inside_us = play(block, &inside, element_size_bytes)?.time_us(block, &inside);
    let alone_us = alone.time_us(block, machine);
    let under_way = LANES_DEPTH * timetable.far_steps().max(1);
    let step_us = (alone_us - inside_us) / under_way as f64;
    let slowest_us = inside_us.max(alone.busiest_port_us()).max(step_us);
    Ok(alone_us + (timetable.blocks - 1) as f64 * slowest_us)
}
