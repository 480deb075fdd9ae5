//! The cost of a message on a machine: the alpha-beta-gamma model, by message size.
//!
//! A message of n bytes that is copied takes α + n/move; one that is reduced takes α + n/reduce. (In the papers' letters β =
//! 1/move, and β + γ = 1/reduce: the rate of reducing includes moving.) One α and one rate do not describe a machine from 8
//! bytes to 100 MB, since caches and protocols change with the size; so a [`Link`] has constants for each [`Range`] of
//! sizes.
//!
//! **Source**: Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994), for α and β;
//! Thakur, Rabenseifner and Gropp, IJHPCA 19 (2005), section 3, for γ.

/// Bytes per microsecond in a gigabyte (1e9 bytes) per second.
const BYTES_PER_US: f64 = 1e3;

/// A range of message sizes, with its constants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The largest message of the range; [`usize::MAX`] in the last one.
    pub up_to_bytes: usize,
    /// The latency, in microseconds.
    pub alpha_us: f64,
    /// The rate of copying a message to its place, in 1e9 bytes per second.
    pub move_gb_per_s: f64,
    /// The rate of moving and reducing a message, in 1e9 bytes per second.
    pub reduce_gb_per_s: f64,
}

impl Range {
    /// Returns the time of a message by this range's constants, whether or not its size is in the range.
    fn time_us(&self, size_bytes: usize, reduces: bool) -> f64 {
        let gb_per_s = if reduces { self.reduce_gb_per_s } else { self.move_gb_per_s };
        self.alpha_us + size_bytes as f64 / (gb_per_s * BYTES_PER_US)
    }
}

/// The cost of messages of any size between two ranks.
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

/// The reason why ranges do not form a link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{what}", .range.map_or(String::new(), |range| format!("range {range}: ")))]
pub struct InvalidLink {
    /// The number of the invalid range; `None` if ranges are missing.
    pub range: Option<usize>,
    /// The invalid value, and the expected one.
    pub what: String,
}

impl Link {
    /// Returns a link with these ranges, in ascending order.
    ///
    /// # Errors
    /// [`InvalidLink`] if the ranges are not in order or the last one is not open, or if a latency is negative, a rate is
    /// not positive, or a number is not finite.
    pub fn new(ranges: Vec<Range>) -> Result<Self, InvalidLink> {
        let last = ranges.last().map(|last| last.up_to_bytes);
        if last != Some(usize::MAX) {
            let not_open =
                |bytes| format!("the last range ends at {bytes} bytes; it must be open (usize::MAX)");
            let what = last.map_or("a link has at least one range of sizes".to_owned(), not_open);
            return Err(InvalidLink { range: None, what });
        }
        let mut before = None;
        for (number, range) in ranges.iter().enumerate() {
            let &Range { up_to_bytes, alpha_us, move_gb_per_s, reduce_gb_per_s } = range;
            let not_before = before.replace(up_to_bytes).filter(|&before| up_to_bytes <= before);
            let rates = [move_gb_per_s, reduce_gb_per_s];
            let what = if let Some(before) = not_before {
                format!("it ends at {up_to_bytes} bytes, but the one before it ends at {before}")
            } else if !(alpha_us.is_finite() && alpha_us >= 0.0) {
                format!("a latency of {alpha_us} us, but it must be finite and not negative")
            } else if let Some(rate) = rates.into_iter().find(|rate| !(rate.is_finite() && *rate > 0.0)) {
                format!("a rate of {rate} GB/s, but it must be finite and above 0")
            } else {
                continue;
            };
            return Err(InvalidLink { range: Some(number), what });
        }
        Ok(Self { ranges })
    }

    /// Returns a link with the same constants for all sizes, which reduces as fast as it moves.
    ///
    /// # Errors
    /// As [`Link::new`].
    pub fn uniform(alpha_us: f64, gb_per_s: f64) -> Result<Self, InvalidLink> {
        let (move_gb_per_s, reduce_gb_per_s) = (gb_per_s, gb_per_s);
        Self::new(vec![Range { up_to_bytes: usize::MAX, alpha_us, move_gb_per_s, reduce_gb_per_s }])
    }

    /// Returns the ranges, in ascending order.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Returns the time of a message without contention.
    ///
    /// It is never less than the time of a smaller message. If a range starts with a time below the end of the previous one, as fitted lines may, the
    /// greater of the two is used.
    pub fn time_us(&self, size_bytes: usize, reduces: bool) -> f64 {
        let smaller = self.ranges.iter().take_while(|range| range.up_to_bytes < size_bytes);
        let least = smaller.map(|range| range.time_us(range.up_to_bytes, reduces)).fold(0.0, f64::max);
        least.max(self.range(size_bytes).time_us(size_bytes, reduces))
    }

