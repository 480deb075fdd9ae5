use expect_test::expect_file;

use super::*;

const SCHEDULES: [PipelineSchedule; 4] = [
    PipelineSchedule::GPipe,
    PipelineSchedule::OneForwardOneBackward,
    PipelineSchedule::Interleaved { stages: 2 },
    PipelineSchedule::Interleaved { stages: 3 },
];

/// Returns plans of all schedules, for many numbers of ranks and micro-batches.
fn plans(most_ranks: usize, most_micro_batches: usize) -> impl Iterator<Item = PipelinePlan> {
    let worlds =
        (1..=most_ranks).flat_map(move |ranks| (1..=most_micro_batches).map(move |micro| (ranks, micro)));
    worlds.flat_map(|(ranks, micro)| {
        SCHEDULES.into_iter().filter_map(move |schedule| schedule.plan(ranks, micro).ok())
    })
}

/// Returns whether every round of interleaved stages is complete.
fn is_round(plan: &PipelinePlan) -> bool {
    plan.schedule.stages_per_rank() == 1 || plan.micro_batches.is_multiple_of(plan.ranks.len())
}

#[test]
fn plans_have_no_defects() {
    let mut count = 0;
    for plan in plans(6, 12) {
        assert_eq!(plan.verify(), [""; 0], "{} over {} ranks", plan.schedule, plan.ranks.len());
        count += 1;
    }
    assert_eq!(count, 6 * 12 * SCHEDULES.len());
}

#[test]
fn ranks_keep_no_more_activations_than_most_kept() {
    for plan in plans(5, 10) {
        for (rank, acts) in plan.ranks().iter().enumerate() {
            let (mut kept, mut most) = (0, 0);
            for act in acts {
                if let Act::Compute(pass) = act {
                    kept = if pass.is_backward { kept - 1 } else { kept + 1 };
                    most = most.max(kept);
                }
            }
            let said = plan.schedule.most_kept(rank, plan.ranks.len(), plan.micro_batches);
            assert!(kept == 0 && most <= said, "{} rank {rank}: {most} of {said}", plan.schedule);
            assert!(most == said || !is_round(&plan), "{} rank {rank}: {most} of {said}", plan.schedule);
        }
    }
}

#[test]
fn bubbles_match_the_formulas_of_the_papers() {
    let costs = PassCosts { forward: 1.0, backward: 2.0, message: 0.0 };
    for plan in plans(6, 12).filter(|plan| plan.micro_batches >= plan.ranks.len() && is_round(plan)) {
        let behind = (plan.ranks.len() - 1) as f64;
        let passes = (plan.micro_batches * plan.schedule.stages_per_rank()) as f64;
        let (found, expected) = (plan.timeline(&costs).bubble(), behind / (passes + behind));
        assert!(
            (found - expected).abs() < 1e-9,
            "{} over {}: {found} {expected}",
            plan.schedule,
            plan.ranks.len()
        );
    }
}

#[test]
fn message_times_extend_the_timeline() {
    let costs = |message| PassCosts { forward: 1.0, backward: 2.0, message };
    let plan = PipelineSchedule::OneForwardOneBackward.plan(4, 8).unwrap();
    let (without, with) = (plan.timeline(&costs(0.0)).ends(), plan.timeline(&costs(0.5)).ends());
    // At least three messages forward and three back.
    assert!(with >= without + 3.0, "{without} {with}");
}

/// Returns all plans with one wrong action.
fn mutants(plan: &PipelinePlan) -> Vec<(String, PipelinePlan)> {
    let mut mutants = Vec::new();
    for (rank, acts) in plan.ranks.iter().enumerate() {
        for (at, &act) in acts.iter().enumerate() {
            let mut spoil = |how: &str, change: &dyn Fn(&mut Vec<Act>)| {
                let mut mutant = plan.clone();
                change(&mut mutant.ranks[rank]);
                mutants.push((format!("{how} act {at} of rank {rank}, {act:?}"), mutant));
            };
            spoil("drops", &|acts| {
                acts.remove(at);
            });
            spoil("repeats", &|acts| acts.insert(at, act));
            spoil("changes the micro-batch of", &|acts| {
                *pass_of(&mut acts[at]) =
                    Pass { micro_batch: pass_of(&mut acts[at]).micro_batch + 1, ..*pass_of(&mut acts[at]) }
            });
            spoil("turns", &|acts| pass_of(&mut acts[at]).is_backward ^= true);
            spoil("changes the stage of", &|acts| pass_of(&mut acts[at]).stage += 1);
            match act {
                Act::Compute(_) => {}
                Act::Receive { .. } | Act::Send { .. } => spoil("changes the rank of", &|acts| {
                    let (Act::Receive { from: other, .. } | Act::Send { to: other, .. }) = &mut acts[at]
                    else {
                        unreachable!("it was one of them")
                    };
                    *other += 1;
                }),
            }
        }
    }
    mutants
}

fn pass_of(act: &mut Act) -> &mut Pass {
    let (Act::Compute(pass) | Act::Receive { of: pass, .. } | Act::Send { of: pass, .. }) = act;
    pass
}

#[test]
fn verify_detects_every_mutant() {
    let mut count = 0;
    for plan in plans(3, 6) {
        for (how, mutant) in mutants(&plan) {
            assert_ne!(mutant.verify(), [""; 0], "{} over {}: {how}", plan.schedule, plan.ranks.len());
            count += 1;
        }
    }
    assert!(count > 5000, "{count}");
}

#[test]
fn verify_detects_reordered_passes() {
    let plan = PipelineSchedule::OneForwardOneBackward.plan(3, 6).unwrap();
    let eager = PipelinePlan { ranks: PipelineSchedule::GPipe.plan(3, 6).unwrap().ranks, ..plan.clone() };
    let expected = "rank 0 keeps the activations of 6 passes at a time, but the schedule allows 3";
    assert_eq!(eager.verify()[0], expected);
    let mut late = plan;
    // The last rank waits for the second micro-batch before it sends the gradients of the first.
    late.ranks[2].rotate_left(1);
    assert!(!late.verify().is_empty());
}

#[test]
fn empty_pipelines_are_refused() {
    assert!(PipelineSchedule::GPipe.plan(0, 6).unwrap_err().contains("at least one"));
    for name in ["gpipe", "1f1b", "interleaved:3"] {
        assert_eq!(name.parse::<PipelineSchedule>().unwrap().to_string(), name);
    }
    for name in ["interleaved", "interleaved:1", "2f2b"] {
        assert!(name.parse::<PipelineSchedule>().unwrap_err().to_string().contains("interleaved:STAGES"));
    }
}

#[test]
fn drawings_match_the_golden_files() {
    let draw = |schedule: PipelineSchedule, ranks, micro_batches| {
        schedule.plan(ranks, micro_batches).unwrap().draw()
    };
    let drawing = draw(PipelineSchedule::OneForwardOneBackward, 4, 8);
    expect_file!["golden/1f1b-4-8.txt"].assert_eq(&drawing);
    let others = [PipelineSchedule::GPipe, PipelineSchedule::Interleaved { stages: 2 }];
    let drawings = others.map(|schedule| draw(schedule, 3, 6)).join("\n");
    expect_file!["golden/all.txt"].assert_eq(&drawings);
}
