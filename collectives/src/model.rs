//! What a message costs on a machine: the alpha-beta-gamma model, by size of the message.
//!
//! A message of n bytes that takes the place of what was there takes α + n/move; one that is reduced takes
//! α + n/reduce. (In the papers' letters β = 1/move, and β + γ = 1/reduce: the rate of reducing includes
//! moving.) One α and one rate do not describe a machine from 8 bytes to 100 MB, since caches and protocols
//! change on the way; so a [`Link`] has a [`Range`] of sizes for each.
//!
//! **Source**: Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994), for α and β;
//! Thakur, Rabenseifner and Gropp, IJHPCA 19 (2005), section 3, for γ.

/// Bytes per microsecond in a gigabyte (1e9 bytes) per second.
const BYTES_PER_US: f64 = 1e3;

/// Messages up to some size, and what they cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The largest message of the range; [`usize::MAX`] in the last one.
    pub up_to_bytes: usize,
    /// What a message takes even if it is empty, in microseconds.
    pub alpha_us: f64,
    /// How fast a message is put in place, in 1e9 bytes per second.
    pub move_gb_per_s: f64,
    /// How fast a message is moved and reduced, in 1e9 bytes per second.
    pub reduce_gb_per_s: f64,
}

impl Range {
    /// A message's time by itself; whether it belongs into the range is not asked.
    fn time_us(&self, size_bytes: usize, reduces: bool) -> f64 {
        let gb_per_s = if reduces { self.reduce_gb_per_s } else { self.move_gb_per_s };
        self.alpha_us + size_bytes as f64 / (gb_per_s * BYTES_PER_US)
    }
}

/// What messages of any size cost between two ranks.
///
/// ```
/// use unisono_collectives::model::Link;
///
/// let link = Link::uniform(2.0, 10.0).unwrap();
/// assert_eq!(link.time_us(30_000, false), 2.0 + 3.0);
/// assert!(Link::uniform(2.0, 0.0).is_err());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    ranges: Vec<Range>,
}

/// Why ranges do not make a link.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each sentence names its fields")]
pub enum InvalidLink {
    /// There is none.
    #[error("a link has at least one range of sizes")]
    NoRange,
    /// Ranges are not in order.
    #[error("range {range} ends at {up_to_bytes} bytes, but the one before it ends at {before}")]
    Unsorted { range: usize, up_to_bytes: usize, before: usize },
    /// Some messages are in no range.
    #[error("the last range ends at {up_to_bytes} bytes; it must be open (usize::MAX)")]
    NotOpen { up_to_bytes: usize },
    /// A latency is negative, or no number.
    #[error("range {range}: a latency of {alpha_us} us, but it must be finite and not negative")]
    Latency { range: usize, alpha_us: f64 },
    /// A rate is not positive, or no number.
    #[error("range {range}: a rate of {gb_per_s} GB/s, but it must be finite and above 0")]
    Rate { range: usize, gb_per_s: f64 },
}

impl Link {
    /// A link of these ranges, smallest messages first.
    ///
    /// # Errors
    /// [`InvalidLink`] if the ranges are not in order or the last one is not open, or if one has a time that
    /// is negative, a rate that is not positive, or a figure that is not finite.
    pub fn new(ranges: Vec<Range>) -> Result<Self, InvalidLink> {
        let last = ranges.last().ok_or(InvalidLink::NoRange)?;
        if last.up_to_bytes != usize::MAX {
            return Err(InvalidLink::NotOpen { up_to_bytes: last.up_to_bytes });
        }
        for (range, pair) in (1..).zip(ranges.windows(2)) {
            let (before, up_to_bytes) = (pair[0].up_to_bytes, pair[1].up_to_bytes);
            if up_to_bytes <= before {
                return Err(InvalidLink::Unsorted { range, up_to_bytes, before });
            }
        }
        for (range, &Range { alpha_us, move_gb_per_s, reduce_gb_per_s, .. }) in ranges.iter().enumerate() {
            if !(alpha_us.is_finite() && alpha_us >= 0.0) {
                return Err(InvalidLink::Latency { range, alpha_us });
            }
            for gb_per_s in [move_gb_per_s, reduce_gb_per_s] {
                if !(gb_per_s.is_finite() && gb_per_s > 0.0) {
                    return Err(InvalidLink::Rate { range, gb_per_s });
                }
            }
        }
        Ok(Self { ranges })
    }

    /// A link that treats messages of all sizes alike, and reduces as fast as it moves.
    ///
    /// # Errors
    /// As [`Link::new`].
    pub fn uniform(alpha_us: f64, gb_per_s: f64) -> Result<Self, InvalidLink> {
        Self::new(vec![Range {
            up_to_bytes: usize::MAX,
            alpha_us,
            move_gb_per_s: gb_per_s,
            reduce_gb_per_s: gb_per_s,
        }])
    }

