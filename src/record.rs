//! Records of calls and states of ranks, with texts for humans.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};
use unisono_collectives::Rank;

/// The first sequence number of calls during set-up, which user calls never reach.
pub(crate) const FIRST_OF_SETUP: u64 = u64::MAX / 2;

/// The first sequence number of point-to-point messages of a pair and direction, which collectives never reach.
pub(crate) const FIRST_OF_MESSAGES: u64 = u64::MAX / 4;

/// The operation name of a point-to-point message.
pub(crate) const MESSAGE_NAME: &str = "message";

/// The algorithm name of a point-to-point message.
pub(crate) const POINT_TO_POINT: &str = "point-to-point";

/// The recorded number of elements of an all-to-all with a count for every pair of ranks, where ranks have different numbers.
pub(crate) const COUNTS_OF_PAIRS: u64 = u64::MAX;

/// The operation name of a barrier, which is an all-reduce of no elements.
pub(crate) const BARRIER_NAME: &str = "barrier";

/// The stage of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The rank is in the call.
    Running,
    /// The call is done on this rank.
    Done,
    /// The call has ended with an error.
    Failed,
}

/// A recorded collective call of a rank.
///
/// Times are in seconds before the record was read. For short calls without a wait they are only accurate to a few hundredths of
/// a second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The number of collectives before this one, the same on all ranks.
    pub sequence: u64,
    /// The operation: "all-reduce".
    pub operation: String,
    /// The type of the elements.
    pub dtype: String,
    /// The number of elements; `u64::MAX` for an all-to-all with a count for every pair of ranks.
    pub count: u64,
    /// The reduction, if the operation reduces.
    pub op: Option<String>,
    /// The root, if the operation has one.
    pub root: Option<Rank>,
    /// The algorithm, or the vendor.
    pub algorithm: String,
    /// The label that the program has set.
    pub label: Option<String>,
    /// The phase reached, from 0.
    pub phase: usize,
    /// The step of that phase, from 0.
    pub step: usize,
    /// The stage of the call.
    pub stage: Stage,
    /// The rank that it waits for at this step, if the wait exceeds the duration of a message.
    pub waits_for: Option<Rank>,
    /// Seconds since it started.
    pub began_s_ago: f64,
    /// Seconds since it ended, if it has.
    pub ended_s_ago: Option<f64>,
}

impl Record {
    /// Returns whether the call belongs to the set-up, before the program's first call.
    pub(crate) fn is_of_setup(&self) -> bool {
        self.sequence >= FIRST_OF_SETUP
    }

    /// Returns whether two ranks made the same call. A status board keeps a limited number of labels, so the label of a call may be known on one
    /// of their nodes only, which is no difference.
    pub(crate) fn is_same_call(&self, other: &Self) -> bool {
        let call = |record: &Self| Self { label: None, ..record.clone() }.to_string();
        let labels = self.label.as_ref().zip(other.label.as_ref());
        call(self) == call(other) && labels.is_none_or(|(one, other)| one == other)
    }

    /// Returns the short form: `all-reduce #17 "bucket 2"`.
    pub fn name(&self) -> String {
        let label = self.label.as_ref().map_or(String::new(), |label| format!(" {label:?}"));
        match self.sequence.checked_sub(FIRST_OF_SETUP) {
            None => format!("{} #{}{label}", self.operation, self.sequence),
            Some(number) => format!("{} #{number} of the set-up{label}", self.operation),
        }
    }
}

/// Returns the elements of a call: `8 f32`, or `f32` if ranks have different numbers.
pub(crate) fn elements(count: u64, dtype: &str) -> String {
    if count == COUNTS_OF_PAIRS { dtype.to_owned() } else { format!("{count} {dtype}") }
}

/// Formats the arguments of a call that ranks must agree on, without the algorithm: `reduce #17 of 8 f32, sum, root 3`.
pub(crate) fn described(name: &str, elements: &str, op: Option<&str>, root: Option<Rank>) -> String {
    let op = op.map_or(String::new(), |op| format!(", {op}"));
    let root = root.map_or(String::new(), |root| format!(", root {root}"));
    format!("{name} of {elements}{op}{root}")
}

