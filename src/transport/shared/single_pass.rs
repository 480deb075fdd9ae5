//! A single pass over memory: all ranks open their buffers to each other, and each works on its own range of all of them.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::board::Lent;
use super::channel::Content;
use super::open::{Open, Shares};
use super::reach::{Start, access_failure};
use super::{Checks, Own, Shared};
use crate::error::Result;
use crate::kernels;
use crate::memory::{Location, Scratch};
use crate::transport::waiting::Poll;
use crate::transport::{Deadlines, Failure, Header, Waiting};

/// The range size from which copies by a fast kernel are cheaper than Unisono's copies of memory that is not
/// registered.
const KERNEL_BYTES: usize = 512 << 10;

impl Shared {
    /// As [`Fabric::single_pass`](crate::transport::Fabric::single_pass). Memory that is not registered is lent as a copy, or accessed by the kernel.
    pub(in crate::transport) fn single_pass(
        &mut self,
        header: &Header,
        buffer: &mut [u8],
        Shares { ranges, share_bytes, read, written }: Shares<impl Fn(usize) -> Range<usize>>,
        deadlines: &Deadlines,
        work: impl FnOnce(&mut Open<'_>) -> Result<()>,
    ) -> Result<(), Failure> {
        self.passes += 1;
        let number = self.passes;
        let Self {
            position, members, board, status, reach, registry, spins, starts, lent_copy, copy, ..
        } = self;
        let own = Own { position: *position, members, board, status, registry: *registry };
        let Own { position, members, board, status, registry } = own;
        let header = header.of_size(buffer.len());
        let checks = Checks { own, header: &header, passes: number - 1 };
        let others = (0..members.len()).filter(|&other| other != position);
        let range = ranges(position);

        let lent_buffer: *mut [u8] = buffer;
        let (lent, is_copy) = match registry.lend(lent_buffer) {
            Some(lent) => (lent, false),
            None if share_bytes >= KERNEL_BYTES && reach.copies_by_kernel(&header) => {
                ((Location::of_address(lent_buffer), None), false)
            }
            None => {
                let copy = lent_copy.reserve(members.len() * share_bytes).map_err(Failure::Error)?;
                if read {
                    places(others.clone(), &ranges, share_bytes)
                        .for_each(|(share, range)| kernels::copy(&mut copy[share], &buffer[range]));
                }
                let (location, loan) = registry.lend(copy).expect("scratch is registered");
                ((location.with_shares(), loan), true)
            }
        };
        let (location, loan) = lent;
        // Memory that the others only read needs no loan. If another communicator detaches it meanwhile, they read (and claim) the pages of the file.
        // These keep the bytes that the others read: this rank wrote them before it lent them, and in the pass it writes only to its own range.
        let loan = loan.filter(|_| written);
        let lent = Lent::by(own, (location, loan), written);
        // SAFETY: only this rank posts here, and all ranks have read the previous post, since they have closed that pass.
        unsafe { board.condition(position).opened.post(number, Content { header, location }) };
        let waiting = || Waiting::new(*spins, deadlines, status);
        for other in others.clone() {
            let theirs = wait(checks, waiting(), || board.condition(other).opened.read(number).ok_or(other))?;
            header.check(&theirs.header, members[other], status)?;
        }
        // If a rank has failed, this one waits here for its failure report. Locations are valid only inside: a failed rank may have freed its
        // memory, and its descriptor may refer to another file.
        let withdrawn = || board.withdrawn(others.clone());
        let enter = || board.enter(position, others.clone()).ok_or_else(|| withdrawn().unwrap_or(position));
        let inside = wait(checks, waiting(), enter)?;
        let mut took_copies = false;
        // A rank without work accesses no memory: the location of an empty range does not identify any.
        if !range.is_empty() {
            for other in others.clone() {
                let theirs = board.condition(other).opened.read(number).expect("it stays open").location;
                let share = theirs.share_of(position, share_bytes);
                let (is_copy, place) = (share.is_some(), share.unwrap_or_else(|| theirs.after(range.start)));
                let start = reach.start(other, place, range.len(), is_copy);
                starts[other] = start.map_err(|error| access_failure(error, status))?;
            }
            let mut open = Open::new(lent_buffer, range, is_copy, (starts, reach, copy));
            work(&mut open).map_err(|error| access_failure(error, status))?;
            took_copies = open.took_copies;
        }
        drop(inside);
        // A rank that failed in the meantime may have changed its memory. This rank waits here for the failure report too.
        wait(checks, waiting(), || withdrawn().map_or(Ok(()), Err))?;
        board.condition(position).closed.store(number, Ordering::Release);
        // This rank has released the posts of this pass. The posts of the next pass stay until it has closed that pass.
        let checks = Checks { passes: number, ..checks };
        for other in others.clone() {
            let is_closed = || board.condition(other).closed.load(Ordering::Acquire) >= number;
            wait(checks, waiting(), || if is_closed() { Ok(()) } else { Err(other) })?;
        }
        lent.finish();
        if written {
            let is_copied = |&other: &usize| matches!(starts[other], Start::Mapped { is_copy: true, .. });
            let results = others.filter(|other| !(took_copies && is_copied(other)));
            let copy = is_copy.then_some(lent_copy);
            take_results(buffer, copy, places(results, &ranges, share_bytes), read);
        }
        Ok(())
    }
}

/// Takes what other ranks have written, from the lent copy if there is one. They write there again next, unless this rank does (`writes_next`).
fn take_results(
    buffer: &mut [u8],
    mut copy: Option<&mut Scratch>,
    results: impl Iterator<Item = (Range<usize>, Range<usize>)>,
    writes_next: bool,
) {
    for (share, range) in results {
        let own = &mut buffer[range];
        let copied = copy.as_mut().map(|copy| &mut copy.take(share.end)[share]);
        match copied {
            Some(copied) if writes_next => kernels::copy(own, copied),
            Some(copied) => kernels::take(own, copied),
            None if writes_next => {}
            None => kernels::claim(own),
        }
    }
}

/// Returns the places of these ranks' ranges in a copy, in which each rank has a share, and in the buffer.
fn places(
    ranks: impl Iterator<Item = usize>,
    ranges: impl Fn(usize) -> Range<usize>,
    share_bytes: usize,
) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    ranks.map(move |rank| {
        let (start, range) = (rank * share_bytes, ranges(rank));
        (start..start + range.len(), range)
    })
}

/// Waits until `observe` returns the change by another rank. Until then, it returns the position of the awaited rank as the error.
#[inline]
fn wait<R>(
    checks: Checks<'_>,
    waiting: Waiting<'_>,
    observe: impl Fn() -> Result<R, usize>,
) -> Result<R, Failure> {
    let poll = || Ok(observe().map_or_else(|other| Poll::WaitsFor(checks.own.members[other]), Poll::Done));
    waiting.until(poll, |other, waiting| checks.poll(other, waiting))
}