    /// The ranges, smallest messages first.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// How long a message takes that nothing else is in the way of.
    ///
    /// Never less than a smaller message takes: where a range begins with a time below the end of the one
    /// before, as fitted lines do, the greater of the two counts.
    pub fn time_us(&self, size_bytes: usize, reduces: bool) -> f64 {
        let smaller = self.ranges.iter().take_while(|range| range.up_to_bytes < size_bytes);
        let least = smaller.map(|range| range.time_us(range.up_to_bytes, reduces)).fold(0.0, f64::max);
        least.max(self.range(size_bytes).time_us(size_bytes, reduces))
    }

    /// The same of a message between ranks with larger arrays: `held_bytes` is the size of the messages between two ranks that
    /// exchange halves and have as much in their caches. How a message travels follows from its own size, and from where
    /// it is read from that of the arrays: the slower rate of the two counts.
    pub fn time_among_us(&self, size_bytes: usize, held_bytes: usize, reduces: bool) -> f64 {
        let among = Range { alpha_us: self.latency_us(size_bytes), ..*self.range(held_bytes) };
        self.time_us(size_bytes, reduces).max(among.time_us(size_bytes, reduces))
    }

    /// The part of [`Link::time_us`] that passes before the first byte is there.
    pub fn latency_us(&self, size_bytes: usize) -> f64 {
        self.range(size_bytes).alpha_us
    }

    /// How long a message keeps a port from other messages: the time of its bytes alone.
    pub fn occupied_us(&self, size_bytes: usize) -> f64 {
        size_bytes as f64 / (self.range(size_bytes).move_gb_per_s * BYTES_PER_US)
    }

    fn range(&self, size_bytes: usize) -> &Range {
        let found = self.ranges.iter().find(|range| size_bytes <= range.up_to_bytes);
        found.expect("the last range is open")
    }
}

/// What messages and steps cost on nodes that are all alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Between two ranks of one node.
    pub intra: Link,
    /// In a [direct](crate::Direct) all-reduce over the ranks of one node, where these share memory: what each of the
    /// other ranks costs a rank, by the size of the part that the rank reduces. Its rate of reducing is that of
    /// one pass: to reduce the other's part into this rank's own, and to hand the other the result. `None` where
    /// such an all-reduce is carried out by messages too.
    pub one_pass: Option<Link>,
    /// Between two ranks of different nodes. Its rate is also that of a node's port, which all ranks of the
    /// node share.
    pub inter: Link,
    /// How much the links between nodes send at a time, if that goes on while a rank does something else: plans of levels are then carried
    /// out in [lanes](crate::execution::Timetable). `None` if a rank waits for its messages.
    pub segment_bytes: Option<usize>,
    /// How fast a rank copies what would change on its way, in 1e9 bytes per second; infinite where messages are copied
    /// anyway.
    pub copy_gb_per_s: f64,
    /// How many cores the ranks of a node have together. If they are fewer than the ranks, these take turns.
    pub cores: usize,
    /// Where ranks take turns: how long it takes a core to go from a rank that waits to its next one, in microseconds.
    pub hand_over_us: f64,
    /// Up to this size a message is copied to where its receiver finds it, and its sender goes on; where ranks take turns, who
    /// sends a larger one waits for the receiver's turn.
    pub eager_bytes: usize,
    /// What every step takes a rank besides its messages, in microseconds.
    pub step_us: f64,
    /// What every call takes a rank before its first step, in microseconds.
    pub call_us: f64,
}

/// Ranks that share memory. A typical machine of today, not measured on any: replace it by what `bench` says.
const SHARED_MEMORY: [Range; 4] = [
    Range { up_to_bytes: 512, alpha_us: 0.15, move_gb_per_s: 5.0, reduce_gb_per_s: 5.0 },
    Range { up_to_bytes: 8 << 10, alpha_us: 0.25, move_gb_per_s: 8.0, reduce_gb_per_s: 8.0 },
    Range { up_to_bytes: 256 << 10, alpha_us: 0.4, move_gb_per_s: 12.0, reduce_gb_per_s: 10.0 },
    Range { up_to_bytes: usize::MAX, alpha_us: 0.4, move_gb_per_s: 10.0, reduce_gb_per_s: 8.0 },
];

/// The same ranks in one pass, without messages. As above: typical, not measured.
const ONE_PASS: [Range; 3] = [
    Range { up_to_bytes: 512, alpha_us: 0.3, move_gb_per_s: 10.0, reduce_gb_per_s: 10.0 },
    Range { up_to_bytes: 256 << 10, alpha_us: 0.5, move_gb_per_s: 10.0, reduce_gb_per_s: 10.0 },
    Range { up_to_bytes: usize::MAX, alpha_us: 0.5, move_gb_per_s: 8.0, reduce_gb_per_s: 8.0 },
];

