//! Runs that are killed, stopped, or out of disk space, and the tools that restart them.
//!
//! `UNISONO_TEST_KILLS=40 cargo nextest run -E 'test(restart::killed)'` kills 40 times.

use unisono_testing::suite::Test;
use unisono_testing::tests;

mod disk;
mod elastic;
mod killed;
pub(crate) mod samples;
mod stopped;
mod supervised;

pub(crate) fn tests() -> Vec<Test> {
    use elastic::*;
    use killed::*;
    use samples::*;
    use stopped::*;
    use supervised::*;

    let mut tests = tests![
        killed_at_random_moments_a_run_resumes_with_the_same_result,
        workers_join_again_after_being_killed,
        lost_workers_do_not_block_the_others,
        lost_parameter_server_ends_the_run,
        every_sample_is_read_once_per_epoch_on_4_2_and_3_ranks,
        signal_to_supervise_saves_a_run_that_resumes_with_the_same_result,
        signal_to_one_rank_stops_all_ranks,
        slurm_script_requeues_the_job,
        supervise_gives_up_or_refuses_to_start,
        supervise_resumes_and_counts_all_restarts,
        no_process_outlives_a_supervised_run,
        supervise_kills_commands_that_do_not_stop,
        second_hangup_leaves_the_time_to_save,
        killed_run_with_a_parameter_server_is_resumed,
    ];
    let more = tests![killed_run_with_compression_is_resumed, killed_run_with_overlap_is_resumed];
    tests.extend(more.into_iter().map(Test::deep));
    let full = Test::new("a_full_disk_ends_all_ranks_and_spares_older_checkpoints", disk::full);
    tests.push(full.unless(disk::unavailable));
    tests
}
