//! Tests of sent values and residuals over declared nodes.

use super::*;
use unisono::{Operation, Topology, Unisono};

/// A matrix that is compressed, one that is not, and a vector.
const SHAPES: [&[usize]; 3] = [&[24, 40], &[3, 2], &[17]];
const COUNT: usize = 24 * 40 + 3 * 2 + 17;
const ALL: [Compression; 12] = [
    Compression::Int8,
    Compression::Int4,
    Compression::Int8Stochastic,
    Compression::Int4Stochastic,
    Compression::OneBit,
    Compression::TopK { fraction: 0.05 },
    // By recursive doubling, from eight leaders on.
    Compression::TopK { fraction: 0.12 },
    Compression::TopK { fraction: 1.0 },
    // Few elements, and most.
    Compression::Threshold { least: 0.6 },
    Compression::Threshold { least: 0.01 },
    Compression::PowerSgd { rank: 1 },
    Compression::PowerSgd { rank: 4 },
];
const NODES: [&[usize]; 6] = [&[1, 1], &[2, 1], &[2, 2], &[1, 1, 1], &[1, 3, 2], &[1, 1, 1, 1, 1, 1, 1, 2]];

fn gradients(rank: usize, step: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(100 * rank as u64 + step);
    (0..COUNT).map(|_| random.f32() - 0.5).collect()
}

/// Returns the results of ranks as threads of these nodes.
pub(super) fn on_nodes<T: Send>(
    nodes: &[usize],
    on_rank: impl Fn(&mut Communicator) -> Result<T> + Sync,
) -> Vec<T> {
    let world = Unisono::builder().nodes(Topology::from_node_sizes(nodes));
    let ended = world.on_threads(nodes.iter().sum(), |mut comm| on_rank(&mut comm));
    ended.unwrap().into_iter().map(Result::unwrap).collect()
}

/// Returns each rank's resulting gradients in each step, and its compressor.
fn reduced(
    nodes: &[usize],
    compression: Compression,
    steps: u64,
    is_async: bool,
) -> Vec<(Vec<Vec<f32>>, Compressor)> {
    on_nodes(nodes, |comm| {
        let compressor = Compressor::new(&Levels::of(comm)?, compression, &SHAPES);
        let mut results = Vec::new();
        for step in 0..steps {
            let mut values = gradients(comm.rank(), step);
            if is_async {
                values = compressor.all_reduce_async(comm, values)?.wait()?;
            } else {
                compressor.all_reduce(comm, &mut values)?;
            }
            results.push(values);
        }
        comm.barrier()?;
        Ok((results, compressor))
    })
}

#[test]
fn unsent_part_is_kept_in_the_residual() {
    for (nodes, compression) in
        NODES.into_iter().flat_map(|nodes| ALL.map(|compression| (nodes, compression)))
    {
        const STEPS: u64 = 5;
        let ended = reduced(nodes, compression, STEPS, false);
        assert!(
            ended.iter().all(|(results, _)| *results == ended[0].0),
            "results are identical on all ranks: {nodes:?}"
        );
        let all: Vec<_> =
            (0..ended.len()).flat_map(|rank| (0..STEPS).map(move |step| gradients(rank, step))).collect();
        for index in 0..COUNT {
            let given: f64 = all.iter().map(|gradients| f64::from(gradients[index])).sum();
            let arrived: f64 = ended[0].0.iter().map(|result| f64::from(result[index])).sum();
            let kept: f64 = ended.iter().map(|(_, rank)| f64::from(rank.residual()[index])).sum();
            let off = (given - arrived - kept).abs();
            assert!(
                off < 1e-4,
                "{compression} over {nodes:?}, element {index}: {given}, {arrived} and {kept}"
            );
        }
    }
}

#[test]
fn blocking_and_non_blocking_calls_give_the_same_bits() {
    for compression in ALL {
        let [beside, in_turn] = [true, false].map(|is_async| reduced(&[2, 1], compression, 3, is_async));
        assert!(beside.iter().zip(&in_turn).all(|(beside, in_turn)| beside.0 == in_turn.0), "{compression}");
    }
}

#[test]
fn nothing_is_compressed_on_one_node() {
    let all = [0, 1, 2].map(|rank| gradients(rank, 0));
    for compression in ALL {
        for (results, compressor) in reduced(&[3], compression, 1, false) {
            let sums = (0..COUNT).map(|index| all.iter().map(|gradients| gradients[index]).sum::<f32>());
            assert!(results[0].iter().zip(sums).all(|(found, sum)| (found - sum).abs() < 1e-6));
            assert!(compressor.residual().iter().all(|&value| value == 0.0));
        }
    }
}

