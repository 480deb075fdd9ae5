//! Mutation tests of the verifier. Every step of correct schedules is dropped, doubled, swapped with its neighbour or misdirected, one at a
//! time, and the verifier must detect every incorrect result.

use unisono_collectives::{
    Algorithm, Chunks, Combine, Defect, Operation, Plan, Program, Schedule, Source, Step, Topology, program,
    verify,
};

fn schedules(algorithm: Algorithm, ranks: usize) -> Vec<Schedule> {
    let plans = algorithm.plans(Operation::AllReduce, &Topology::single_node(ranks)).unwrap();
    plans.iter().map(Plan::flattened).collect()
}

fn mutate(schedules: &[Schedule], rank: usize, change: impl FnOnce(&mut Vec<Step>)) -> Vec<Schedule> {
    let mut mutant = schedules.to_vec();
    let mut steps = mutant[rank].steps().to_vec();
    change(&mut steps);
    mutant[rank] = Schedule::new(mutant[rank].chunk_count(), steps);
    mutant
}

fn find_defects(schedules: &[Schedule]) -> Vec<Defect> {
    verify(&plans(schedules), Operation::AllReduce)
}

fn plans(schedules: &[Schedule]) -> Vec<Plan> {
    let world = Topology::single_node(schedules.len()).world();
    schedules.iter().map(|schedule| Plan::single("mutant", world.clone(), schedule.clone())).collect()
}

/// Calls `check` for every step that has an effect, of every rank of every algorithm at a few sizes.
fn for_every_step(mut check: impl FnMut(&str, &[Schedule], usize, usize)) {
    for algorithm in Algorithm::ALL {
        for ranks in [2, 3, 4, 6] {
            let schedules = schedules(algorithm, ranks);
            for rank in 0..ranks {
                assert!(
                    !schedules[rank].steps().is_empty(),
                    "{algorithm}, {ranks} ranks, rank {rank} has no step"
                );
                let has_effect = |step: &usize| schedules[rank].steps()[*step] != Step::new();
                for step in (0..schedules[rank].steps().len()).filter(has_effect) {
                    let name = format!("{algorithm}, {ranks} ranks, rank {rank}, step {step}");
                    check(&name, &schedules, rank, step);
                }
            }
        }
    }
}

#[test]
fn dropped_step_is_detected() {
    for_every_step(|name, schedules, rank, step| {
        let mutant = mutate(schedules, rank, |steps| {
            steps.remove(step);
        });
        assert!(!find_defects(&mutant).is_empty(), "{name}");
    });
}

#[test]
fn doubled_step_is_detected() {
    for_every_step(|name, schedules, rank, step| {
        let mutant = mutate(schedules, rank, |steps| steps.insert(step, steps[step]));
        assert!(!find_defects(&mutant).is_empty(), "{name}");
    });
}

#[test]
fn lost_half_is_detected() {
    for_every_step(|name, schedules, rank, step| {
        if schedules[rank].steps()[step].send.is_some() {
            let mutant = mutate(schedules, rank, |steps| steps[step].send = None);
            assert!(!find_defects(&mutant).is_empty(), "{name}: send");
        }
        if schedules[rank].steps()[step].receive.is_some() {
            let mutant = mutate(schedules, rank, |steps| steps[step].receive = None);
            assert!(!find_defects(&mutant).is_empty(), "{name}: receive");
        }
    });
}

#[test]
fn misdirected_message_is_detected() {
    for_every_step(|name, schedules, rank, step| {
        let ranks = schedules.len();
        if schedules[rank].steps()[step].send.is_some() {
            let mutant = mutate(schedules, rank, |steps| {
                let send = steps[step].send.as_mut().unwrap();
                send.to = (send.to + 1) % ranks;
            });
            assert!(!find_defects(&mutant).is_empty(), "{name}: send");
        }
        if schedules[rank].steps()[step].receive.is_some() {
            let mutant = mutate(schedules, rank, |steps| {
                let receive = steps[step].receive.as_mut().unwrap();
                receive.from = (receive.from + 1) % ranks;
            });
            assert!(!find_defects(&mutant).is_empty(), "{name}: receive");
        }
    });
}

#[test]
fn reduction_that_replaces_and_the_reverse_are_detected() {
    for_every_step(|name, schedules, rank, step| {
        if schedules[rank].steps()[step].receive.is_some() {
            let mutant = mutate(schedules, rank, |steps| {
                let combine = &mut steps[step].receive.as_mut().unwrap().combine;
                *combine = match *combine {
                    Combine::Replace => Combine::Reduce,
                    Combine::Reduce | Combine::ReduceBefore => Combine::Replace,
                };
            });
            assert!(!find_defects(&mutant).is_empty(), "{name}");
        }
    });
}

