//! Warnings about long waits, with the missing and the waiting ranks.

use std::time::{Duration, Instant};

use super::identity::Identities;
use crate::record::{Doing, State, described_wait};

/// The longest interval between checks of all ranks, which are costly for thousands of ranks.
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Warns of a long wait, first after a delay and then at doubling intervals.
#[derive(Debug)]
pub(super) struct Warnings {
    first_s: f64,
    next_s: f64,
    /// The call of the last warning.
    sequence: Option<u64>,
    /// The time of the last check of all ranks, and the interval of checks.
    checked_at: Instant,
    every: Duration,
}

impl Warnings {
    pub(super) fn new(first: Duration) -> Self {
        let first_s = first.as_secs_f64();
        let every = (first / 8).min(MAX_CHECK_INTERVAL);
        Self { first_s, next_s: first_s, sequence: None, checked_at: Instant::now(), every }
    }

    /// Returns whether the next check of all ranks is due.
    pub(super) fn is_time(&mut self) -> bool {
        let is_time = self.checked_at.elapsed() >= self.every;
        if is_time {
            self.checked_at = Instant::now();
        }
        is_time
    }

    /// Returns the warning that is due, if any. Each rank has its activity and, if its node is silent, the seconds of silence.
    pub(super) fn due(&mut self, ranks: &[(Doing, Option<f64>)], identities: &Identities) -> Option<String> {
        let now = ranks.iter().filter(|(_, silent_s)| silent_s.is_none()).map(|(doing, _)| doing);
        let inside = now.filter(|doing| doing.state == State::Inside);
        let longest = inside.max_by(|one, other| one.since_s.total_cmp(&other.since_s))?;
        if self.sequence != Some(longest.sequence()) {
            self.sequence = Some(longest.sequence());
            self.next_s = self.first_s;
        }
        if longest.since_s < self.next_s {
            return None;
        }
        while self.next_s <= longest.since_s {
            self.next_s *= 2.0;
        }
        let known = |rank| {
            let found = ranks.iter().find(|(doing, _)| doing.rank == rank);
            (rank, found.map(|(doing, silent_s)| (doing, *silent_s)))
        };
        let all: Vec<_> = (0..identities.ranks()).map(known).collect();
        described_wait(&all, |rank| identities.whole_name(rank))
    }
}

#[cfg(test)]
pub(super) use tests::doing;

#[cfg(test)]
mod tests {
    use unisono_collectives::Rank;

    use super::super::identity::Identity;
    use super::*;
    use crate::record::{Record, Stage};

    fn identities(ranks: usize) -> Identities {
        let identity = |rank| Identity {
            host: format!("h{rank}"),
            process_id: 100 + rank,
            ..Identity::of_this_process(0)
        };
        Identities((0..ranks as u32).map(identity).collect())
    }

    pub(in super::super) fn doing(
        rank: Rank,
        state: State,
        sequence: u64,
        since_s: f64,
    ) -> (Doing, Option<f64>) {
        let stage = if state == State::Inside { Stage::Running } else { Stage::Done };
        let last = Record {
            sequence,
            operation: "all-reduce".into(),
            dtype: "f32".into(),
            count: 8,
            op: None,
            root: None,
            algorithm: "ring".into(),
            label: None,
            phase: 0,
            step: 1,
            stage,
            waits_for: Some(1),
            began_s_ago: since_s,
            ended_s_ago: None,
        };
        let last = (state != State::NotYet).then_some(last);
        (
            Doing {
                rank,
                host: String::new(),
                process_id: 1,
                state,
                since_s,
                quiet: None,
                continues: false,
                group: None,
                last,
            },
            None,
        )
    }

    #[test]
    fn missing_ranks_are_named_with_their_last_call() {
        let ranks = [
            doing(0, State::Inside, 17, 60.0),
            doing(1, State::Outside, 16, 61.0),
            doing(2, State::Inside, 17, 59.0),
            doing(3, State::Inside, 16, 62.0),
        ];
        let mut warnings = Warnings::new(Duration::from_secs(60));
        assert_eq!(
            warnings.due(&ranks, &identities(4)).unwrap(),
            "ranks 0, 2 have waited 60 s in all-reduce #17 of 8 f32, by ring, and ranks 1, 3 are missing:\n\
             \x20 rank 1 (host h1, pid 101) has been outside collectives for 61 s; its last call was all-reduce #16\n\
             \x20 rank 3 (host h3, pid 103) has been in all-reduce #16 of 8 f32, by ring for 62 s, at step 1, \
             waiting for rank 1\n"
        );
    }

    #[test]
    fn intervals_double_and_restart_with_another_call() {
        let mut warnings = Warnings::new(Duration::from_secs(60));
        let mut due = |sequence, lasts| {
            let ranks =
                [doing(0, State::Inside, sequence, f64::from(lasts)), doing(1, State::NotYet, 0, 0.0)];
            warnings.due(&ranks, &identities(2)).is_some()
        };
        let at: Vec<_> = (0..600).filter(|&second| due(3, second)).collect();
        assert_eq!(at, [60, 120, 240, 480]);
        assert!(!due(4, 59) && due(4, 60) && !due(4, 61));
    }

    #[test]
    fn at_most_twenty_missing_ranks_are_named() {
        let mut ranks: Vec<_> = (1..=64).map(|rank| doing(rank, State::Outside, 16, 90.0)).collect();
        ranks.push(doing(0, State::Inside, 17, 70.0));
        let text = Warnings::new(Duration::from_secs(60)).due(&ranks, &identities(65)).unwrap();
        assert!(
            text.starts_with(
                "rank 0 has waited 70 s in all-reduce #17 of 8 f32, by ring, and ranks 1 to 64 are missing:\n"
            ),
            "{text}"
        );
        assert!(text.ends_with("  and 44 more\n") && text.lines().count() == 22, "{text}");
    }

    #[test]
    fn rank_of_a_node_without_reports_is_missing() {
        let ranks = [doing(0, State::Inside, 17, 60.0)];
        let text = Warnings::new(Duration::from_secs(60)).due(&ranks, &identities(2)).unwrap();
        assert!(text.contains("rank 1 is missing"), "{text}");
        assert!(text.contains("rank 1 (host h1, pid 101) has not reported"), "{text}");
    }

    #[test]
    fn outdated_report_counts_as_missing() {
        let (stopped, _) = doing(1, State::Inside, 17, 600.0);
        let ranks = [doing(0, State::Inside, 17, 60.0), (stopped, Some(59.0))];
        let text = Warnings::new(Duration::from_secs(60)).due(&ranks, &identities(2)).unwrap();
        assert!(text.contains("rank 0 has waited 60 s") && text.contains("rank 1 is missing"), "{text}");
        assert!(text.contains(", as of 59 s ago, when its node reported last\n"), "{text}");
    }

    #[test]
    fn deadlocked_ranks_are_named() {
        let ranks = [doing(0, State::Inside, 17, 60.0), doing(1, State::Inside, 17, 60.0)];
        let text = Warnings::new(Duration::from_secs(60)).due(&ranks, &identities(2)).unwrap();
        assert!(
            text.contains(
                "ranks 0, 1 have been in all-reduce #17 of 8 f32, by ring for 60 s, and no rank is missing:"
            ),
            "{text}"
        );
        assert!(text.contains("rank 0 (host h0, pid 100) has been in all-reduce"), "{text}");
    }
}