/// 10 Gbit/s Ethernet. Reducing keeps up with it. As above: typical, not measured.
const ETHERNET: [Range; 1] =
    [Range { up_to_bytes: usize::MAX, alpha_us: 15.0, move_gb_per_s: 1.25, reduce_gb_per_s: 1.25 }];

impl Machine {
    /// The size of the messages between two ranks that exchange halves of arrays and have as much of them in a core's caches as
    /// each core has of these arrays, of so many ranks on a node.
    pub(crate) fn held_bytes(&self, array_bytes: usize, local_ranks: usize) -> usize {
        array_bytes.saturating_mul(local_ranks.div_ceil(self.cores.max(1))) / 2
    }

    /// How long a rank takes to copy so many bytes.
    pub(crate) fn copy_us(&self, size_bytes: usize) -> f64 {
        size_bytes as f64 / (self.copy_gb_per_s * BYTES_PER_US)
    }
}

/// A typical machine of today: ranks of a node share memory, each has a core, and nodes have 10 Gbit/s Ethernet.
impl Default for Machine {
    fn default() -> Self {
        let link = |ranges: &[Range]| Link::new(ranges.to_vec()).expect("the constants make a link");
        Self {
            intra: link(&SHARED_MEMORY),
            one_pass: Some(link(&ONE_PASS)),
            inter: link(&ETHERNET),
            segment_bytes: Some(64 << 10),
            copy_gb_per_s: 10.0,
            cores: usize::MAX,
            hand_over_us: 1.0,
            eager_bytes: 4 << 10,
            step_us: 0.05,
            call_us: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(up_to_bytes: usize, alpha_us: f64, gb_per_s: f64) -> Range {
        Range { up_to_bytes, alpha_us, move_gb_per_s: gb_per_s, reduce_gb_per_s: gb_per_s / 2.0 }
    }

    #[test]
    fn the_size_of_a_message_decides() {
        let link = Link::new(vec![range(1000, 1.0, 1.0), range(usize::MAX, 5.0, 10.0)]).unwrap();
        assert_eq!(link.time_us(0, false), 1.0);
        assert_eq!(link.time_us(1000, false), 2.0);
        assert_eq!(link.time_us(1000, true), 3.0);
        assert_eq!(link.time_us(100_000, false), 15.0);
        assert_eq!((link.latency_us(1000), link.latency_us(1001)), (1.0, 5.0));
        assert_eq!(link.occupied_us(100_000), 10.0);
    }

    #[test]
    fn what_large_arrays_leave_in_no_cache_is_slower() {
        let link = Link::new(vec![range(1000, 1.0, 1.0), range(usize::MAX, 5.0, 0.5)]).unwrap();
        assert_eq!(link.time_among_us(1000, 1000, false), link.time_us(1000, false));
        assert_eq!(link.time_among_us(1000, 2000, false), 1.0 + 2.0);
        assert_eq!(link.time_among_us(2000, 100, false), link.time_us(2000, false));
        let machine = Machine { cores: 2, ..Machine::default() };
        assert_eq!([2, 3, 4].map(|ranks| machine.held_bytes(64, ranks)), [32, 64, 64]);
    }

    #[test]
    fn a_larger_message_never_takes_less() {
        for link in [Machine::default().intra, Machine::default().inter] {
            for reduces in [false, true] {
                let times: Vec<_> =
                    (0..1 << 20).step_by(64).map(|size| link.time_us(size, reduces)).collect();
                assert!(times.is_sorted());
            }
        }
    }

    #[test]
    fn what_is_no_link_says_why() {
        let refused = |ranges| Link::new(ranges).unwrap_err().to_string();
        assert!(refused(vec![]).contains("at least one range"));
        assert!(refused(vec![range(100, 1.0, 1.0)]).contains("ends at 100 bytes; it must be open"));
        let unsorted = vec![range(100, 1.0, 1.0), range(50, 1.0, 1.0), range(usize::MAX, 1.0, 1.0)];
        assert!(refused(unsorted).contains("range 1 ends at 50 bytes, but the one before it ends at 100"));
        assert!(refused(vec![range(usize::MAX, -1.0, 1.0)]).contains("a latency of -1 us"));
        assert!(refused(vec![range(usize::MAX, f64::NAN, 1.0)]).contains("a latency of NaN us"));
        assert!(refused(vec![range(usize::MAX, 1.0, 0.0)]).contains("a rate of 0 GB/s"));
        assert!(refused(vec![range(usize::MAX, 1.0, f64::INFINITY)]).contains("a rate of inf GB/s"));
    }
}