/// Some neighbours may be swapped without an effect on the result. A mutant that the verifier accepts must be correct: every rank's
/// contribution once, and the same bits on all ranks.
#[test]
fn swapped_steps_are_detected_unless_correct() {
    let (mut detected, mut passed) = (0, 0);
    for_every_step(|name, schedules, rank, step| {
        if step + 1 < schedules[rank].steps().len() {
            let mutant = mutate(schedules, rank, |steps| steps.swap(step, step + 1));
            if find_defects(&mutant).is_empty() {
                assert_correct(name, &mutant);
                passed += 1;
            } else {
                detected += 1;
            }
        }
    });
    assert!(detected > 200, "of {} swaps only {detected} were detected", detected + passed);
}

fn assert_correct(name: &str, schedules: &[Schedule]) {
    let programs: Vec<_> = plans(schedules).iter().map(Program::of_plan).collect();
    let counts: Vec<_> = (0..programs.len()).map(|rank| vec![16_u64.pow(rank as u32); 12]).collect();
    let expected: u64 = counts.iter().map(|input| input[0]).sum();
    let sums = program::run(&programs, &counts, |held, arrived| held + arrived).unwrap();
    assert!(sums.iter().flatten().all(|&sum| sum == expected), "{name}: {sums:?}");

    let inexact: Vec<_> = (0..programs.len()).map(|rank| vec![1.0 / (rank as f32 + 3.0); 12]).collect();
    let sums = program::run(&programs, &inexact, |held, arrived| held + arrived).unwrap();
    assert!(sums.iter().all(|sum| sum == &sums[0]), "{name}: {sums:?}");
}

#[test]
fn wrong_chunk_is_detected() {
    for_every_step(|name, schedules, rank, step| {
        let chunk_count = schedules[rank].chunk_count();
        let sends_one = |step: &Step| step.send.is_some_and(|send| send.chunks.count() == 1);
        if chunk_count > 1 && sends_one(&schedules[rank].steps()[step]) {
            let mutant = mutate(schedules, rank, |steps| {
                let send = steps[step].send.as_mut().unwrap();
                send.chunks = Chunks::one((send.chunks.start + 1) % chunk_count);
            });
            assert!(!find_defects(&mutant).is_empty(), "{name}");
        }
    });
}

#[test]
fn defects_have_the_right_kind() {
    let whole = Chunks::one(0);
    let ring = schedules(Algorithm::Ring, 4);

    let dropped = mutate(&ring, 1, |steps| {
        steps.pop();
    });
    assert!(find_defects(&dropped).iter().any(|defect| matches!(defect, Defect::Unmatched { other: 1, .. })));

    // Both ranks receive before they send.
    let waiting = |rank: usize| {
        let other = 1 - rank;
        Schedule::new(1, [Step::new().reduce(other, whole), Step::new().send(other, whole)])
    };
    let defects = find_defects(&[waiting(0), waiting(1)]);
    assert_eq!(defects[0], Defect::Deadlock { rank: 0, step: 0, other: 1 });

    // The cyclic order of the textbook: correct sums, but different bits on every rank.
    let cyclic = |rank: usize| {
        let step = |i| Step::new().send_original((rank + i) % 3, whole).reduce((rank + 3 - i) % 3, whole);
        Schedule::new(1, (1..3).map(step))
    };
    let defects = find_defects(&[cyclic(0), cyclic(1), cyclic(2)]);
    assert!(matches!(defects[..], [Defect::DifferentOrder { chunk: 0, .. }]), "{defects:?}");

    let overlap = Step { send: Some(ring_send(2, 1)), ..Step::new().replace(1, Chunks::one(2)) };
    let defects = find_defects(&mutate(&ring, 0, |steps| steps[0] = overlap));
    assert!(matches!(defects[..], [Defect::Overlap { rank: 0, step: 0, .. }]), "{defects:?}");

    let longer = mutate(&ring, 0, |steps| steps[0].send.as_mut().unwrap().chunks = Chunks::new(0, 2));
    assert!(find_defects(&longer).iter().any(|defect| matches!(defect, Defect::Mismatch { from: 0, .. })));

    let outside = mutate(&ring, 0, |steps| steps[0].send.as_mut().unwrap().chunks = Chunks::new(3, 5));
    assert!(matches!(find_defects(&outside)[..], [Defect::NoSuchChunk { rank: 0, step: 0, .. }]));

    let twice = mutate(&mutate(&schedules(Algorithm::RecursiveDoubling, 2), 0, double), 1, double);
    assert!(find_defects(&twice).iter().any(|defect| matches!(defect, Defect::Doubled { .. })));

    assert_eq!(find_defects(&outside)[0].to_string(), "rank 0, step 0: chunks 3..5 of 4 do not exist");
}

fn double(steps: &mut Vec<Step>) {
    steps.push(steps[0]);
}

fn ring_send(chunk: usize, to: usize) -> unisono_collectives::Send {
    unisono_collectives::Send { to, chunks: Chunks::one(chunk), source: Source::Current }
}
