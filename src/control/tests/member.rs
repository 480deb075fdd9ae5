//! A member of a simulation, and the program above the protocol: it calls for an agreement, gathers bytes in the new view, and continues.

use super::{Endpoint, Event, Rank, Schedule, Setup, Time};
use crate::control::{Gathered, Hidden, Outcome};

/// The time for which a member that leaves waits for the answers to its connections, as its driver does.
const LAST_ANSWER: Time = Time::from_millis(500);

/// The outcome of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    Running,
    /// It continues in this view.
    Finished(u64, Vec<Rank>),
    Partitioned(Vec<Rank>),
    Missing(Vec<Rank>),
    Crashed,
    /// It has said goodbye.
    Left,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) rank: Rank,
    /// `None` once the process has ended, or continues without the protocol.
    pub(super) endpoint: Option<Endpoint>,
    pub(super) fate: Fate,
    /// The views that it has agreed on.
    pub(super) held: Vec<(u64, Vec<Rank>)>,
    pub(super) called: Option<Time>,
    pub(super) ended: Option<Time>,
    calls: bool,
    view: (u64, Vec<Rank>),
    is_last_round: bool,
    /// Whether the program calls for another view after its driver has handled further events.
    pub(super) calls_again: bool,
    sends_left: Option<u32>,
    leaves_since: Option<Time>,
}

impl Member {
    pub(super) fn new(rank: Rank, schedule: &Schedule) -> Self {
        let setup = Setup {
            own: rank,
            ranks: schedule.ranks,
            secret: Hidden(b"secret".to_vec()),
            accepts: (rank + 1..schedule.ranks).collect(),
            expected: 0,
            awaited: (0..schedule.ranks).filter(|&other| other != rank).collect(),
            keeps_alive: false,
        };
        Self {
            rank,
            endpoint: Some(Endpoint::new(setup)),
            fate: Fate::Running,
            held: Vec::new(),
            called: None,
            ended: None,
            calls: schedule.calls_at(rank).is_some(),
            view: (0, Vec::new()),
            is_last_round: false,
            calls_again: false,
            sends_left: schedule.crash_at_send(rank),
            leaves_since: None,
        }
    }

    pub(super) fn handle(&mut self, now: Time, event: Event<'_>) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.handle(now, event);
        }
    }

    pub(super) fn call(&mut self, now: Time, schedule: &Schedule) {
        self.called.get_or_insert(now);
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.call(now, schedule.patience, schedule.minimum);
        }
    }

    pub(super) fn crash(&mut self) {
        self.endpoint = None;
        self.fate = Fate::Crashed;
    }

    /// Says goodbye, unless it still waits for an answer. Returns whether it has left.
    pub(super) fn leaves(&mut self, now: Time) -> bool {
        let Some(endpoint) = &mut self.endpoint else { return true };
        let since = *self.leaves_since.get_or_insert(now);
        if endpoint.is_connecting() && now < since + LAST_ANSWER {
            return false;
        }
        endpoint.close();
        self.fate = Fate::Left;
        true
    }

    pub(super) fn crashes_before_sending(&mut self) -> bool {
        match &mut self.sends_left {
            Some(0) => self.crash(),
            Some(left) => *left -= 1,
            None => {}
        }
        self.endpoint.is_none()
    }

    /// Returns whether nothing more is expected of it.
    pub(super) fn has_ended(&self) -> bool {
        self.fate != Fate::Running || !self.calls
    }

    /// Continues after an outcome. Returns whether there may be something to send.
    pub(super) fn continues(&mut self, now: Time, schedule: &Schedule) -> bool {
        let Some(endpoint) = &mut self.endpoint else { return false };
        if self.fate != Fate::Running {
            // It has said goodbye.
            self.endpoint = None;
            return false;
        }
        let fate = match endpoint.take_outcome() {
            Some(Outcome::Agreed(view)) => {
                self.view = (view.number, view.members);
                self.held.push(self.view.clone());
                self.is_last_round = false;
                endpoint.gather(now, schedule.patience, vec![self.rank as u8]);
                return true;
            }
            Some(Outcome::Finished) => Fate::Finished(self.view.0, self.view.1.clone()),
            Some(Outcome::Partitioned { lost }) => Fate::Partitioned(lost),
            Some(Outcome::Missing(ranks)) => Fate::Missing(ranks),
            None => match endpoint.take_gathered() {
                Some(Gathered::All(_)) if self.is_last_round => {
                    Fate::Finished(self.view.0, self.view.1.clone())
                }
                Some(Gathered::All(bytes)) => {
                    let expected: Vec<_> = self.view.1.iter().map(|&rank| vec![rank as u8]).collect();
                    assert_eq!(bytes, expected, "the bytes of every member");
                    self.is_last_round = true;
                    endpoint.finish(now, schedule.patience);
                    return true;
                }
                Some(Gathered::Failed(_)) => {
                    self.calls_again = true;
                    return false;
                }
                Some(Gathered::Missing(ranks)) => Fate::Missing(ranks),
                None => return false,
            },
        };
        endpoint.close();
        self.fate = fate;
        self.ended = Some(now);
        true
    }
}
