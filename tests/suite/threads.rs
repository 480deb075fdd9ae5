//! Worlds of threads: every algorithm, operation and type, and mismatched calls.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use unisono::{
    Algorithm, Call, Choice, Communicator, DType, Error, ErrorCode, Method, ReduceOp, Topology, Unisono,
    Vendor,
};
use unisono_testing::suite::{Test, is_deep};
use unisono_testing::tests;

use crate::common::{self, memory::Memory};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        conformance_of_small_worlds,
        conformance_of_larger_worlds,
        conformance_in_registered_memory,
        sizes_around_thresholds,
        same_bits,
        random_calls,
        custom_reductions,
        different_reduction_names_are_a_mismatch,
        panic_in_a_reduction_reaches_every_rank,
        caught_panic_in_a_reduction_ends_the_call_on_every_rank,
        groups,
        world_survives_the_failure_of_a_group,
        different_group_lists_are_a_mismatch,
        a_large_world_begins_and_ends,
        direct_algorithms_round_halves_once,
        different_counts_are_an_error_that_names_both,
        different_types_operations_or_algorithms_are_an_error_that_names_both,
        different_orders_are_an_error_that_names_both,
        wait_for_the_counter_of_a_departed_rank_fails,
        shared_allocation_over_several_nodes_is_refused,
        departed_or_missing_rank_is_named,
        panic_reaches_every_rank,
        calls_after_a_failure_report_the_cause,
        unsupported_choice_is_refused_without_harm,
        call_options_apply_to_that_call_only,
        call_in_flight_keeps_its_options,
        ranks_continue_after_a_refused_call,
        no_rank_continues_after_a_failed_call,
    ]
}

fn conformance_of_small_worlds() {
    for ranks in 1..=5 {
        unisono::threads(ranks, |mut comm| common::conformance(&mut comm, Memory::Slices));
    }
}

fn conformance_of_larger_worlds() {
    for ranks in if is_deep() { 6..=9 } else { 7..=8 } {
        unisono::threads(ranks, |mut comm| common::conformance(&mut comm, Memory::Slices));
    }
}

fn conformance_in_registered_memory() {
    for ranks in [2, 3] {
        unisono::threads(ranks, |mut comm| common::conformance(&mut comm, Memory::Parts));
    }
}

fn sizes_around_thresholds() {
    for ranks in if is_deep() { 2..=4 } else { 3..=3 } {
        unisono::threads(ranks, |mut comm| common::thresholds::cross(&mut comm, Memory::Mixed));
    }
}

fn same_bits() {
    for ranks in 1..=9 {
        unisono::threads(ranks, |mut comm| common::bits::agree(&mut comm, Memory::Slices));
    }
    unisono::threads(3, |mut comm| common::bits::agree_in_blocks(&mut comm, Memory::Mixed));
}

fn random_calls() {
    for ranks in 2..=5 {
        unisono::threads(ranks, |mut comm| {
            common::stress::calls(&mut comm, 400);
            common::parts::calls(&mut comm, 200);
            common::plans::calls(&mut comm, 100);
        });
    }
}

fn custom_reductions() {
    for ranks in 1..=9 {
        unisono::threads(ranks, |mut comm| common::custom::conformance(&mut comm));
    }
}

fn different_reduction_names_are_a_mismatch() {
    common::custom::other_names();
}

fn panic_in_a_reduction_reaches_every_rank() {
    common::custom::panics();
}

fn caught_panic_in_a_reduction_ends_the_call_on_every_rank() {
    common::custom::caught_panic();
}

fn groups() {
    for ranks in 1..=5 {
        unisono::threads(ranks, |mut comm| common::groups::members(&mut comm));
    }
    unisono::threads(4, |mut comm| common::groups::inside(&mut comm));
    unisono::threads(3, |mut comm| common::groups::conformance(&mut comm));
}

fn world_survives_the_failure_of_a_group() {
    let errors = unisono::threads(3, |mut comm| {
        let error = common::groups::disagree(&mut comm).to_string();
        comm.barrier().unwrap();
        error
    });
    let names = |error: &String| error.contains("of 10 f32") && error.contains("of 11 f32");
    assert!(errors.iter().any(names), "{errors:?}");
}

