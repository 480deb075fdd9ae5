//! The assignment of buckets to servers.

use unisono_train::internals::Ledger;
use unisono_train::{BucketSettings, BucketSize, Parameter};

/// The number of buckets per server, if their size is not set. It suffices to balance the servers, and to overlap the backward pass.
const BUCKETS_PER_SERVER: usize = 8;
/// The bounds of the automatic size, in bytes. The latency of smaller buckets exceeds the time that they hide.
const BOUNDS: (usize, usize) = (64 << 10, 4 << 20);

/// The buckets of a model, and the servers that own them. The same on all ranks.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) settings: BucketSettings,
    pub(super) size: BucketSize,
    /// The servers that own the buckets.
    pub(super) owners: Vec<usize>,
}

impl Layout {
    /// Assigns each bucket, the largest first, to the server with the fewest bytes (Graham, "Bounds on multiprocessing timing anomalies", 1969,
    /// section 4).
    pub(super) fn new(parameters: &[Parameter], buckets: &BucketSettings, servers: usize) -> Self {
        let trained = parameters.iter().filter(|parameter| parameter.is_trained);
        let bytes: usize = trained.map(|parameter| parameter.count() * size_of::<f32>()).sum();
        let size = BucketSize::fixed_or(buckets, || BucketSize {
            bytes: (bytes / (servers * BUCKETS_PER_SERVER)).next_power_of_two().clamp(BOUNDS.0, BOUNDS.1),
            why: "up to eight for each server",
        });
        let settings = BucketSettings { first_bucket_bytes: size.bytes, ..buckets.clone() };
        let counts = Ledger::new(parameters, &settings, size).plan.counts;
        let mut largest: Vec<usize> = (0..counts.len()).collect();
        largest.sort_by_key(|&bucket| std::cmp::Reverse(counts[bucket]));
        let (mut owners, mut loads) = (vec![0; counts.len()], vec![0; servers]);
        for bucket in largest {
            let least = (0..servers).min_by_key(|&server| loads[server]).expect("there is a server");
            owners[bucket] = least;
            loads[least] += counts[bucket];
        }
        Self { settings, size, owners }
    }

    pub(super) fn ledger(&self, parameters: &[Parameter]) -> Ledger {
        Ledger::new(parameters, &self.settings, self.size)
    }

    /// Returns the buckets of a server, in the order in which a backward pass fills them.
    pub(super) fn of(&self, server: usize) -> impl DoubleEndedIterator<Item = usize> + '_ {
        (0..self.owners.len()).filter(move |&bucket| self.owners[bucket] == server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_balanced_among_servers() {
        let parameters: Vec<_> =
            (1..60).map(|count| Parameter::new(format!("{count}"), [count * 1000])).collect();
        for servers in 1..=5 {
            let layout = Layout::new(&parameters, &BucketSettings::default(), servers);
            let counts = layout.ledger(&parameters).plan.counts;
            let loads: Vec<usize> =
                (0..servers).map(|server| layout.of(server).map(|bucket| counts[bucket]).sum()).collect();
            // Graham's bound.
            let most = loads.iter().max().unwrap() * servers * 3;
            assert!(most <= 4 * loads.iter().sum::<usize>(), "{loads:?}");
            assert_eq!(loads.iter().sum::<usize>(), counts.iter().sum::<usize>());
        }
    }
}
