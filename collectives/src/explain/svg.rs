//! Draws schedules as SVG: a column for each rank, a row of buffers for each round, and an arrow for each message.

use super::{Rounds, titles};
use crate::operation::Operation;
use crate::plan::Plan;
use crate::schedule::Chunks;
use crate::world::{Rank, Topology};

/// The width of a chunk's bar and the height of a complete one, in pixels.
const BAR: (usize, usize) = (9, 24);
/// The space between the columns of two ranks, and between two rows of buffers, for arrows.
const GAP: (usize, usize) = (44, 46);
/// The space above the first row, for titles and the names of ranks.
const TOP: usize = 84;
/// The width of the name of a rank and its node, beyond the space between columns.
const NODE_LABEL: usize = 32;
const MARGIN: usize = 16;

/// Classes of the elements, with colours for light and dark pages.
const STYLE: &str = "\
    text { font: 13px sans-serif; fill: #222 } .title { font-weight: bold } .chunk { fill: none; stroke: #999 } \
    .part { fill: #4878a8 } .all { fill: #3a923a } line { stroke-width: 1.5 } .reduce { stroke: #4878a8 } \
    .replace { stroke: #3a923a; stroke-dasharray: 5 3 } .head { fill: #666 } \
    @media (prefers-color-scheme: dark) { text { fill: #ddd } }";

/// Draws the plans of all ranks (rank 0's first) as an SVG document. Bars show the fraction of contributions in each chunk, solid arrows
/// messages that are reduced, dashed arrows messages that replace the existing contents.
///
/// ```
/// use unisono_collectives::{Algorithm, Operation, Topology, explain_svg};
///
/// let world = Topology::single_node(2);
/// let plans = Algorithm::RecursiveDoubling.plans(Operation::AllReduce, &world).unwrap();
/// let drawing = explain_svg("recursive-doubling", Operation::AllReduce, &world, &plans);
/// assert_eq!(drawing.matches("class=\"reduce\"").count(), 2);
/// ```
///
/// # Panics
/// If the plans are not those of all ranks, or are defective ([`crate::verify()`] describes how).
pub fn explain_svg(name: &str, operation: Operation, topology: &Topology, plans: &[Plan]) -> String {
    let Rounds { full, start, rounds } = Rounds::of(operation, topology, plans, (usize::MAX, usize::MAX));
    let column = start.iter().map(Vec::len).max().unwrap_or(0) * BAR.0;
    let column = if topology.nodes() > 1 { column.max(NODE_LABEL) } else { column };
    let left = |rank: Rank| MARGIN + rank * (column + GAP.0);
    let top = |row: usize| TOP + row * (BAR.1 + GAP.1);
    let (title, costs) = titles(name, operation, topology, plans);
    let width = left(plans.len()).max(MARGIN + 7 * costs.len());
    let height = top(rounds.len()) + BAR.1 + MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n\
         <style>{STYLE}</style>\n\
         <marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
         <path class=\"head\" d=\"M0 0L8 4L0 8z\"/></marker>\n\
         <text class=\"title\" x=\"{MARGIN}\" y=\"24\">{title}</text>\n<text x=\"{MARGIN}\" y=\"44\">{costs}</text>\n"
    );
    let node = |rank| {
        if topology.nodes() > 1 { format!(", node {}", topology.node_of(rank)) } else { String::new() }
    };
    for rank in 0..plans.len() {
        let (x, y, node) = (left(rank), TOP - 10, node(rank));
        svg += &format!("<text x=\"{x}\" y=\"{y}\">{rank}{node}</text>\n");
    }
    let states = std::iter::once(&start).chain(rounds.iter().map(|(_, buffers)| buffers));
    for (row, buffers) in states.enumerate() {
        for (rank, buffer) in buffers.iter().enumerate() {
            for (chunk, &count) in buffer.iter().enumerate() {
                bar(&mut svg, (left(rank) + chunk * BAR.0, top(row)), count, full);
            }
        }
    }
    for (row, (arrivals, _)) in rounds.iter().enumerate() {
        for arrival in arrivals {
            let class = if arrival.combine.reduces() { "reduce" } else { "replace" };
            let x = |rank, chunks: Chunks| left(rank) + (chunks.start + chunks.end) * BAR.0 / 2;
            let from = (x(arrival.from, arrival.sent), top(row) + BAR.1 + 3);
            arrow(&mut svg, class, from, (x(arrival.to, arrival.received), top(row + 1) - 3));
        }
    }
    svg + "</svg>\n"
}

fn arrow(svg: &mut String, class: &str, (x1, y1): (usize, usize), (x2, y2): (usize, usize)) {
    let ends = format!("x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" marker-end=\"url(#head)\"");
    *svg += &format!("<line class=\"{class}\" {ends}/>\n");
}

fn bar(svg: &mut String, (x, y): (usize, usize), contributions: usize, full: usize) {
    let (width, height) = BAR;
    let mut rectangle = |class: &str, y: usize, height: usize| {
        let size = format!("width=\"{width}\" height=\"{height}\"");
        *svg += &format!("<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" {size}/>\n");
    };
    rectangle("chunk", y, height);
    let filled = (contributions * height).div_ceil(full);
    if filled > 0 {
        rectangle(if contributions == full { "all" } else { "part" }, y + height - filled, filled);
    }
}
