//! The order of a rank's passes.

use super::{Pass, PipelineSchedule};
use unisono_collectives::Rank;

/// Returns the passes of a rank, in order.
pub(super) fn of(
    schedule: PipelineSchedule,
    (rank, ranks): (Rank, usize),
    micro_batches: usize,
) -> Vec<Pass> {
    let own_stages = schedule.stages_per_rank();
    let exists = |pass: &Pass| pass.micro_batch < micro_batches;
    // Interleaved stages alternate in complete rounds. Micro-batches beyond the last are left out.
    let micro_batches = if own_stages == 1 { micro_batches } else { micro_batches.next_multiple_of(ranks) };
    let all = micro_batches * own_stages;
    // Each stage processes as many micro-batches as there are ranks, then the next stage follows. Backward passes begin at the last stage.
    let pass = |is_backward: bool, number: usize| {
        let (round, within) = (number / (ranks * own_stages), number % (ranks * own_stages));
        let turn = within / ranks;
        let own = if is_backward { own_stages - 1 - turn } else { turn };
        let micro_batch = round * ranks + within % ranks;
        Some(Pass { is_backward, stage: own * ranks + rank, micro_batch }).filter(exists)
    };
    let ahead = ahead(schedule, (rank, ranks), micro_batches);
    let mut passes = Vec::with_capacity(2 * all);
    passes.extend((0..ahead).filter_map(|number| pass(false, number)));
    for number in 0..all {
        if ahead + number < all {
            passes.extend(pass(false, ahead + number));
        }
        passes.extend(pass(true, number));
    }
    passes
}

/// Returns the number of forward passes of a rank before the first one that a backward pass follows.
pub(super) fn ahead(schedule: PipelineSchedule, (rank, ranks): (Rank, usize), micro_batches: usize) -> usize {
    let (own_stages, behind) = (schedule.stages_per_rank(), ranks - 1 - rank);
    let all = micro_batches * own_stages;
    match schedule {
        PipelineSchedule::GPipe => all,
        PipelineSchedule::OneForwardOneBackward => all.min(behind),
        // The first backward pass belongs to the last stage, after a round of all other stages. The first term covers the way to the later ranks and
        // back.
        PipelineSchedule::Interleaved { .. } => all.min(2 * behind + (own_stages - 1) * ranks),
    }
}
