//! Runs all ranks of a world at once, over values of any kind.
//!
//! Messages are rendezvous: a send completes when the other rank's step receives it, and a rank continues when both halves
//! of its step have completed. This is the strictest interpretation of a schedule: whatever completes here completes over
//! any transport, however little it buffers. Verification runs it over symbols, simulation over numbers, drawing over
//! counts.

use crate::schedule::{Chunks, Combine, Schedule, Send, Source, Step};
use crate::world::Rank;

/// The values of a run.
pub(crate) trait Values {
    /// The value of one chunk on one rank.
    type Value: Clone;

    /// Reduces an arrived value into the value of a chunk.
    fn reduce(&mut self, at: Event, held: &mut Self::Value, arrived: &Self::Value);

    /// Called after each round of messages, once they have arrived.
    fn round(&mut self, _buffers: &[Vec<Self::Value>], _arrivals: &[Event]) {}
}

/// An arrived message, from the receiver's perspective. A rank and step number have at most one arrival, since a step has at
/// most one receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) rank: Rank,
    pub(crate) step: usize,
    pub(crate) from: Rank,
    pub(crate) sent: Chunks,
    pub(crate) received: Chunks,
    pub(crate) combine: Combine,
}

/// The outcome of a run.
#[derive(Debug)]
pub(crate) struct Outcome<V> {
    /// The final values, by rank, then by chunk.
    pub(crate) buffers: Vec<Vec<V>>,
    /// The number of rounds: the steps on the critical path.
    pub(crate) rounds: usize,
    /// For each rank that did not finish, the step in which it waits.
    pub(crate) waiting: Vec<(Rank, usize)>,
    /// Messages whose two ends have ranges of different lengths; they are not delivered, and the run stops.
    pub(crate) mismatched: Vec<Event>,
}

/// The incomplete halves of a rank's current step, and the values that it sends.
struct Present<V> {
    step: usize,
    sending: Option<Send>,
    /// The values to send, copied before anything is received. The vector is reused from step to step: allocating one per
    /// message would take longer than the message.
    sent: Vec<V>,
    receiving: bool,
}

/// Runs the schedules of all ranks (rank 0's first) on their inputs (one value per chunk).
///
/// The schedules must be in bounds (see [`crate::verify`]).
pub(crate) fn run<T: Values>(
    schedules: &[Schedule],
    inputs: Vec<Vec<T::Value>>,
    values: &mut T,
) -> Outcome<T::Value> {
    let mut buffers = inputs.clone();
    let outside = || Present { step: 0, sending: None, sent: Vec::new(), receiving: false };
    let mut present: Vec<_> = schedules.iter().map(|_| outside()).collect();
    for (rank, state) in present.iter_mut().enumerate() {
        enter(state, 0, &schedules[rank], &buffers[rank], &inputs[rank]);
    }
    let mut rounds = 0;
    let mut mismatched = Vec::new();
    loop {
        let meetings = meetings(schedules, &present);
        mismatched.extend(meetings.iter().filter(|event| event.sent.count() != event.received.count()));
        if meetings.is_empty() || !mismatched.is_empty() {
            break;
        }
        rounds += 1;
        for &event in &meetings {
            deliver(event, &mut present, &mut buffers, values);
        }
        values.round(&buffers, &meetings);
        for (rank, state) in present.iter_mut().enumerate() {
            if state.sending.is_none() && !state.receiving && state.step < schedules[rank].steps().len() {
                enter(state, state.step + 1, &schedules[rank], &buffers[rank], &inputs[rank]);
            }
        }
    }
    let waiting = present
        .iter()
        .enumerate()
        .filter(|&(rank, state)| state.step < schedules[rank].steps().len())
        .map(|(rank, state)| (rank, state.step))
        .collect();
    Outcome { buffers, rounds, waiting, mismatched }
}

/// Enters the next step that is not empty, and copies what it sends before anything is received.
fn enter<V: Clone>(present: &mut Present<V>, step: usize, schedule: &Schedule, buffer: &[V], input: &[V]) {
    let steps = &schedule.steps()[step..];
    present.step = step + steps.iter().take_while(|&step| *step == Step::new()).count();
    let Step { send, receive } = schedule.steps().get(present.step).copied().unwrap_or_default();
    present.sending = send;
    present.receiving = receive.is_some();
    if let Some(send) = send {
        let from = match send.source {
            Source::Current => buffer,
            Source::Original => input,
        };
        present.sent.extend_from_slice(&from[send.chunks.start..send.chunks.end]);
    }
}

/// All messages whose two ends are ready.
fn meetings<V>(schedules: &[Schedule], present: &[Present<V>]) -> Vec<Event> {
    let meeting = |(rank, state): (Rank, &Present<V>)| {
        if !state.receiving {
            return None;
        }
        let receive = schedules[rank].steps()[state.step].receive?;
        let send = present[receive.from].sending.filter(|send| send.to == rank)?;
        Some(Event {
            rank,
            step: state.step,
            from: receive.from,
            sent: send.chunks,
            received: receive.chunks,
            combine: receive.combine,
        })
    };
    present.iter().enumerate().filter_map(meeting).collect()
}

fn deliver<T: Values>(
    event: Event,
    present: &mut [Present<T::Value>],
    buffers: &mut [Vec<T::Value>],
    values: &mut T,
) {
    present[event.rank].receiving = false;
    let sender = &mut present[event.from];
    sender.sending = None;
    let held = &mut buffers[event.rank][event.received.start..event.received.end];
    for (held, arrived) in held.iter_mut().zip(sender.sent.drain(..)) {
        match event.combine {
            Combine::Replace => *held = arrived,
            Combine::Reduce | Combine::ReduceBefore => values.reduce(event, held, &arrived),
        }
    }
}
