//! All ranks open their buffers to each other, and each works on a range of its own of all of them.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::board::Lent;
use super::channel::Content;
use super::reach::{KERNEL_BLOCK_BYTES, Reach};
use super::{Around, Shared};
use crate::error::Result;
use crate::registered::Location;
use crate::scratch::Scratch;
use crate::transport::half::Sight;
use crate::transport::{Failure, Header, Patience, Waiting};

/// From this size of a range on, the kernel's copies of what is not registered cost less than ours.
const KERNEL_BYTES: usize = 512 << 10;

/// How much is copied at a time to an array that another rank will write again itself: so little that `memcpy` stores it
/// line by line, and not by the processor's string instruction. That takes three times as long for lines that this
/// core's cache has already (27 and 9 µs for an all-reduce of 256 KiB that nobody writes to between calls), but
/// two thirds of the time for those that it has not, as in copies that are lent.
const STORED_BYTES: usize = 1 << 10;

/// Where another rank has what this one is to work on.
#[derive(Debug, Clone, Copy)]
pub(super) enum Start {
    /// In memory that is mapped here: the array itself, or (`is_copy`) a copy that is lent in its place.
    Mapped { start: *mut u8, is_copy: bool },
    /// In memory that only the kernel copies from and to.
    Elsewhere(u64),
}

/// One range of the buffers of all ranks, which no other rank touches.
#[derive(Debug)]
pub(crate) struct Open<'a> {
    own: &'a mut [u8],
    /// Where the range begins for each of the other ranks.
    starts: &'a [Start],
    reach: &'a mut Reach,
    copy: &'a mut Scratch,
}

impl Open<'_> {
    /// The range in this rank's buffer.
    pub(crate) fn own(&mut self) -> &mut [u8] {
        self.own
    }

    /// How much of the range is best worked on at a time, where `preferred` is best for memory at hand.
    pub(crate) fn block_bytes(&self, preferred: usize) -> usize {
        let elsewhere = |start: &Start| matches!(start, Start::Elsewhere(_));
        if self.starts.iter().any(elsewhere) { KERNEL_BLOCK_BYTES } else { preferred }
    }

    /// A part of the range in this rank's buffer, and in another's if that is at hand.
    pub(crate) fn at_hand(&mut self, other: usize, part: Range<usize>) -> Option<(&mut [u8], &mut [u8])> {
        let Start::Mapped { start, .. } = self.starts[other] else { return None };
        let own = &mut self.own[part.clone()];
        // SAFETY: the other rank lends the range to this one, and to no other, until this one says that it is done; the
        // part is inside it, as in this rank's, which has the same size; and `self` is borrowed mutably.
        Some((own, unsafe { std::slice::from_raw_parts_mut(start.add(part.start), part.len()) }))
    }

    /// A part of the range in this rank's buffer, and what another rank has there.
    pub(crate) fn both(&mut self, other: usize, part: Range<usize>) -> Result<(&mut [u8], &[u8])> {
        match self.starts[other] {
            Start::Mapped { .. } => {
                let (own, theirs) = self.at_hand(other, part).expect("it is mapped");
                Ok((own, theirs))
            }
            Start::Elsewhere(address) => {
                let copy = self.copy.take(part.len());
                self.reach.fetch(other, address + part.start as u64, copy)?;
                Ok((&mut self.own[part], copy))
            }
        }
    }

    /// Gives another rank this one's values of a part of the range.
    pub(crate) fn give(&mut self, other: usize, part: Range<usize>) -> Result<()> {
        match self.starts[other] {
            Start::Mapped { is_copy, .. } => {
                let (own, theirs) = self.at_hand(other, part).expect("it is mapped");
                let at_a_time = if is_copy { own.len().max(1) } else { STORED_BYTES };
                for (theirs, own) in theirs.chunks_mut(at_a_time).zip(own.chunks(at_a_time)) {
                    theirs.copy_from_slice(own);
                }
                Ok(())
            }
            Start::Elsewhere(address) => {
                self.reach.store(other, address + part.start as u64, &self.own[part])
            }
        }
    }
}