    /// Returns the time of a message between ranks with larger arrays. `held_bytes` is the size of the message that is an array, whose ranks
    /// fill their caches as much. The message's own size determines the protocol, and the size of the arrays the cache that it is read from.
    /// If the arrays are larger, the slower rate of the two is used.
    pub fn time_among_us(&self, size_bytes: usize, held_bytes: usize, reduces: bool) -> f64 {
        let rates = self.range(held_bytes.max(size_bytes));
        let among = Range { alpha_us: self.latency_us(size_bytes), ..*rates };
        self.time_us(size_bytes, reduces).max(among.time_us(size_bytes, reduces))
    }

    /// Returns the part of [`Link::time_us`] before the first byte arrives.
    pub fn latency_us(&self, size_bytes: usize) -> f64 {
        self.range(size_bytes).alpha_us
    }

    /// Returns the time that a message occupies a port: the time of its bytes alone.
    pub fn occupied_us(&self, size_bytes: usize) -> f64 {
        size_bytes as f64 / (self.range(size_bytes).move_gb_per_s * BYTES_PER_US)
    }

    fn range(&self, size_bytes: usize) -> &Range {
        let found = self.ranges.iter().find(|range| size_bytes <= range.up_to_bytes);
        found.expect("the last range is open")
    }
}

/// The cost of messages and steps on identical nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// The link between two ranks of a node.
    pub intra: Link,
    /// In a [single pass](crate::Execution::SinglePass) of ranks that share memory: the cost of each other rank, by the
    /// size of the part that a rank reduces. The rate of reducing is that of a single pass: reducing the other's part into
    /// this rank's own, and writing the result to the other. `None` if such an all-reduce uses messages too.
    pub one_pass: Option<Link>,
    /// The link between two ranks of different nodes. Its rate is also that of a node's port, which all ranks of the node
    /// share.
    pub inter: Link,
    /// The segment size of links between nodes, if these progress while a rank does other work. Hierarchical plans then run in
    /// [pipelined blocks](crate::Execution::Pipelined). `None` if a rank must wait for its messages.
    pub segment_bytes: Option<usize>,
    /// The size of the shared memory through which a sender passes long messages to ranks of its node: it copies a message, part by part, while the
    /// receiver takes it from there. `None` if receivers read the sender's array. They always read copies that the sender keeps.
    pub staging_bytes: Option<usize>,
    /// The number of cores that the ranks of a node share. If there are more ranks, they take turns on the cores.
    pub cores: usize,
    /// The time of a context switch from a waiting rank to the next, in microseconds, for ranks that take turns.
    pub hand_over_us: f64,
    /// The largest eager message, which is copied for its receiver, so that its sender continues. For ranks that take turns, the sender of a
    /// larger one waits for the receiver's turn.
    pub eager_bytes: usize,
    /// The time of a step besides its messages, in microseconds.
    pub step_us: f64,
    /// The time of a call before its first step, in microseconds.
    pub call_us: f64,
}

/// Ranks that share memory, on a typical current machine. Not measured: replace it by the results of `bench`.
const SHARED_MEMORY: [Range; 4] = [
    Range { up_to_bytes: 512, alpha_us: 0.15, move_gb_per_s: 5.0, reduce_gb_per_s: 5.0 },
    Range { up_to_bytes: 8 << 10, alpha_us: 0.25, move_gb_per_s: 8.0, reduce_gb_per_s: 8.0 },
    Range { up_to_bytes: 256 << 10, alpha_us: 0.4, move_gb_per_s: 12.0, reduce_gb_per_s: 10.0 },
    Range { up_to_bytes: usize::MAX, alpha_us: 0.4, move_gb_per_s: 10.0, reduce_gb_per_s: 8.0 },
];

/// Ranks that share memory, in a single pass without messages. Typical, not measured.
const ONE_PASS: [Range; 3] = [
    Range { up_to_bytes: 512, alpha_us: 0.3, move_gb_per_s: 10.0, reduce_gb_per_s: 10.0 },
    Range { up_to_bytes: 256 << 10, alpha_us: 0.5, move_gb_per_s: 10.0, reduce_gb_per_s: 10.0 },
    Range { up_to_bytes: usize::MAX, alpha_us: 0.5, move_gb_per_s: 8.0, reduce_gb_per_s: 8.0 },
];

