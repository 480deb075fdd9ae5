//! What a rank did and does, in words.

use std::fmt;

use serde::{Deserialize, Serialize};
use unisono_collectives::Rank;

/// The calls that ranks make before the user's first one have numbers that no user's call reaches.
pub(crate) const FIRST_OF_SETUP: u64 = u64::MAX / 2;

/// Messages from one rank to another have numbers that no collective's reaches: for each two ranks, and each way, from here on.
pub(crate) const FIRST_OF_MESSAGES: u64 = u64::MAX / 4;

/// What such a message is called.
pub(crate) const MESSAGE_NAME: &str = "message";

/// What stands in the place of an algorithm in them.
pub(crate) const POINT_TO_POINT: &str = "point-to-point";

/// A barrier is an all-reduce of nothing, and is called a barrier.
pub(crate) const BARRIER_NAME: &str = "barrier";

/// How far a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The rank is in it.
    Running,
    /// It is done, as far as this rank is concerned.
    Done,
    /// It has ended with an error.
    Failed,
}

/// A collective call, as a rank has written it down.
///
/// Times are in seconds before the moment at which the record was read. Of short calls that had not to wait they are
/// exact to a few hundredths of a second only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// How many collectives came before this one; all ranks number theirs alike.
    pub sequence: u64,
    /// The operation: "all-reduce".
    pub operation: String,
    /// The type of the elements.
    pub dtype: String,
    /// How many elements.
    pub count: u64,
    /// The reduction, where the operation reduces.
    pub op: Option<String>,
    /// The root, where the operation has one.
    pub root: Option<Rank>,
    /// The algorithm, or the vendor.
    pub algorithm: String,
    /// What the program called it.
    pub label: Option<String>,
    /// The phase of the algorithm that was reached, from 0.
    pub phase: usize,
    /// The step of that phase, from 0.
    pub step: usize,
    /// How far it has come.
    pub stage: Stage,
    /// The rank that it waits for at this step, if that takes longer than a message.
    pub waits_for: Option<Rank>,
    /// How many seconds ago it began.
    pub began_s_ago: f64,
    /// How many seconds ago it ended, if it has.
    pub ended_s_ago: Option<f64>,
}

impl Record {
    /// Whether it was made before the program's first one.
    pub(crate) fn is_of_setup(&self) -> bool {
        self.sequence >= FIRST_OF_SETUP
    }

    /// The call in few words: `all-reduce #17 "bucket 2"`.
    pub fn name(&self) -> String {
        let label = self.label.as_ref().map_or(String::new(), |label| format!(" {label:?}"));
        match self.sequence.checked_sub(FIRST_OF_SETUP) {
            None => format!("{} #{}{label}", self.operation, self.sequence),
            Some(number) => format!("{} #{number} of the set-up{label}", self.operation),
        }
    }
}

/// The call with all that ranks must agree on: `all-reduce #17 "bucket 2" of 8 f32, sum, by ring`.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.operation == BARRIER_NAME {
            return f.write_str(&self.name());
        }
        write!(f, "{} of {} {}", self.name(), self.count, self.dtype)?;
        if let Some(op) = &self.op {
            write!(f, ", {op}")?;
        }
        if let Some(root) = self.root {
            write!(f, ", root {root}")?;
        }
        write!(f, ", by {}", self.algorithm)
    }
}

/// How a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It has made no call so far.
    NotYet,
    /// It is in a call.
    Inside,
    /// It is between two calls.
    Outside,
    /// It is in a section that may take long.
    Quiet,
    /// It has left the world.
    Left,
}

/// What a rank does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Doing {
    /// The rank.
    pub rank: Rank,
    /// The host that it runs on.
    pub host: String,
    /// Its process there.
    pub process_id: u32,
    /// How it is.
    pub state: State,
    /// For how many seconds it has been so.
    pub since_s: f64,
    /// The label of the quiet section that it is in.
    pub quiet: Option<String>,
    /// The call that it is in, or was in last.
    pub last: Option<Record>,
}

impl Doing {
    /// How many collectives it has begun that all ranks number alike: the number of the one that it is in, or comes to next.
    pub fn sequence(&self) -> u64 {
        let last = self.last.as_ref();
        last.map_or(0, |last| match last.stage {
            Stage::Running => last.sequence,
            Stage::Done | Stage::Failed => last.sequence.saturating_add(1),
        })
    }
}

/// `is in all-reduce #17 of 8 f32, sum, by ring, since 61 s, at step 2, and waits for rank 3`, and the like.
impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = Seconds(self.since_s);
        match (self.state, &self.last) {
            (State::Inside, Some(call)) => {
                write!(f, "is in {call}, since {since}, at step {}", call.step)?;
                if call.phase > 0 {
                    write!(f, " of phase {}", call.phase)?;
                }
                match call.waits_for {
                    Some(other) => write!(f, ", and waits for rank {other}"),
                    None => Ok(()),
                }
            }
            (State::Left, None) => write!(f, "left {since} ago, without a call"),
            (State::Left, Some(call)) => write!(f, "left {since} ago; its last was {}", call.name()),
            (State::Quiet, call) => {
                write!(
                    f,
                    "is in the quiet section {:?} since {since}",
                    self.quiet.as_deref().unwrap_or("?")
                )?;
                call.as_ref().map_or(Ok(()), |call| write!(f, "; its last was {}", call.name()))
            }
            (State::Outside, Some(call)) => {
                write!(f, "is outside of collectives since {since}; its last was {}", call.name())
            }
            (State::NotYet | State::Inside | State::Outside, _) => {
                write!(f, "has made no call in {since}")
            }
        }
    }
}

/// Seconds for a person: 61 s, 0.3 s.
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