/// Formats the arguments that ranks must agree on: `all-reduce #17 "bucket 2" of 8 f32, sum, by ring`.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.operation == BARRIER_NAME {
            return f.write_str(&self.name());
        }
        let elements = elements(self.count, &self.dtype);
        let call = described(&self.name(), &elements, self.op.as_deref(), self.root);
        write!(f, "{call}, by {}", self.algorithm)
    }
}

/// The state of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// No call so far.
    NotYet,
    /// In a call.
    Inside,
    /// Between two calls.
    Outside,
    /// In a quiet section.
    Quiet,
    /// Has left the world.
    Left,
}

/// A wait of a rank in a call of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupWait {
    /// The call, and the ranks of the group.
    pub call: String,
    /// The rank that it waits for.
    pub waits_for: Rank,
    /// The number of seconds since the call started.
    pub since_s: f64,
}

/// The activity of a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Doing {
    /// The rank.
    pub rank: Rank,
    /// The host that it runs on.
    pub host: String,
    /// Its process ID there.
    pub process_id: u32,
    /// The state.
    pub state: State,
    /// The number of seconds in that state.
    pub since_s: f64,
    /// The label of its quiet section.
    pub quiet: Option<String>,
    /// Whether its program may make other calls during the current one: that runs on the communication thread, or other threads use
    /// groups.
    #[serde(default)]
    pub continues: bool,
    /// Its wait in a call of a group of these ranks. It is known if the rank uses the group on the thread of its last call here.
    #[serde(default)]
    pub group: Option<GroupWait>,
    /// The current or latest call.
    pub last: Option<Record>,
}

impl Doing {
    /// Returns the sequence number of the current collective, or of the next one outside collectives.
    pub fn sequence(&self) -> u64 {
        let last = self.last.as_ref();
        last.map_or(0, |last| match last.stage {
            Stage::Running => last.sequence,
            Stage::Done | Stage::Failed => last.sequence.saturating_add(1),
        })
    }
}

/// Formats the activity: `has been in all-reduce #17 of 8 f32, sum, by ring for 61 s, at step 2, waiting for rank 3`.
impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = Seconds(self.since_s);
        match (self.state, &self.last) {
            (State::Inside, Some(call)) => {
                write!(f, "has been in {call} for {since}, at step {}", call.step)?;
                if call.phase > 0 {
                    write!(f, " of phase {}", call.phase)?;
                }
                match call.waits_for {
                    Some(other) => write!(f, ", waiting for rank {other}"),
                    None => Ok(()),
                }
            }
            (State::Left, None) => write!(f, "left {since} ago, without a call"),
            (State::Left, Some(call)) => write!(f, "left {since} ago; its last call was {}", call.name()),
            (State::Quiet, call) => {
                write!(
                    f,
                    "has been in the quiet section {:?} for {since}",
                    self.quiet.as_deref().unwrap_or("?")
                )?;
                call.as_ref().map_or(Ok(()), |call| write!(f, "; its last call was {}", call.name()))
            }
            (State::Outside, Some(call)) => {
                write!(f, "has been outside collectives for {since}; its last call was {}", call.name())
            }
            (State::NotYet | State::Inside | State::Outside, _) => {
                write!(f, "has made no call in {since}")
            }
        }
    }
}

/// The last known activity of a rank, if any is, and the seconds since its node reported, if that is silent.
pub(crate) type Known<'a> = Option<(&'a Doing, Option<f64>)>;

/// The position of a call in the order of calls, in which set-up calls are first.
pub(crate) fn place(call: &Record) -> (bool, u64) {
    (call.sequence < FIRST_OF_SETUP, call.sequence)
}