/// 10 Gbit/s Ethernet, at which reducing keeps up. Typical, not measured.
const ETHERNET: [Range; 1] =
    [Range { up_to_bytes: usize::MAX, alpha_us: 15.0, move_gb_per_s: 1.25, reduce_gb_per_s: 1.25 }];

impl Machine {
    /// Returns `held_bytes` of [`Link::time_among_us`] for arrays of this size, with this many ranks on a node: for messages, and for the parts
    /// of a single pass.
    pub(crate) fn held_bytes(&self, array_bytes: usize, local_ranks: usize) -> [usize; 2] {
        let on_a_core = array_bytes.saturating_mul(local_ranks.div_ceil(self.cores));
        [on_a_core, on_a_core / self.cores.min(local_ranks)]
    }
}

/// A typical current machine: ranks of a node share memory, each has a core, and nodes have 10 Gbit/s Ethernet.
impl Default for Machine {
    fn default() -> Self {
        let link =
            |ranges: &[Range]| Link::new(ranges.to_vec()).expect("the default constants are a valid link");
        Self {
            intra: link(&SHARED_MEMORY),
            one_pass: Some(link(&ONE_PASS)),
            inter: link(&ETHERNET),
            segment_bytes: Some(64 << 10),
            staging_bytes: None,
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
    fn constants_depend_on_the_message_size() {
        let link = Link::new(vec![range(1000, 1.0, 1.0), range(usize::MAX, 5.0, 10.0)]).unwrap();
        assert_eq!(link.time_us(0, false), 1.0);
        assert_eq!(link.time_us(1000, false), 2.0);
        assert_eq!(link.time_us(1000, true), 3.0);
        assert_eq!(link.time_us(100_000, false), 15.0);
        assert_eq!((link.latency_us(1000), link.latency_us(1001)), (1.0, 5.0));
        assert_eq!(link.occupied_us(100_000), 10.0);
    }

    #[test]
    fn messages_of_arrays_beyond_the_cache_are_slower() {
        let link = Link::new(vec![range(1000, 1.0, 1.0), range(usize::MAX, 5.0, 0.5)]).unwrap();
        assert_eq!(link.time_among_us(1000, 1000, false), link.time_us(1000, false));
        assert_eq!(link.time_among_us(1000, 2000, false), 1.0 + 2.0);
        assert_eq!(link.time_among_us(2000, 100, false), link.time_us(2000, false));
        let small_are_slow = Link::new(vec![range(1000, 1.0, 0.1), range(usize::MAX, 5.0, 10.0)]).unwrap();
        assert_eq!(small_are_slow.time_among_us(100_000, 1000, false), 15.0);
        let machine = Machine { cores: 2, ..Machine::default() };
        assert_eq!([2, 3, 4].map(|ranks| machine.held_bytes(64, ranks)), [[64, 32], [128, 64], [128, 64]]);
    }

    #[test]
    fn larger_message_never_takes_less() {
        for link in [Machine::default().intra, Machine::default().inter] {
            for reduces in [false, true] {
                let times: Vec<_> =
                    (0..1 << 20).step_by(64).map(|size| link.time_us(size, reduces)).collect();
                assert!(times.is_sorted());
            }
        }
    }

    #[test]
    fn invalid_link_is_described() {
        let refused = |ranges| Link::new(ranges).unwrap_err().to_string();
        assert!(refused(vec![]).contains("at least one range"));
        assert!(refused(vec![range(100, 1.0, 1.0)]).contains("ends at 100 bytes; it must be open"));
        let unsorted = vec![range(100, 1.0, 1.0), range(50, 1.0, 1.0), range(usize::MAX, 1.0, 1.0)];
        assert!(
            refused(unsorted).contains("range 1: it ends at 50 bytes, but the one before it ends at 100")
        );
        assert!(refused(vec![range(usize::MAX, -1.0, 1.0)]).contains("range 0: a latency of -1 us"));
        assert!(refused(vec![range(usize::MAX, f64::NAN, 1.0)]).contains("a latency of NaN us"));
        assert!(refused(vec![range(usize::MAX, 1.0, 0.0)]).contains("a rate of 0 GB/s"));
        assert!(refused(vec![range(usize::MAX, 1.0, f64::INFINITY)]).contains("a rate of inf GB/s"));
    }
}