impl Shared {
    /// Opens this rank's buffer to all ranks that share this memory, lets `work` work on this rank's range of all
    /// buffers, and returns when all ranks have worked on theirs.
    ///
    /// All ranks call it with buffers of the same size and the same `ranges`, which says what range each of them
    /// has, as parts of a partition. What is not registered is lent as a copy, or to the kernel.
    pub(in crate::transport) fn meet(
        &mut self,
        header: &Header,
        buffer: &mut [u8],
        ranges: impl Fn(usize) -> Range<usize>,
        patience: &Patience,
        work: impl FnOnce(&mut Open<'_>) -> Result<()>,
    ) -> Result<(), Failure> {
        let Self {
            position,
            members,
            board,
            roll,
            reach,
            registry,
            spins,
            meetings,
            starts,
            dealt,
            copy,
            ..
        } = self;
        let (own, board, roll) = (*position, &*board, &*roll);
        let header = header.of_size(buffer.len());
        let around = Around { position: own, members, board, roll, header: &header, meetings: *meetings };
        let others = (0..members.len()).filter(|&other| other != own);
        let range = ranges(own);
        // Asked for only where something is not registered.
        let share_bytes = || share_bytes(members.len(), &ranges);
        let number = *meetings + 1;
        *meetings = number;

        let mut is_copy = false;
        let lent: *mut [u8] = buffer;
        let location = registry.locate(lent).unwrap_or_else(|| {
            if reach.can_ask_kernel() && share_bytes() >= KERNEL_BYTES {
                return Location::of_address(lent);
            }
            is_copy = true;
            let copy = deal((dealt, members.len()), buffer, others.clone(), &ranges, share_bytes());
            registry.locate(copy).expect("scratch is registered").dealt()
        });
        let lent = Lent::by(board, roll, own);
        // SAFETY: only this rank posts here, and all have read the post before, since they have closed that
        // meeting.
        unsafe { board.condition(own).opened.post(number, Content::new(header, location)) };
        for other in others.clone() {
            let opened = || board.condition(other).opened.read(number);
            let theirs = wait(around, other, Waiting::new(*spins, patience, roll), opened)?;
            header.check(&theirs.header, members[other], roll)?;
        }
        // Whoever finds a rank that has failed waits here for what it says. What is said of places holds only
        // inside: a rank that has failed may have given back its memory, and its file's number to another file.
        let enter = || board.enter(own, others.clone());
        let inside = wait(around, own, Waiting::new(*spins, patience, roll), enter)?;
        // Who has nothing to work on looks at nothing: where no bytes are says nothing of whose memory that is.
        if !range.is_empty() {
            for other in others.clone() {
                let theirs = board.condition(other).opened.read(number).expect("it stays open").location();
                starts[other] = match theirs.share_of(own, share_bytes) {
                    Some(share) => reach.start(other, share, range.len(), true),
                    None => reach.start(other, theirs.after(range.start), range.len(), false),
                }
                .map_err(Failure::Error)?;
            }
            work(&mut Open { own: &mut buffer[range], starts, reach, copy }).map_err(Failure::Error)?;
        }
        drop(inside);
        board.condition(own).closed.store(number, Ordering::Release);
        for other in others.clone() {
            let closed = || (board.condition(other).closed.load(Ordering::Acquire) >= number).then_some(());
            wait(around, other, Waiting::new(*spins, patience, roll), closed)?;
        }
        lent.take_back();
        if is_copy {
            gather(dealt, buffer, others, &ranges, share_bytes());
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
    (dealt, ranks): (&'a mut Scratch, usize),
    buffer: &[u8],
    others: impl Iterator<Item = usize>,
    ranges: impl Fn(usize) -> Range<usize>,
    share_bytes: usize,
) -> &'a [u8] {
    let copy = dealt.take(ranks * share_bytes);
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
    mut waiting: Waiting<'_>,
    look: impl Fn() -> Option<R>,
) -> Result<R, Failure> {
    let other = around.members[other];
    loop {
        if let Some(seen) = look() {
            return Ok(seen);
        }
        let due = match waiting.pause_for(other) {
            Err(late @ Failure::Timeout { .. }) => {
                around.look(other, &waiting)?;
                return look().ok_or(late);
            }
            paused => paused?,
        };
        if due && around.look(other, &waiting)? == Sight::Gone {
            return look().ok_or(Failure::Left { other });
        }
    }
}
