//! Runs that are killed, told to stop, or out of room, and what starts them again.
//!
//! `UNISONO_TEST_KILLS=40 cargo nextest run -E 'test(restart::killed)'` kills that often.

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
        killed_at_random_moments_the_result_is_that_of_the_undisturbed_run,
        workers_that_are_killed_join_again,
        workers_that_are_killed_are_not_waited_for,
        a_parameter_server_that_is_killed_ends_the_run,
        every_sample_is_seen_once_an_epoch_on_4_2_and_3_ranks,
        a_signal_to_supervise_saves_on_all_ranks_and_the_rest_gives_the_same,
        a_signal_to_one_rank_stops_all_of_them,
        the_slurm_script_puts_the_job_back_into_the_queue,
        supervise_gives_up_or_does_not_begin,
        supervise_resumes_and_counts_all_restarts,
        nothing_outlives_a_supervised_run,
        supervise_kills_what_does_not_stop,
        killed_with_a_parameter_server,
    ];
    let more = tests![killed_with_compressed_gradients, killed_while_the_next_forward_pass_goes_on];
    tests.extend(more.into_iter().map(Test::deep));
    let full = Test::new("a_full_disk_ends_all_ranks_and_spares_older_checkpoints", disk::full);
    tests.push(full.unless(disk::unavailable));
    tests
}
