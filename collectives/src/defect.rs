//! Defects of plans.

use crate::schedule::Chunks;
use crate::world::Rank;

/// A defect of a set of plans. [`crate::verify()`] returns all that it finds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each defect's sentence names its fields")]
pub enum Defect {
    /// Ranks split the buffer differently, or not as the operation requires.
    #[error("rank {rank} cuts the buffer into {found} chunks, not {expected}")]
    ChunkCount { rank: Rank, found: usize, expected: usize },

    /// A step names a rank that does not exist.
    #[error("rank {rank}, step {step}: there is no rank {named}")]
    NoSuchRank { rank: Rank, step: usize, named: Rank },

    /// A step names chunks that do not exist.
    #[error("rank {rank}, step {step}: chunks {chunks} of {chunk_count} do not exist")]
    NoSuchChunk { rank: Rank, step: usize, chunks: Chunks, chunk_count: usize },

    /// A step replaces chunks that it also sends, so that the data sent depend on timing.
    #[error("rank {rank}, step {step}: sends chunks {sent} while chunks {replaced} are being replaced")]
    Overlap { rank: Rank, step: usize, sent: Chunks, replaced: Chunks },

    /// The two ends of a message name ranges of different lengths, or values that are not reduced would get another chunk's place.
    #[error("rank {to}, step {step}: receives chunks {received}, but rank {from} sends chunks {sent}")]
    Mismatch { from: Rank, to: Rank, step: usize, sent: Chunks, received: Chunks },

    /// A rank waits for a message, or for one to be received, but the other rank has finished.
    #[error("rank {rank}, step {step}: waits for rank {other}, which has finished")]
    Unmatched { rank: Rank, step: usize, other: Rank },

    /// A rank waits for another, which waits too.
    #[error("rank {rank}, step {step}: waits for rank {other}, which waits too")]
    Deadlock { rank: Rank, step: usize, other: Rank },

    /// A rank reduces a contribution that it already has.
    #[error("rank {rank}, step {step}: adds rank {contributor}'s contribution to chunk {chunk} twice")]
    Doubled { rank: Rank, step: usize, chunk: usize, contributor: Rank },

    /// A rank reduces values of two different chunks into each other.
    #[error("rank {rank}, step {step}: reduces values of chunk {arrived} into chunk {chunk}")]
    WrongChunk { rank: Rank, step: usize, chunk: usize, arrived: usize },

    /// At the end a rank lacks a contribution.
    #[error("rank {rank} ends without rank {contributor}'s contribution to chunk {chunk}")]
    Missing { rank: Rank, chunk: usize, contributor: Rank },

    /// At the end a rank has a contribution that it should not have.
    #[error("rank {rank} ends with an unexpected contribution in chunk {chunk}")]
    Foreign { rank: Rank, chunk: usize },

    /// At the end two ranks have the same sum, but added in different orders, which gives different bits in floating point.
    #[error("ranks {one} and {other} add up chunk {chunk} in different orders")]
    DifferentOrder { chunk: usize, one: Rank, other: Rank },

    /// A program sends a message that no rank receives.
    #[error("a message of rank {from} to rank {to} is never received")]
    NotTaken { from: Rank, to: Rank },

    /// In a pass over memory two ranks access the same elements.
    #[error("ranks {one} and {other} access chunk {chunk} of rank {of} in the same pass")]
    Race { one: Rank, other: Rank, of: Rank, chunk: usize },

    /// In a pass over memory, a rank accesses elements of another rank that were not lent to it.
    #[error("rank {rank} accesses chunk {chunk} of rank {of}, which is not lent to it")]
    NotLent { rank: Rank, of: Rank, chunk: usize },

    /// A block of several chunks is not contiguous.
    #[error("rank {rank}, instruction {step}: a block of chunks {chunks} is not in one place")]
    Scattered { rank: Rank, step: usize, chunks: Chunks },

    /// A program adds in another order than its plan, which gives different bits in floating point.
    #[error("rank {rank} adds up chunk {chunk} in another order than its plan")]
    OtherOrder { rank: Rank, chunk: usize },
}
