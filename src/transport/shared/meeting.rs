//! All ranks open their buffers to each other, and each works on a range of its own of all of them.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::board::Lent;
use super::channel::Content;
use super::{Around, Shared};
use crate::scratch::Scratch;
use crate::transport::half::Sight;
use crate::transport::{Failure, Header, Waiting};

/// One range of the buffers of all ranks, which no other rank touches.
#[derive(Debug)]
pub(crate) struct Open<'a> {
    /// Where the range begins for each rank.
    starts: &'a [*mut u8],
    own: usize,
    size_bytes: usize,
}

impl Open<'_> {
    /// The size of the range.
    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// A part of the range, in this rank's buffer and in another's.
    ///
    /// # Panics
    /// If it is no part of the range, or the other rank is this one.
    pub(crate) fn pair(&mut self, other: usize, part: Range<usize>) -> (&mut [u8], &mut [u8]) {
        assert_ne!(other, self.own);
        // SAFETY: the two buffers are not the same, and `self` is borrowed mutably.
        unsafe { (self.part(self.own, &part), self.part(other, &part)) }
    }

    /// A part of the range, in this rank's buffer.
    ///
    /// # Panics
    /// If it is no part of the range.
    pub(crate) fn own(&mut self, part: Range<usize>) -> &mut [u8] {
        // SAFETY: `self` is borrowed mutably.
        unsafe { self.part(self.own, &part) }
    }

    /// # Safety
    /// Nobody else may have a reference to this part of this rank's.
    unsafe fn part(&self, of: usize, part: &Range<usize>) -> &mut [u8] {
        assert!(part.start <= part.end && part.end <= self.size_bytes);
        // SAFETY: each rank lends the range to this one, and to no other, until this one says that it is done.
        unsafe { std::slice::from_raw_parts_mut(self.starts[of].add(part.start), part.len()) }
    }
}

impl Shared {
    /// Opens this rank's buffer to all ranks that share this memory, lets `work` work on this rank's range of all
    /// buffers, and returns when all ranks have worked on theirs.
    ///
    /// All ranks call it with buffers of the same size and the same `ranges`, which says what range each of them
    /// has, as parts of a partition. What is not registered is lent as a copy.
    pub(in crate::transport) fn meet(
        &mut self,
        header: &Header,
        buffer: &mut [u8],
        ranges: impl Fn(usize) -> Range<usize>,
        timeout: Duration,
        work: impl FnOnce(&mut Open<'_>),
    ) -> Result<(), Failure> {
        let Self {
            position, members, positions, board, reach, registry, spins, meetings, open, dealt, ..
        } = self;
        let (own, board) = (*position, &*board);
        let header = header.of_size(buffer.len());
        let around =
            Around { position: own, members, positions, board, header: &header, meetings: *meetings };
        let others = (0..members.len()).filter(|&other| other != own);
        let share_bytes = share_bytes(members.len(), &ranges);
        let number = *meetings + 1;
        *meetings = number;

        let registered = registry.locate(buffer);
        let location = registered.unwrap_or_else(|| {
            let copy =
                deal((dealt, members.len() * share_bytes), buffer, others.clone(), &ranges, share_bytes);
            registry.locate(copy).expect("scratch is registered").dealt()
        });
        let lent = Lent::by(board, own);
        // SAFETY: only this rank posts here, and all have read the post before, since they have closed that
        // meeting.
        unsafe { board.condition(own).opened.post(number, Content::new(header, location)) };
        let range = ranges(own);
        open[own] = buffer[range.clone()].as_mut_ptr();
        for other in others.clone() {
            let opened = || board.condition(other).opened.read(number);
            let theirs = wait(around, other, Waiting::new(*spins, timeout), opened)?;
            header.check(&theirs.header, members[other])?;
            let theirs = theirs.location();
            let start = theirs.share_of(own, share_bytes).unwrap_or_else(|| theirs.after(range.start));
            open[other] = reach.pointer(other, start, range.len()).map_err(Failure::Error)?;
        }
        // Whoever finds a rank that has failed waits here for what it says.
        let enter = || board.enter(own, others.clone());
        let inside = wait(around, own, Waiting::new(*spins, timeout), enter)?;
        work(&mut Open { starts: open, own, size_bytes: range.len() });
        drop(inside);
        board.condition(own).closed.store(number, Ordering::Release);
        for other in others.clone() {
            let closed = || (board.condition(other).closed.load(Ordering::Acquire) >= number).then_some(());
            wait(around, other, Waiting::new(*spins, timeout), closed)?;
        }
        lent.is_back();
        if registered.is_none() {
            gather(dealt, buffer, others, &ranges, share_bytes);
        }
        Ok(())
    }
}

/// How much of a copy is for each rank: enough for the longest range, in whole cache lines.
fn share_bytes(ranks: usize, ranges: impl Fn(usize) -> Range<usize>) -> usize {
    (0..ranks).map(|rank| ranges(rank).len()).max().unwrap_or(0).next_multiple_of(64)
}

/// Copies what each of the other ranks will work on.
fn deal<'a>(
    (dealt, size_bytes): (&'a mut Scratch, usize),
    buffer: &[u8],
    others: impl Iterator<Item = usize>,
    ranges: impl Fn(usize) -> Range<usize>,
    share_bytes: usize,
) -> &'a [u8] {
    let copy = dealt.take(size_bytes);
    for other in others {
        let (share, range) = (other * share_bytes, ranges(other));
        copy[share..share + range.len()].copy_from_slice(&buffer[range]);
    }
    copy
}

/// Copies back what each of the other ranks has worked on.
fn gather(
    dealt: &mut Scratch,
    buffer: &mut [u8],
    others: impl Iterator<Item = usize>,
    ranges: impl Fn(usize) -> Range<usize>,
    share_bytes: usize,
) {
    for other in others {
        let (share, range) = (other * share_bytes, ranges(other));
        let results = &dealt.take(share + range.len())[share..];
        buffer[range].copy_from_slice(results);
    }
}

/// Waits until `look` sees what another rank does.
#[inline]
fn wait<R>(
    around: Around<'_>,
    other: usize,
    mut waiting: Waiting,
    look: impl Fn() -> Option<R>,
) -> Result<R, Failure> {
    let other = around.members[other];
    loop {
        if let Some(seen) = look() {
            return Ok(seen);
        }
        let due = waiting.pause().map_err(|waited| Failure::Timeout { other, waited })?;
        if due && around.look(other, &waiting)? == Sight::Gone {
            return look().ok_or(Failure::Left { other });
        }
    }
}
