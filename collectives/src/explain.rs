//! Draws schedules: a column for each rank, a row for each step.

use crate::cost;
use crate::operation::Operation;
use crate::plan::Plan;
use crate::program::{Arrival, Event, Interpreter, Program, Values, steps};
use crate::schedule::Chunks;
use crate::world::{Rank, Topology};

mod program;
mod svg;

pub use program::explain_programs;
pub use svg::explain_svg;

/// The largest number of ranks to draw: more columns would not fit a terminal.
const DRAWN_RANKS: usize = 8;
const DRAWN_CHUNKS: usize = 16;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws the plans of all ranks (rank 0's first): the messages of each round, and the growth of the result.
///
/// ```
/// use unisono_collectives::{Algorithm, Operation, Topology, explain};
///
/// let world = Topology::single_node(2);
/// let plans = Algorithm::RecursiveDoubling.plans(Operation::AllReduce, &world).unwrap();
/// let drawing = explain("recursive-doubling", Operation::AllReduce, &world, &plans);
/// assert!(drawing.contains("all→1 +all←1"));
/// ```
///
/// # Panics
/// If the plans are not those of all ranks, or are defective ([`crate::verify()`] describes how).
pub fn explain(name: &str, operation: Operation, topology: &Topology, plans: &[Plan]) -> String {
    let rounds = Rounds::of(operation, topology, plans, (DRAWN_RANKS, DRAWN_CHUNKS + 1));
    let mut drawing = Drawing { plans, full: rounds.full, rows: Vec::new(), phase: None };
    drawing.state("start".to_owned(), &rounds.start);
    for (arrivals, buffers) in &rounds.rounds {
        drawing.round(buffers, arrivals);
    }
    let (title, costs) = titles(name, operation, topology, plans);
    [header(&title, &costs, plans.len()), drawing.table(topology), legend(rounds.full)].join("\n")
}

/// The number of contributions in each chunk, by rank.
type Buffers = Vec<Vec<usize>>;

/// The messages of a collective by round, and the drawn buffers after each.
struct Rounds {
    /// The number of contributions of a complete chunk.
    full: usize,
    start: Buffers,
    rounds: Vec<(Vec<Arrival>, Buffers)>,
}

impl Rounds {
    /// Records the buffers of the first `drawn.0` ranks, up to `drawn.1` chunks of each: those of all ranks would need memory in proportion to the
    /// cube of their number.
    fn of(operation: Operation, topology: &Topology, plans: &[Plan], drawn: (usize, usize)) -> Self {
        let ranks = topology.ranks();
        assert_eq!(plans.len(), ranks, "one plan for each rank");
        let programs: Vec<_> = plans.iter().map(Program::of_plan).collect();
        let contributions = |rank: Rank| {
            let chunks = 0..programs[rank].chunk_count;
            chunks.map(|chunk| usize::from(operation.begins_with(rank, chunk))).collect()
        };
        let mut start: Buffers = (0..ranks).map(contributions).collect();
        let mut record = Record { drawn, messages: Vec::new() };
        Interpreter::run(&programs, &mut record, start.clone());
        record.messages.sort_by_key(|(arrival, _)| (arrival.round, arrival.to));
        start.truncate(drawn.0);
        start.iter_mut().for_each(|buffer| buffer.truncate(drawn.1));
        let (mut buffers, mut rounds) = (start.clone(), Vec::new());
        for round in record.messages.chunk_by(|(one, _), (other, _)| one.round == other.round) {
            for (arrival, buffer) in round.iter().filter(|(arrival, _)| arrival.to < drawn.0) {
                buffers[arrival.to].clone_from(buffer);
            }
            rounds.push((round.iter().map(|(arrival, _)| *arrival).collect(), buffers.clone()));
        }
        Self { full: if operation.reduces() { ranks } else { 1 }, start, rounds }
    }
}

fn titles(name: &str, operation: Operation, topology: &Topology, plans: &[Plan]) -> (String, String) {
    let cost = cost::count(plans).expect("the plans finish");
    let costs = format!(
        "{} steps over {} chunks; the busiest rank sends {} messages, {:.2} times the array",
        cost.steps,
        cost.chunk_count,
        cost.messages,
        cost.sent_arrays()
    );
    (title(name, operation, topology), costs)
}

fn title(name: &str, operation: Operation, topology: &Topology) -> String {
    let places = if topology.nodes() > 1 { format!(" on {} nodes", topology.nodes()) } else { String::new() };
    format!("{name}: {operation} over {} ranks{places}", topology.ranks())
}

/// Returns the lines above the table: the title, a description, and the ranks that are not drawn.
fn header(title: &str, description: &str, ranks: usize) -> String {
    let rule = "─".repeat(title.chars().count());
    let hidden = if ranks > DRAWN_RANKS {
        format!("(ranks {DRAWN_RANKS} to {} are not drawn)\n", ranks - 1)
    } else {
        String::new()
    };
    format!("{title}\n{rule}\n{description}\n{hidden}")
}

fn legend(full: usize) -> String {
    let bars = if full > 1 {
        format!("{} one contribution … █ all {full}", bar(1, full))
    } else {
        "· nothing yet   █ there".to_owned()
    };
    format!(
        "c1→3 sends chunk 1 to rank 3   +c1←3 reduces it in   =c1←3 puts it in place\n{bars}   (one bar for each chunk)\n"
    )
}

/// Returns a bar for the fraction of a chunk's contributions.
fn bar(contributions: usize, full: usize) -> char {
    match contributions {
        0 => '·',
        some => BARS[(some * BARS.len()).div_ceil(full) - 1],
    }
}

fn chunks_text(chunk_count: usize, chunks: Chunks) -> String {
    match chunks {
        whole if whole.count() == chunk_count => "all".to_owned(),
        one if one.count() == 1 => format!("c{}", one.start),
        Chunks { start, end } => format!("c{start}–{}", end - 1),
    }
}

enum Row {
    Phase(&'static str),
    Cells(String, Vec<String>),
}

/// Counts contributions, and records every message with the drawn part of the receiver's counts afterwards.
struct Record {
    /// The number of ranks and of chunks.
    drawn: (usize, usize),
    messages: Vec<(Arrival, Vec<usize>)>,
}

impl Values for Record {
    /// The number of contributions in a rank's chunk.
    type Value = usize;

    fn reduce(&mut self, _: Event, held: &mut usize, arrived: &usize) {
        *held += arrived;
    }

    fn received(&mut self, message: Arrival, buffer: &[usize]) {
        let chunks = if message.to < self.drawn.0 { buffer.len().min(self.drawn.1) } else { 0 };
        self.messages.push((message, buffer[..chunks].to_vec()));
    }
}

struct Drawing<'a> {
    plans: &'a [Plan],
    /// The number of contributions of a full bar.
    full: usize,
    rows: Vec<Row>,
    phase: Option<&'static str>,
}

impl Drawing<'_> {
    /// Draws the messages that arrive in a round, and the buffers afterwards.
    fn round(&mut self, buffers: &[Vec<usize>], arrivals: &[Arrival]) {
        if self.plans.iter().any(|plan| plan.phases().len() > 1) {
            self.name_new_phase(arrivals);
        }
        let drawn = self.plans.len().min(DRAWN_RANKS);
        let messages: Vec<_> = (0..drawn).map(|rank| self.messages(rank, arrivals)).collect();
        if messages.iter().any(|text| !text.is_empty()) {
            self.rows.push(Row::Cells(arrivals[0].round.to_string(), messages));
            self.state(String::new(), buffers);
        }
    }

    fn state(&mut self, label: String, buffers: &[Vec<usize>]) {
        let bars = |buffer: &Vec<usize>| {
            let bars: String = buffer.iter().take(DRAWN_CHUNKS).map(|&count| bar(count, self.full)).collect();
            if buffer.len() > DRAWN_CHUNKS { bars + "…" } else { bars }
        };
        self.rows.push(Row::Cells(label, buffers.iter().map(bars).collect()));
    }

    /// Returns the text for the messages that a rank sends and receives in a round.
    fn messages(&self, rank: Rank, arrivals: &[Arrival]) -> String {
        let chunks = |chunks| chunks_text(self.plans[rank].chunk_count(), chunks);
        let sent = arrivals.iter().filter(|event| event.from == rank);
        let sent = sent.map(|event| format!("{}→{}", chunks(event.sent), event.to));
        let received = arrivals.iter().filter(|event| event.to == rank);
        let received = received.map(|event| {
            let sign = if event.combine.reduces() { '+' } else { '=' };
            format!("{sign}{}←{}", chunks(event.received), event.from)
        });
        sent.chain(received).collect::<Vec<_>>().join(" ")
    }

    /// Draws a line where the first message of a later phase arrives.
    fn name_new_phase(&mut self, arrivals: &[Arrival]) {
        let last = arrivals.last().and_then(|event| steps(&self.plans[event.to]).nth(event.step));
        let last = last.map(|(place, ..)| place.name);
        if last.is_some() && last != self.phase {
            self.phase = last;
            self.rows.extend(last.map(Row::Phase));
        }
    }

    fn table(&self, topology: &Topology) -> String {
        let name = |rank: Rank| match topology.nodes() {
            1 => format!("rank {rank}"),
            _ => format!("rank {rank} (node {})", topology.node_of(rank)),
        };
        let names: Vec<_> = (0..topology.ranks().min(DRAWN_RANKS)).map(name).collect();
        let cells = self.rows.iter().filter_map(|row| match row {
            Row::Cells(_, cells) => Some(cells),
            Row::Phase(_) => None,
        });
        let width = cells.chain([&names]).flatten().map(|cell| cell.chars().count()).max().unwrap_or(0);
        let line = |label: &str, cells: &[String]| {
            let cells: Vec<_> = cells.iter().map(|cell| format!("{cell:width$}")).collect();
            format!("{label:>5}  {}", cells.join("  ")).trim_end().to_owned() + "\n"
        };
        let draw = |row: &Row| match row {
            Row::Phase(name) => format!("    ── {name} ──\n"),
            Row::Cells(label, cells) => line(label, cells),
        };
        line("", &names) + &self.rows.iter().map(draw).collect::<String>()
    }
}
