//! The ends of operations: complete, at a deadline, or with a failure, which ends all of them.

use std::time::Instant;

use unisono_collectives::Rank;

use super::{Arrival, Arriving, Links, Operation, Peer, PointToPoint};
use crate::error::{Error, Result};
use crate::status::{StatusBoard, dump_failed};
use crate::system::print_line;
use crate::transport::{Failure, clock};

impl PointToPoint {
    pub(super) fn end(&mut self, call: Operation, result: Result<Rank>) {
        if let Some(observer) = self.status.observer() {
            match &result {
                Ok(_) => observer.message(call.is_send, call.header.size_bytes()),
                // A blocking call reports its error itself.
                Err(error) if !call.is_blocking() => observer.failed(error.code()),
                Err(_) => {}
            }
        }
        self.pending -= 1;
        match call.on_end {
            Some(on_end) => {
                self.status.message_ends();
                self.finished.push((on_end, result));
            }
            None => self.ended.push((call.ticket, result)),
        }
    }

    /// Ends an operation with a failure, and all others because of it.
    pub(super) fn fail(&mut self, call: Operation, failure: Failure) {
        let rank = self.status.rank();
        let error = failure.at(call.place(rank), &self.status).in_call(rank);
        let (first, cause) = error.first_cause(rank);
        self.end(call, Err(error));
        self.lose(first, &cause);
    }

    /// Reports that this rank cannot continue, and ends all operations.
    pub(super) fn lose(&mut self, first: Rank, cause: &str) {
        if self.failure.is_none() {
            self.status.give_up(first, cause);
            dump_failed(&self.status, cause);
        }
        self.close(first, cause);
    }

    /// Ends a receive from a rank, because of a failure of its link.
    pub(super) fn fail_receive(&mut self, from: Rank, failure: Failure) {
        let receive = match self.peers[from].arriving.take() {
            Some(Arriving { target: Arrival::Receive(receive), .. }) => {
                self.links.withdraw_from(from);
                Some(receive)
            }
            held => {
                self.peers[from].arriving = held;
                let place = self.awaited.iter().position(|receive| receive.is_from(from));
                place.map(|place| self.awaited.remove(place))
            }
        };
        match receive {
            Some(receive) => self.fail(receive.call, failure),
            // A message is arriving for which no receive waits any more.
            None => {
                let (first, cause) = match failure {
                    Failure::Error(error) => error.first_cause(self.status.rank()),
                    failure => (from, format!("{failure:?}")),
                };
                self.lose(first, &format!("a message from rank {from} cannot be received: {cause}"));
            }
        }
    }

    /// Ends all operations, because rank `first` has failed. Later ones end at once.
    pub(super) fn close(&mut self, first: Rank, cause: &str) {
        self.failure.get_or_insert_with(|| (first, cause.to_owned()));
        let mut calls = Vec::new();
        for (to, peer) in self.peers.iter_mut().enumerate() {
            for send in peer.sends.drain(..) {
                self.links.withdraw(to, &send);
                calls.push(send.call);
            }
            if let Some(Arriving { target, .. }) = peer.arriving.take() {
                match (self.links.withdraw_from(to), target) {
                    (_, Arrival::Receive(receive)) => calls.push(receive.call),
                    (true, Arrival::Held(bytes)) => std::mem::forget(bytes),
                    (false, Arrival::Held(_)) => {}
                }
            }
            peer.held.clear();
        }
        calls.extend(self.awaited.drain(..).map(|receive| receive.call));
        self.held_bytes = 0;
        calls.sort_by_key(|call| call.ticket);
        for call in calls {
            let aborted = self.aborted().expect("it has just failed");
            self.end(call, Err(aborted));
        }
    }

    /// Returns whether the link may still access memory that returns to the program with a failure.
    pub(super) fn is_stranded(&self) -> bool {
        self.failure.is_some() && self.links.are_stranded(self.peers.len())
    }

    /// Ends the job, before memory returns to the program that the link may still access.
    pub(super) fn end_job_if_stranded(&self) {
        if !self.is_stranded() {
            return;
        }
        if let Some((_, cause)) = self.failure.as_ref().filter(|_| self.status.guard().is_none()) {
            print_line(&format!("rank {} ends the job: {cause}", self.status.rank()));
        }
        self.links.end_job(&self.status)
    }

    /// Returns the error of calls after a failure.
    pub(super) fn aborted(&self) -> Option<Error> {
        let (by, cause) = self.failure.clone()?;
        Some(Error::Aborted { rank: self.status.rank(), by, cause })
    }