fn different_group_lists_are_a_mismatch() {
    let errors = unisono::threads(3, |mut comm| {
        let list = if comm.rank() == 1 { [0, 2] } else { [0, 1] };
        comm.group(&list).unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("group of [0, 1]") && error.contains("group of [0, 2]"), "{error}");
    }
}

fn a_large_world_begins_and_ends() {
    let ranks = if is_deep() { 1024 } else { 128 };
    let sums = unisono::threads(ranks, |mut comm| {
        let mut one = [1_u32];
        comm.all_reduce(&mut one, ReduceOp::Sum).unwrap();
        one[0]
    });
    assert!(sums.into_iter().all(|sum| sum == ranks as u32));
}

fn direct_algorithms_round_halves_once() {
    use half::bf16;
    // 1 and seven times 1/256: an addition in bf16 would lose each small one.
    for algorithm in [Algorithm::AllToAll, Algorithm::MasterWorker, Algorithm::RoundRobin] {
        let sums = unisono::threads(8, |mut comm| {
            let value = if comm.rank() == 0 { 1.0 } else { 1.0 / 256.0 };
            let mut buffer = [bf16::from_f32(value); 16];
            comm.set_choice(algorithm).unwrap();
            comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
            buffer
        });
        let once = bf16::from_f32(1.0 + 7.0 / 256.0);
        assert!(sums.iter().flatten().all(|&sum| sum == once), "{algorithm}: {sums:?}");
    }
}

/// Returns the errors of ranks that make different calls. No rank may get a result, and at least one must name both sides.
fn disagree(ranks: usize, call: impl Fn(&mut Communicator) -> unisono::Result<()> + Sync) -> Vec<String> {
    let started = Instant::now();
    let errors = unisono::threads(ranks, |mut comm| {
        comm.set_timeout(Duration::from_secs(20));
        let result = call(&mut comm);
        if let Err(Error::Aborted { by, .. } | Error::Left { other: by, .. }) = result {
            assert_ne!(by, comm.rank());
        }
        result.err().map(|error| error.to_string())
    });
    assert!(started.elapsed() < Duration::from_secs(10), "detected before the deadline");
    errors.into_iter().flatten().collect()
}

fn assert_named(errors: &[String], one: &str, other: &str) {
    let named = errors.iter().any(|error| error.contains(one) && error.contains(other));
    assert!(named, "{one:?} and {other:?} in {errors:#?}");
}

fn different_counts_are_an_error_that_names_both() {
    for algorithm in Algorithm::ALL {
        for ranks in [2, 3, 4] {
            let errors = disagree(ranks, |comm| {
                comm.set_choice(algorithm).unwrap();
                let mut buffer = vec![1.0_f32; if comm.rank() == 1 { 999 } else { 1000 }];
                comm.all_reduce(&mut buffer, ReduceOp::Sum).map(drop)
            });
            assert_named(&errors, "of 1000 f32", "of 999 f32");
        }
    }
}

fn different_types_operations_or_algorithms_are_an_error_that_names_both() {
    let errors = disagree(3, |comm| match comm.rank() {
        2 => comm.all_reduce(&mut [1_i32; 64], ReduceOp::Sum).map(drop),
        _ => comm.all_reduce(&mut [1.0_f32; 64], ReduceOp::Sum).map(drop),
    });
    assert_named(&errors, "64 f32, sum", "64 i32, sum");

    let errors = disagree(4, |comm| {
        let op = if comm.rank() == 0 { ReduceOp::Max } else { ReduceOp::Sum };
        comm.all_reduce(&mut [1.0_f32; 64], op).map(drop)
    });
    assert_named(&errors, "f32, sum", "f32, max");

    let errors = disagree(4, |comm| {
        let algorithm = if comm.rank() == 3 { Algorithm::Ring } else { Algorithm::Butterfly };
        comm.set_choice(algorithm).unwrap();
        comm.all_reduce(&mut [1.0_f32; 64], ReduceOp::Sum).map(drop)
    });
    assert_named(&errors, "by ring", "by butterfly");
}