#[test]
fn restored_compressor_continues_with_the_same_bits() {
    for compression in ALL {
        let undisturbed = reduced(&[1, 1], compression, 4, false);
        let resumed = on_nodes(&[1, 1], |comm| {
            let levels = Levels::of(comm)?;
            let mut last = Vec::new();
            let mut saved: Option<(Vec<f32>, Vec<Vec<f32>>)> = None;
            for step in 0..4 {
                let compressor = Compressor::new(&levels, compression, &SHAPES);
                if let Some((residual, encoder_state)) = saved {
                    compressor.restore(&residual, &encoder_state);
                }
                last = gradients(comm.rank(), step);
                compressor.all_reduce(comm, &mut last)?;
                saved = Some((compressor.residual(), compressor.encoder_state()));
            }
            Ok(last)
        });
        for (resumed, undisturbed) in resumed.into_iter().zip(undisturbed) {
            assert!(resumed == undisturbed.0[3], "{compression}");
        }
    }
}

/// Tensors that are sent uncompressed have residuals only of other encodings.
#[test]
fn restored_residual_of_uncompressed_tensors_is_sent() {
    let ended = on_nodes(&[1, 1], |comm| {
        let compression = Compression::PowerSgd { rank: 1 };
        let compressor = Compressor::new(&Levels::of(comm)?, compression, &SHAPES);
        compressor.restore(&[0.25; COUNT], &compressor.encoder_state());
        let mut sums = vec![0.0; COUNT];
        compressor.all_reduce(comm, &mut sums)?;
        Ok((sums.split_off(24 * 40), compressor.residual().split_off(24 * 40)))
    });
    for (sums, residual) in ended {
        assert!(sums.iter().all(|&sum| sum == 0.5) && residual.iter().all(|&kept| kept == 0.0), "{sums:?}");
    }
}

#[test]
fn restored_residual_is_added_on_one_node() {
    let residual = vec![0.25; COUNT];
    let ended = unisono::threads(2, |mut comm| -> Result<_> {
        let compressor = Compressor::new(&Levels::of(&mut comm)?, ALL[0], &SHAPES);
        if comm.rank() == 0 {
            compressor.restore(&residual, &compressor.encoder_state());
        }
        let mut results = [vec![1.0; COUNT], vec![1.0; COUNT]];
        results.iter_mut().try_for_each(|values| compressor.all_reduce(&mut comm, values))?;
        Ok(results)
    });
    for [first, second] in ended.into_iter().map(Result::unwrap) {
        assert!(first.iter().all(|&value| value == 2.25) && second.iter().all(|&value| value == 2.0));
    }
}

#[test]
fn non_finite_values_are_transmitted() {
    for compression in ALL {
        let ended = on_nodes(&[1, 2], |comm| {
            let compressor = Compressor::new(&Levels::of(comm)?, compression, &SHAPES);
            let mut values = gradients(comm.rank(), 0);
            if comm.rank() == 1 {
                values[100] = f32::NAN;
            }
            compressor.all_reduce(comm, &mut values)?;
            Ok((values[100], compressor.was_finite()))
        });
        for (value, was_finite) in ended {
            assert!(value.is_nan() && !was_finite, "{compression}");
        }
    }
}

#[test]
fn values_whose_squares_are_too_large_are_not_dropped_in_silence() {
    let ended = on_nodes(&[1, 1], |comm| {
        let compressor = Compressor::new(&Levels::of(comm)?, Compression::PowerSgd { rank: 2 }, &SHAPES);
        let mut values: Vec<_> = gradients(comm.rank(), 0).iter().map(|value| value * 1e25).collect();
        compressor.all_reduce(comm, &mut values)?;
        Ok(compressor.was_finite())
    });
    assert!(ended.into_iter().all(|was_finite| !was_finite));
}

#[test]
fn all_elements_are_sent_if_that_is_smaller() {
    for (least, sent) in [(10.0, 0), (0.1, COUNT), (0.499, 1)] {
        for (results, compressor) in reduced(&[1, 1], Compression::Threshold { least }, 1, false) {
            let arrived = results[0].iter().filter(|&&value| value != 0.0).count();
            let kept = compressor.residual().iter().filter(|&&value| value != 0.0).count();
            match sent {
                0 => assert_eq!((arrived, kept), (0, COUNT), "{least}"),
                COUNT => assert_eq!((arrived, kept), (COUNT, 0), "{least}"),
                _ => assert!((1..20).contains(&arrived) && kept < COUNT, "{least}: {arrived} and {kept}"),
            }
        }
    }
}