    /// Renews the deadlines of receives that wait behind a message, after data of it have arrived.
    pub(super) fn renew_receives_from(&mut self, from: Rank) {
        let receives = self.awaited.iter_mut().filter(|receive| receive.is_from(from));
        receives.for_each(|receive| receive.call.renew());
    }

    /// Returns the awaited rank of a blocking call, for reports.
    pub(super) fn waits_for(&self, ticket: u64) -> Option<Rank> {
        let sends =
            self.peers.iter().position(|peer| peer.sends.iter().any(|send| send.call.ticket == ticket));
        let named = || self.awaited.iter().find(|receive| receive.call.ticket == ticket)?.from;
        sends.or_else(named)
    }

    /// Ends operations whose deadline has passed, or whose other rank has left. `is_alone` is whether this rank starts no collective before
    /// its blocking call ends.
    pub(super) fn check(&mut self, is_alone: bool) {
        // A message may have arrived while a function of the program ran, or while this process did not.
        self.progress();
        let all: Vec<_> = self.sources().collect();
        let Self { status, links, peers, awaited, .. } = self;
        let times = (clock::now(), status.is_quiet(), is_alone);
        let overdue =
            |call: &mut Operation, others: &[Rank]| call.failure(others, (&*links, &*status), times);
        for (other, Peer { sends, arriving, .. }) in peers.iter_mut().enumerate() {
            if let Some(send) = sends.front_mut()
                && let Some(failure) = overdue(&mut send.call, &[other])
            {
                let send = sends.pop_front().expect("it is in transit");
                links.withdraw(other, &send);
                return self.fail(send.call, failure);
            }
            if let Some(Arriving { target: Arrival::Receive(receive), .. }) = arriving
                && let Some(failure) = overdue(&mut receive.call, &[other])
            {
                return self.fail_receive(other, failure);
            }
        }
        let over = awaited.iter_mut().enumerate().find_map(|(place, receive)| {
            let from = receive.from.map(|from| [from]);
            let others = from.as_ref().map_or(&*all, |from| &from[..]);
            Some((place, overdue(&mut receive.call, others)?))
        });
        if let Some((place, failure)) = over {
            let receive = self.awaited.remove(place);
            self.fail(receive.call, failure);
        }
    }
}

impl Operation {
    /// Returns the failure of the operation, which waits for one of these ranks, if it must end.
    fn failure(
        &mut self,
        others: &[Rank],
        (links, status): (&Links, &StatusBoard),
        (now, is_quiet, is_alone): (Instant, bool, bool),
    ) -> Option<Failure> {
        let (waited, is_late) = self.silence(now, is_quiet);
        let may_deadlock = is_alone && self.is_blocking() && self.is_long(now);
        let (mut deadlock, mut gone) = (None, None);
        let mut others_left = others.len();
        for &other in others {
            if let Some((failure, grace)) = links.gone(other, status) {
                let (_, longest) = gone.get_or_insert((failure, grace));
                *longest = (*longest).max(grace);
                others_left -= 1;
            } else if may_deadlock && let Some(failure) = self.header.deadlock(other, status) {
                deadlock = deadlock.or(Some(failure));
                others_left -= 1;
            }
        }
        if others_left == 0 {
            let is_over = gone.as_ref().is_none_or(|(_, grace)| self.is_over(now, *grace));
            if is_over {
                return deadlock.or(gone.map(|(failure, _)| failure));
            }
        }
        let named = others.iter().find(|&&other| !status.has_left(other)).or(others.first());
        is_late.then(|| Failure::Timeout { other: *named.expect("there is another rank"), waited })
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;
    use crate::dtype::DType;
    use crate::transport::Header;

    #[test]
    fn local_failure_of_a_held_message_names_this_rank() {
        let status = StatusBoard::of_threads(2).unwrap().remove(0);
        let mut messages = PointToPoint::new(Links::default(), status);
        let header = Header::of_message(DType::F32, 4, (0, 0), 0);
        messages.peers[1].arriving = Some(Arriving { header, target: Arrival::Held(vec![0; 4]), taken: 0 });
        let cause = ErrorKind::OutOfMemory.into();
        messages.fail_receive(1, Failure::Error(Error::Memory { size_bytes: 4, cause }));
        assert!(matches!(messages.failure, Some((0, _))), "{:?}", messages.failure);
    }
}