/// Returns the call in which a rank is, or that failed.
fn waits_in(known: Known<'_>) -> Option<&Record> {
    let (doing, silent_s) = known?;
    let call = doing.last.as_ref().filter(|_| silent_s.is_none())?;
    (doing.state == State::Inside || call.stage == Stage::Failed).then_some(call)
}

/// Describes the ranks that wait in the latest call, with a line for each rank that is missing there, or for each that waits if none is. `None` if no
/// rank is in a call. `name` returns the name of a rank with its process.
pub(crate) fn described_wait(ranks: &[(Rank, Known<'_>)], name: impl Fn(Rank) -> String) -> Option<String> {
    let latest = ranks.iter().filter_map(|(_, known)| waits_in(*known)).max_by_key(|call| place(call))?;
    let is_latest = |call: &&Record| place(call) == place(latest);
    let (there, others): (Vec<_>, Vec<_>) =
        ranks.iter().partition(|(_, known)| waits_in(*known).as_ref().is_some_and(is_latest));
    // A rank in an earlier call is missing in this one, and so is one of unknown state. Another may have completed it.
    let has_made = |known: Known<'_>| {
        let last =
            known.filter(|(_, silent_s)| silent_s.is_none()).and_then(|(doing, _)| doing.last.as_ref());
        last.is_some_and(|call| place(call) >= place(latest))
    };
    let missing: Vec<_> = others.into_iter().filter(|(_, known)| !has_made(*known)).collect();
    let began = there.iter().filter_map(|(_, known)| waits_in(*known)).map(|call| call.began_s_ago);
    let waited = Seconds(began.fold(0.0, f64::max));
    let who = |ranks: &[(Rank, Known<'_>)]| named(&ranks.iter().map(|(rank, _)| *rank).collect::<Vec<_>>());
    let (waiting, have) = (who(&there), if there.len() == 1 { "has" } else { "have" });
    let (listed, mut text) = if missing.is_empty() {
        (there, format!("{waiting} {have} been in {latest} for {waited}, and no rank is missing:\n"))
    } else {
        let (absent, are) = (who(&missing), if missing.len() == 1 { "is" } else { "are" });
        (missing, format!("{waiting} {have} waited {waited} in {latest}, and {absent} {are} missing:\n"))
    };
    for (rank, known) in listed.iter().take(MOST_NAMED) {
        let does = match known {
            None => "has not reported".to_owned(),
            Some((doing, None)) => doing.to_string(),
            Some((doing, Some(silent_s))) => {
                format!("{doing}, as of {} ago, when its node reported last", Seconds(*silent_s))
            }
        };
        let _ = writeln!(text, "  {} {does}", name(*rank));
    }
    if let more @ 1.. = listed.len().saturating_sub(MOST_NAMED) {
        let _ = writeln!(text, "  and {more} more");
    }
    Some(text)
}

/// The number of ranks, or runs of ranks, that a message lists.
pub(crate) const MOST_NAMED: usize = 20;

/// Formats ascending ranks: "rank 3", or "ranks 0 to 2, 5".
pub(crate) fn named(ranks: &[Rank]) -> String {
    let runs: Vec<_> = ranks.chunk_by(|one, next| one + 1 == *next).collect();
    let run = |run: &&[Rank]| match run {
        [one, other] => format!("{one}, {other}"),
        [first, .., last] => format!("{first} to {last}"),
        [] | [_] => run.iter().map(Rank::to_string).collect(),
    };
    let list = runs.iter().take(MOST_NAMED).map(run).collect::<Vec<_>>().join(", ");
    let more = match runs.iter().skip(MOST_NAMED).map(|run| run.len()).sum::<usize>() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{} {list}{more}", if ranks.len() == 1 { "rank" } else { "ranks" })
}

/// A formatted number of seconds: 61 s, 0.3 s.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seconds(pub(crate) f64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 9.95 && self.0.fract() != 0.0 {
            write!(f, "{:.1} s", self.0)
        } else {
            write!(f, "{:.0} s", self.0)
        }
    }
}