#[test]
fn empty_array_is_summed() {
    for compression in ALL {
        on_nodes(&[1, 2], |comm| {
            Compressor::new(&Levels::of(comm)?, compression, &[]).all_reduce(comm, &mut [])
        });
    }
}

#[test]
fn padding_stays_zero() {
    for compression in ALL {
        let ended = on_nodes(&[1, 2], |comm| {
            let compressor = Compressor::new(&Levels::of(comm)?, compression, &[&[7], &[9], &[8]]);
            let compressor = compressor.with_padding(vec![7..12, 12..16]);
            let mut sums = [0.0; 24];
            for step in 0..3 {
                sums[..7].copy_from_slice(&gradients(comm.rank(), step)[..7]);
                sums[16..].fill(1.0);
                compressor.all_reduce(comm, &mut sums)?;
            }
            Ok((sums, compressor.residual()))
        });
        for (sums, residual) in ended {
            assert_eq!((&sums[7..16], &residual[7..16]), (&[0.0; 9][..], &[0.0; 9][..]), "{compression}");
        }
    }
}

#[test]
fn formatted_names_parse_to_the_same_value() {
    for compression in ALL {
        assert_eq!(compression.to_string().parse(), Ok(compression));
    }
    for wrong in [
        "powersgd",
        "powersgd:0",
        "powersgd:65",
        "powersgd:x",
        "topk",
        "topk:0",
        "topk:1.5",
        "int8:2",
        "int8:",
        "onebit:stochastic",
        "int4:4",
        "onebit:",
        "threshold",
        "threshold:0",
        "threshold:-1",
        "threshold:inf",
        "threshold:NaN",
        "int9",
        "",
    ] {
        let error = wrong.parse::<Compression>().unwrap_err().to_string();
        assert!(error.contains("powersgd:RANK"), "{error}");
    }
}

#[test]
fn exchanges_have_the_bytes_of_codes_and_scales() {
    let exchanges = Compression::Int8.exchanges(&[&[512, 2]], 2).unwrap();
    // Each of two chunks of 512 elements takes their bytes, and two scales.
    assert!(exchanges.iter().all(|exchange| exchange.size_bytes == 2 * (512 + 8)));
    assert_eq!(exchanges[1].operation, Operation::AllGather);
}

#[test]
fn different_seeds_and_calls_round_differently() {
    let ended = on_nodes(&[1, 1], |comm| {
        let levels = Levels::of(comm)?;
        let (mut means, mut results) = (vec![0.0; COUNT], Vec::new());
        for seed in [1, 1, 2] {
            let compressor = Compressor::new(&levels, Compression::Int4Stochastic, &SHAPES).with_seed(seed);
            let mut sums = gradients(comm.rank(), 0);
            compressor.all_reduce(comm, &mut sums)?;
            results.push(sums);
        }
        for seed in 0..400 {
            // Without the residual of earlier calls.
            let compressor = Compressor::new(&levels, Compression::Int4Stochastic, &SHAPES).with_seed(seed);
            let mut sums = gradients(comm.rank(), 0);
            compressor.all_reduce(comm, &mut sums)?;
            means.iter_mut().zip(sums).for_each(|(mean, sum)| *mean += f64::from(sum) / 400.0);
        }
        Ok((results, means))
    });
    for (results, means) in ended {
        assert!(results[0] == results[1] && results[0] != results[2]);
        let sum = |index: usize| (0..2).map(|rank| f64::from(gradients(rank, 0)[index])).sum::<f64>();
        // A step is at most 1/7, twice rounded; five standard deviations.
        let bound = 5.0 * (0.5 / 7.0) * 2_f64.sqrt() / 400_f64.sqrt();
        for (index, mean) in means.into_iter().enumerate() {
            assert!((mean - sum(index)).abs() < bound, "{index}: {mean}, not {}", sum(index));
        }
    }
}

#[test]
#[should_panic(expected = "the array has the size of the shapes")]
fn array_of_another_size_is_refused_on_one_node() {
    let mut comm = unisono::Unisono::builder().threads(1).unwrap().remove(0);
    let compressor = Compressor::new(&Levels(None), ALL[0], &SHAPES);
    let _ = compressor.all_reduce(&mut comm, &mut [0.0; COUNT - 1]);
}

#[test]
#[should_panic(expected = "topk:0.1 sends elements by 32-bit indices")]
fn more_elements_than_indices_are_refused() {
    Compressor::new(&Levels(None), Compression::TopK { fraction: 0.1 }, &[&[1 << 20, 1 << 12]]);
}

#[test]
#[should_panic(expected = "powersgd:0: expected one of int8")]
fn invalid_compression_is_refused() {
    Compressor::new(&Levels(None), Compression::PowerSgd { rank: 0 }, &SHAPES);
}