fn different_orders_are_an_error_that_names_both() {
    let errors = disagree(2, |comm| {
        let mut buffer = [1.0_f32; 10];
        if comm.rank() == 0 {
            comm.broadcast(&mut buffer, 0)?;
            comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
        } else {
            comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
            comm.broadcast(&mut buffer, 0)?;
        }
        Ok(())
    });
    assert_named(&errors, "broadcast #0 of 10 f32, root 0", "all-reduce #0 of 10 f32, sum");
}

fn wait_for_the_counter_of_a_departed_rank_fails() {
    let errors = disagree(2, |comm| {
        let turns = comm.alloc_counters(1)?;
        match comm.rank() {
            0 => comm.wait_until(1, turns.get(0), 1),
            _ => Ok(()),
        }
    });
    assert!(errors.len() == 1 && errors[0].contains("wait-until"), "{errors:?}");
    assert!(errors[0].contains("rank 1 has left the world"), "{errors:?}");
}

fn shared_allocation_over_several_nodes_is_refused() {
    let nodes = Topology::uniform(2, 1);
    let world = Unisono::builder().ignore_environment().nodes(nodes).threads(2).unwrap();
    std::thread::scope(|scope| {
        for mut comm in world {
            scope.spawn(move || {
                let error = comm.alloc_shared::<f32>(8).unwrap_err().to_string();
                assert!(error.contains("ranks on 2 nodes cannot share memory"), "{error}");
                let mut node = comm.split(Some(comm.rank()), 0).unwrap().unwrap();
                assert_eq!(node.alloc_shared::<f32>(8).unwrap().len(), 8);
            });
        }
    });
}

fn departed_or_missing_rank_is_named() {
    let errors = disagree(2, |comm| match comm.rank() {
        0 => comm.all_reduce(&mut [1.0_f32; 10], ReduceOp::Sum).map(drop),
        _ => Ok(()),
    });
    let expected = "rank 0, all-reduce #0 by recursive-doubling, step 0: rank 1 has left the world: it dropped its communicator";
    assert!(errors.len() == 1 && errors[0].starts_with(expected), "{errors:?}");

    let given_up = Barrier::new(2);
    let errors = unisono::threads(2, |mut comm| {
        if comm.rank() == 1 {
            given_up.wait();
            return None;
        }
        comm.set_timeout(Duration::from_millis(300));
        let error = comm.barrier().err().map(|error| error.to_string());
        given_up.wait();
        error
    });
    assert!(errors[0].as_ref().unwrap().contains("for rank 1"), "{errors:?}");
}

fn panic_reaches_every_rank() {
    let world = Unisono::builder().threads(3).unwrap();
    let threads: Vec<_> = world
        .into_iter()
        .map(|mut comm| {
            std::thread::spawn(move || {
                assert_ne!(comm.rank(), 1, "on purpose");
                comm.all_reduce(&mut [0_u8; 5], ReduceOp::Max).map(drop)
            })
        })
        .collect();
    let results: Vec<_> = threads.into_iter().map(std::thread::JoinHandle::join).collect();
    assert!(results[1].is_err());
    for rank in [0, 2] {
        let error = results[rank].as_ref().unwrap().as_ref().unwrap_err().to_string();
        assert!(error.contains("rank 1"), "{error}");
    }
}

fn calls_after_a_failure_report_the_cause() {
    unisono::threads(1, |mut comm| {
        comm.fail("the disk is full");
        let error = comm.barrier().unwrap_err().to_string();
        assert_eq!(error, "rank 0 cannot continue: the disk is full");
    });
}

fn unsupported_choice_is_refused_without_harm() {
    unisono::threads(2, |mut comm| {
        assert!(matches!(comm.collective(Vendor::Mpi).err(), Some(Error::Unsupported(_))));
        let mut one = [1_u64];
        comm.all_reduce(&mut one, ReduceOp::Sum).unwrap();
        assert_eq!(one, [2]);
    });
    let without_phases = Method::InNodes(Algorithm::Ring, Vendor::Mpi);
    let refused = Unisono::builder().ignore_environment().algorithm(without_phases).threads(2);
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
}

