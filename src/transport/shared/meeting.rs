//! All ranks open their buffers to each other, and each works on a range of its own of all of them.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::board::Lent;
use super::channel::Content;
use super::{Around, Shared};
use crate::transport::half::Sight;
use crate::transport::{Failure, Header, Waiting};

/// The buffers of all ranks, as far as this rank may work on them: one range, which no other rank touches.
#[derive(Debug)]
pub(crate) struct Open<'a> {
    buffers: &'a [*mut u8],
    own: usize,
    range: Range<usize>,
}

impl Open<'_> {
    /// The range that this rank works on, in bytes of the buffer.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// A part of the range, in this rank's buffer and in another's.
    ///
    /// # Panics
    /// If it is no part of the range, or the other rank is this one.
    pub(crate) fn pair(&mut self, other: usize, part: Range<usize>) -> (&mut [u8], &mut [u8]) {
        assert!(other != self.own && self.range.start <= part.start && part.end <= self.range.end);
        // SAFETY: both buffers are lent to this rank until it says that it is done; they are not the same, no other
        // rank touches the range, and `self` is borrowed mutably.
        unsafe { (self.part(self.own, &part), self.part(other, &part)) }
    }

    /// A part of the range in this rank's buffer.
    ///
    /// # Panics
    /// If it is no part of the range.
    pub(crate) fn own(&mut self, part: Range<usize>) -> &mut [u8] {
        assert!(self.range.start <= part.start && part.end <= self.range.end);
        // SAFETY: as for `pair`.
        unsafe { self.part(self.own, &part) }
    }

    /// # Safety
    /// The part must be in the range, and nobody else may have a reference to it.
    unsafe fn part(&self, of: usize, part: &Range<usize>) -> &mut [u8] {
        // SAFETY: all buffers have the same size, and the range is inside it.
        unsafe { std::slice::from_raw_parts_mut(self.buffers[of].add(part.start), part.len()) }
    }
}

impl Shared {
    /// Whether all ranks can reach a buffer where it lies.
    pub(in crate::transport) fn reaches(&self, buffer: &[u8]) -> bool {
        self.registry.locate(buffer).is_some()
    }

    /// Opens this rank's buffer to all ranks that share this memory, lets `work` work on a range of all buffers,
    /// and returns when all ranks have.
    ///
    /// All ranks call it with buffers of the same size, which all of them reach, and with ranges of which no two
    /// touch: they are parts of the same partition.
    pub(in crate::transport) fn meet(
        &mut self,
        header: &Header,
        buffer: &mut [u8],
        range: Range<usize>,
        timeout: Duration,
        work: impl FnOnce(&mut Open<'_>),
    ) -> Result<(), Failure> {
        assert!(range.start <= range.end && range.end <= buffer.len());
        let Self { position, members, positions, board, reach, registry, spins, meetings, open, .. } = self;
        let (own, board) = (*position, &*board);
        let header = header.of_size(buffer.len());
        let around =
            Around { position: own, members, positions, board, header: &header, meetings: *meetings };
        let location = registry.locate(buffer).expect("a buffer that all ranks reach");
        let number = *meetings + 1;
        *meetings = number;

        let lent = Lent::by(board, own);
        // SAFETY: only this rank posts here, and all have read the post before, since they have closed that
        // meeting.
        unsafe { board.condition(own).opened.post(number, Content::new(header, location)) };
        open[own] = buffer.as_mut_ptr();
        let others = (0..members.len()).filter(|&other| other != own);
        for other in others.clone() {
            let opened = || board.condition(other).opened.read(number);
            let theirs = wait(around, other, Waiting::new(*spins, timeout), opened)?;
            header.check(&theirs.header, members[other])?;
            open[other] = reach.pointer(other, theirs.location(), buffer.len()).map_err(Failure::Error)?;
        }
        // Whoever finds a rank that has failed waits here for what it says.
        let enter = || board.enter(own, others.clone());
        let inside = wait(around, own, Waiting::new(*spins, timeout), enter)?;
        work(&mut Open { buffers: open, own, range });
        drop(inside);
        board.condition(own).closed.store(number, Ordering::Release);
        for other in others {
            let closed = || (board.condition(other).closed.load(Ordering::Acquire) >= number).then_some(());
            wait(around, other, Waiting::new(*spins, timeout), closed)?;
        }
        lent.is_back();
        Ok(())
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
