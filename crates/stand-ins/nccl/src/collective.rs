//! Executes a collective in stream order.

use std::fmt;
use std::sync::atomic::AtomicBool;

use crate::area::{Area, BLOCK};
use crate::driver::host_address;
use crate::reduction::{DataType, Operator, reduce};
use crate::results::{Fault, Kind, Stop};

/// The kind of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Collective {
    AllReduce,
    Reduce,
    Broadcast,
    ReduceScatter,
    AllGather,
}

/// A collective as it was called.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    pub(crate) send: u64,
    pub(crate) receive: u64,
    /// The number of elements as NCCL counts them: of one rank's part, if there are parts.
    pub(crate) count: usize,
    pub(crate) dtype: DataType,
    /// `None` if the collective does not reduce.
    pub(crate) op: Option<Operator>,
    pub(crate) root: usize,
    pub(crate) stream: usize,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} {:?}", self.collective, self.count, self.dtype)?;
        if let Some(op) = self.op {
            write!(f, " by {op:?}")?;
        }
        if matches!(self.collective, Collective::Reduce | Collective::Broadcast) {
            write!(f, " with root {}", self.root)?;
        }
        Ok(())
    }
}

impl Call {
    /// The words that must be equal on all ranks: the number of earlier calls, and the call.
    fn words(&self, number: u64) -> [u64; 3] {
        let op = self.op.map_or(0xff, |op| op as u64);
        let what = self.collective as u64 | (self.dtype as u64) << 8 | op << 16 | (self.root as u64) << 32;
        [number, what, self.count as u64]
    }

    /// Decodes another rank's call, without its buffers.
    fn from_words(words: [u64; 3]) -> Self {
        use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
        use DataType::{BF16, F16, F32, F64, I32, I64, U8, U32, U64};
        use Operator::{Max, Mean, Min, Product, Sum};
        let byte = |shift: u32| (words[1] >> shift & 0xff) as usize;
        Self {
            collective: [AllReduce, Reduce, Broadcast, ReduceScatter, AllGather][byte(0)],
            dtype: [U8, I32, U32, I64, U64, F16, F32, F64, BF16][byte(8)],
            op: [Sum, Product, Max, Min, Mean].get(byte(16)).copied(),
            root: (words[1] >> 32) as usize,
            count: words[2] as usize,
            send: 0,
            receive: 0,
            stream: 0,
        }
    }

    /// Executes the collective as this rank; `number` collectives of the communicator came before.
    pub(crate) fn execute(&self, area: &Area, number: u64, is_aborted: &AtomicBool) -> Result<(), Stop> {
        let all = area.calls(self.words(number), is_aborted)?;
        if let Some(other) = all.iter().position(|words| *words != all[0]) {
            let name = |rank: usize| format!("rank {rank} calls {}", Self::from_words(all[rank]));
            let message =
                format!("collective {number} is not the same on all ranks: {}, {}", name(0), name(other));
            return Err(Fault::new(Kind::InternalError, message).into());
        }
        let (bytes, ranks) = (self.count * self.dtype.bytes(), area.ranks);
        let is_root = area.rank == self.root;
        let (sent, received) = match self.collective {
            Collective::AllReduce => (bytes, bytes),
            Collective::Reduce => (bytes, if is_root { bytes } else { 0 }),
            Collective::Broadcast => (if is_root { bytes } else { 0 }, bytes),
            Collective::ReduceScatter => (bytes * ranks, bytes),
            Collective::AllGather => (bytes, bytes * ranks),
        };
        let send = host_address("send", self.send, sent)?;
        let receive = host_address("receive", self.receive, received)?;

        let parts = if self.collective == Collective::ReduceScatter { ranks } else { 1 };
        for part in 0..parts {
            for begin in (0..bytes).step_by(BLOCK) {
                let length = BLOCK.min(bytes - begin);
                if !send.is_null() {
                    // SAFETY: within the send buffer; only this rank writes its block until the barrier.
                    unsafe { area.block(area.rank).copy_from(send.add(part * bytes + begin), length) };
                }
                area.meet(is_aborted)?;
                if !receive.is_null() && (parts == 1 || part == area.rank) {
                    // SAFETY: the receive buffer has the length that this collective needs.
                    unsafe { self.take(area, receive.add(begin), bytes, length) };
                }
                // No rank may overwrite its block before all have read it.
                area.meet(is_aborted)?;
            }
        }
        Ok(())
    }

    /// Computes what this rank receives from the blocks of all ranks.
    ///
    /// # Safety
    /// `to` must be valid for writes of `length` bytes; for an all-gather, of the parts of all ranks in `bytes`.
    unsafe fn take(&self, area: &Area, to: *mut u8, bytes: usize, length: usize) {
        let shown = |rank: usize| area.block(rank).cast_const();
        // SAFETY: as the caller promises; a block has this length, and is not written between the barriers.
        unsafe {
            match self.collective {
                Collective::Broadcast => to.copy_from(shown(self.root), length),
                Collective::AllGather => {
                    (0..area.ranks).for_each(|rank| to.add(rank * bytes).copy_from(shown(rank), length));
                }
                Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => {
                    let all: Vec<_> = (0..area.ranks).map(shown).collect();
                    let op = self.op.expect("a reduction has an operator");
                    reduce(self.dtype, op, &all, to, length / self.dtype.bytes());
                }
            }
        }
    }
}