fn call_options_apply_to_that_call_only() {
    unisono::threads(3, |mut comm| {
        fn by(comm: &mut Communicator) -> Method {
            comm.all_reduce(&mut [1.0_f32; 10], ReduceOp::Sum).unwrap().method
        }
        let (ring, tree) = (Method::Algorithm(Algorithm::Ring), Method::Algorithm(Algorithm::Tree));
        let usual = by(&mut comm);
        assert!(usual != ring && usual != tree, "{usual}");
        assert_eq!(by(&mut comm.call().algorithm(Algorithm::Ring)), ring);
        assert_eq!(by(&mut comm), usual);
        // One builder for several calls, and another nested in it.
        let mut calls = comm.call().algorithm("tree".parse::<Choice>().unwrap()).label("calls");
        assert_eq!(by(&mut calls.call().algorithm(ring)), ring);
        assert_eq!(by(&mut calls), tree);
        drop(calls);
        // A plan leaves no trace if one rank never starts it.
        if comm.rank() == 1 {
            drop(comm.call().algorithm(ring).label("nobody's").timeout(Duration::ZERO));
        }
        assert_eq!(by(&mut comm), usual);
        let call = Call::all_reduce(DType::F32, ReduceOp::Sum, 10);
        assert_eq!(
            [comm.selection(&call).method, comm.call().algorithm(ring).selection(&call).method],
            [usual, ring]
        );
    });
}

fn call_in_flight_keeps_its_options() {
    unisono::threads(2, |mut comm| {
        let named = comm
            .call()
            .label("one")
            .algorithm(Algorithm::Ring)
            .all_reduce_async(vec![1_u64; 9], ReduceOp::Sum);
        let plain = comm.all_reduce_async(vec![1_u64; 9], ReduceOp::Sum);
        assert_eq!(named.unwrap().wait().unwrap(), [2; 9]);
        assert_eq!(plain.unwrap().wait().unwrap(), [2; 9]);
    });
}

fn ranks_continue_after_a_refused_call() {
    for ranks in 1..=3 {
        unisono::threads(ranks, |mut comm| common::errors::refused(&mut comm));
    }
}

fn no_rank_continues_after_a_failed_call() {
    use crate::common::errors::failed;
    let code = |error: &Option<Error>| error.as_ref().map(Error::code);
    let late = failed(|comm| match comm.rank() {
        0 => comm.barrier(),
        _ => {
            std::thread::sleep(Duration::from_millis(1200));
            Ok(())
        }
    });
    assert_eq!((code(&late[0]), code(&late[1])), (Some(ErrorCode::Timeout), None));
    let left = failed(|comm| if comm.rank() == 1 { Ok(()) } else { comm.barrier() });
    assert_eq!((code(&left[0]), left[0].as_ref().unwrap().failed_rank()), (Some(ErrorCode::Left), Some(1)));
    let errors = failed(|comm| {
        if comm.rank() == 1 {
            comm.fail("the disk is full");
        }
        comm.barrier()
    });
    for error in errors.map(Option::unwrap) {
        assert_eq!((error.code(), error.failed_rank()), (ErrorCode::Aborted, Some(1)), "{error}");
    }
    let apart = failed(|comm| comm.all_reduce(&mut vec![1_u8; 5 + comm.rank()], ReduceOp::Sum).map(drop));
    assert!(apart.iter().any(|error| code(error) == Some(ErrorCode::Mismatch)), "{apart:?}");
    assert!(apart.iter().all(Option::is_some), "{apart:?}");
    let groups = failed(|comm| comm.group(&[comm.rank()]).map(drop));
    assert_eq!(groups.each_ref().map(code), [Some(ErrorCode::Mismatch); 2]);
    let functions = failed(|comm| match comm.rank() {
        0 => comm.split(Some(0), 0).map(drop),
        _ => comm.alloc_shared::<u8>(8).map(drop),
    });
    let text = format!("{functions:?}");
    assert!(text.contains("split") && text.contains("alloc_shared"), "{text}");
}
