//! Tests of the agreement of survivors in thousands of random orders. Ranks are threads that stop at any point of it, like killed
//! processes.

use std::thread;
use std::time::Duration;

use fastrand::Rng;

use super::*;

const DEADLINES: Deadlines = Deadlines { timeout: Duration::from_secs(20), quiet: Duration::from_secs(20) };
/// The all-gathers of an attempt.
const GATHERS: usize = 3;

/// The death of a rank: the attempt, the number of the all-gather, and whether it has published its first piece there.
type Death = (u32, usize, bool);

/// Returns the contribution of a rank.
fn own(rank: Rank, attempt: u32, gather: usize) -> Vec<u8> {
    let length = [0, 3, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES - 5][(rank + gather) % 5];
    vec![(16 * rank + 4 * attempt as usize + gather) as u8; length]
}

fn pause(random: &mut Rng) {
    match random.u8(..8) {
        0 => thread::sleep(Duration::from_micros(random.u64(..100))),
        1..=3 => thread::yield_now(),
        _ => {}
    }
}

/// Returns the attempt that this rank completes, and its members; `None` if it dies.
fn play(status: StatusBoard, death: Option<Death>, seed: u64) -> Option<(u32, Vec<Rank>)> {
    let (rank, random) = (status.rank(), &mut Rng::with_seed(seed));
    let mut survivors = Survivors::over(status.clone(), DEADLINES);
    'attempts: loop {
        pause(random);
        survivors.join().unwrap();
        let attempt = survivors.attempt;
        for gather in 0..GATHERS {
            pause(random);
            if let Some((_, _, has_given)) =
                death.filter(|&(at, in_gather, _)| (at, in_gather) == (attempt, gather))
            {
                if has_given {
                    let number = PieceNumber { attempt, piece: survivors.pieces + 1 };
                    status.publish_piece(number, &own(rank, attempt, gather));
                }
                status.set_gone(rank);
                return None;
            }
            match survivors.all_gather(&own(rank, attempt, gather)) {
                Ok(all) => {
                    let expected: Vec<_> =
                        survivors.members.iter().map(|&rank| own(rank, attempt, gather)).collect();
                    assert!(all == expected, "rank {rank}, attempt {attempt}, gather {gather}");
                }
                Err(_) if survivors.has_lost_member() => continue 'attempts,
                Err(error) => panic!("{error}"),
            }
        }
        return Some((attempt, survivors.members));
    }
}

#[test]
fn all_survivors_complete_the_same_attempt_whoever_dies() {
    for seed in 0..2000 {
        let random = &mut Rng::with_seed(seed);
        let ranks = random.usize(2..7);
        let death = |random: &mut Rng| (random.u32(1..4), random.usize(..GATHERS), random.bool());
        let mut deaths: Vec<_> = (0..ranks).map(|_| random.bool().then(|| death(random))).collect();
        deaths[random.usize(..ranks)] = None;
        let boards = StatusBoard::of_threads(ranks).unwrap();
        let ended: Vec<_> = thread::scope(|scope| {
            let start = |(status, &death): (StatusBoard, _)| {
                let seed = random.u64(..);
                scope.spawn(move || play(status, death, seed))
            };
            let started: Vec<_> = boards.into_iter().zip(&deaths).map(start).collect();
            started.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let completed: Vec<_> = ended.iter().flatten().collect();
        let (attempt, members) = completed[0];
        assert!(completed.iter().all(|other| *other == completed[0]), "seed {seed}: {deaths:?} {ended:?}");
        // Ranks that were to die in a later attempt live. A member may have died at the end, after it had published all its pieces.
        let lives = |&rank: &Rank| ended[rank].is_some();
        assert!((0..ranks).filter(lives).all(|rank| members.contains(&rank)), "seed {seed}");
        let died_last = |rank: &&Rank| deaths[**rank] == Some((*attempt, GATHERS - 1, true));
        assert!(
            members.iter().filter(|rank| !lives(rank)).all(|rank| died_last(&rank)),
            "seed {seed}: {deaths:?} {ended:?}"
        );
    }
}

#[test]
fn unjoined_rank_is_missing_until_it_dies_or_leaves() {
    let mut boards = StatusBoard::of_threads(3).unwrap();
    let (other, late) = (boards.pop().unwrap(), boards.pop().unwrap());
    let own = boards.pop().unwrap();
    assert!(other.join_attempt(1));
    let short = Deadlines { timeout: Duration::from_millis(20), quiet: Duration::from_millis(300) };
    let error = Survivors::over(own.clone(), short).join().unwrap_err();
    assert!(matches!(error, Error::Missing { rank: 0, other: 1, is_stopped: false, .. }), "{error}");
    late.begin_quiet("validation");
    let error = Survivors { attempt: 1, ..Survivors::over(own.clone(), short) }.join().unwrap_err();
    assert!(matches!(error, Error::Missing { waited, .. } if waited >= short.quiet), "{error}");
    own.leave(1);
    assert!(other.join_attempt(2) && other.join_attempt(3));
    let mut survivors = Survivors { attempt: 2, ..Survivors::over(own.clone(), short) };
    survivors.join().unwrap();
    assert_eq!(survivors.members, [0, 2]);
    let error = Survivors::over(late, short).join().unwrap_err();
    assert!(matches!(error, Error::Failed { rank: 1, .. }), "{error}");
}
