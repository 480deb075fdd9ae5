//! Layers that behave differently in training and in evaluation: batch norm over the samples of all ranks, and dropout.

pub(crate) mod runs;

use std::sync::{Arc, Mutex};

use candle_core::{Device, Result, Tensor};
use unisono_candle::model::ModelKind;
use unisono_candle::{Config, Dropout, Linear, Loss, Network, Parameters, Part, Saved, SyncBatchNorm};
use unisono_data::{Depth, Options, Source, Threads};
use unisono_testing::suite::Test;
use unisono_testing::tests;
use unisono_train::rate::{Rate, Schedule};
use unisono_train::{
    BucketSettings, Fill, Gradients, LocalSteps, LossSums, Mirror, OptimizerSettings, Order, Outer, Overlap,
    Replica, RunSettings, Sampled, Sgd, Share, Shares, Trainer,
};

const SAMPLES: usize = 32;
const INPUTS: usize = 4;
const CHANNELS: usize = 3;

/// Returns a range of samples. Their values are far from zero, and differ between channels.
fn samples(range: std::ops::Range<usize>) -> Tensor {
    let value = |at: usize| 100.0 + ((at * 7919 % 1009) as f32 / 300.0) * (1 + at % INPUTS) as f32;
    let values: Vec<f32> = (range.start * INPUTS..range.end * INPUTS).map(value).collect();
    Tensor::from_vec(values, (range.len(), INPUTS), &Device::Cpu).unwrap()
}

/// The results of a pass on one rank.
#[derive(Default)]
struct Gathered {
    outputs: Vec<f32>,
    /// By the index of the parameter.
    gradients: Vec<Vec<f32>>,
    /// The values of all parameters and buffers.
    values: Vec<Vec<f32>>,
}

impl Gradients for Gathered {
    fn record_loss(&mut self, _: LossSums) {}

    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill)) {
        write(&mut self.gradients[index], Fill::Add);
    }
}

/// Returns a loss with a different weight for every output, and stores the outputs.
fn loss_of(y: &Tensor, x: &Tensor, outputs: &Mutex<Vec<f32>>) -> Result<Loss> {
    outputs.lock().unwrap().extend(y.flatten_all()?.to_vec1::<f32>()?);
    let weights = ((x.narrow(1, 0, 1)? - 100.0)? * 0.01)?;
    let sum = (y.sqr()? + y)?.broadcast_mul(&weights)?.sum_all()?;
    let loss = f64::from(sum.to_scalar::<f32>()?);
    Ok(Loss { sum, tally: LossSums { targets: x.dim(0)? as f64, loss, correct: 0.0 } })
}

/// Returns a network of two layers with a batch norm after each, so that the second derivative passes through the first.
fn network(outputs: Arc<Mutex<Vec<f32>>>) -> impl Replica<Batch = Tensor> {
    let parameters = Parameters::new(3);
    let first = Linear::without_bias(&parameters, "first", INPUTS, CHANNELS, 1.0).unwrap();
    let norm = SyncBatchNorm::new(&parameters, "norm", CHANNELS).unwrap();
    let second = Linear::without_bias(&parameters, "second", CHANNELS, 2, 1.0).unwrap();
    let last = SyncBatchNorm::new(&parameters, "last", 2).unwrap();
    Network::new(&parameters, move |x: &Tensor| {
        let hidden = norm.forward(&first.forward(x)?)?.tanh()?;
        loss_of(&last.forward(&second.forward(&hidden)?)?, x, &outputs)
    })
}

/// Returns a network of candle's operations, for the samples of one rank.
fn composed(outputs: Arc<Mutex<Vec<f32>>>) -> impl Replica<Batch = Tensor> {
    fn norm(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let centred = x.broadcast_sub(&x.mean_keepdim(0)?)?;
        let deviation = (centred.sqr()?.mean_keepdim(0)? + 1e-5)?.sqrt()?;
        centred.broadcast_div(&deviation)?.broadcast_mul(weight)?.broadcast_add(bias)
    }
    let parameters = Parameters::new(3);
    let vars = parameters.var_builder();
    let first = Linear::without_bias(&parameters, "first", INPUTS, CHANNELS, 1.0).unwrap();
    let constant = |name: &str, count: usize, value| {
        vars.get_with_hints(count, name, candle_nn::Init::Const(value)).unwrap()
    };
    let (weight, bias) = (constant("norm.weight", CHANNELS, 1.0), constant("norm.bias", CHANNELS, 0.0));
    let second = Linear::without_bias(&parameters, "second", CHANNELS, 2, 1.0).unwrap();
    let (last_weight, last_bias) = (constant("last.weight", 2, 1.0), constant("last.bias", 2, 0.0));
    Network::new(&parameters, move |x: &Tensor| {
        let hidden = norm(&first.forward(x)?, &weight, &bias)?.tanh()?;
        loss_of(&norm(&second.forward(&hidden)?, &last_weight, &last_bias)?, x, &outputs)
    })
}

fn values(replica: &mut impl Replica) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    for index in 0..replica.parameters().len() {
        replica.with_values(index, &mut |values| all.push(values.to_vec())).unwrap();
    }
    all
}

/// Runs one pass over these samples.
fn pass<R: Replica<Batch = Tensor>>(
    replica: &mut R,
    batch: Option<&Tensor>,
    outputs: &Mutex<Vec<f32>>,
) -> Gathered {
    let gradients = replica.parameters().iter().map(|parameter| vec![0.0; parameter.count()]).collect();
    let mut gathered = Gathered { gradients, ..Gathered::default() };
    match batch {
        Some(batch) => replica.pass(batch, &mut gathered).unwrap(),
        None => replica.pass_without_samples().unwrap(),
    }
    gathered.outputs = std::mem::take(&mut *outputs.lock().unwrap());
    gathered.values = values(replica);
    gathered
}

/// Runs passes in which each rank has this many of the samples. Returns outputs and gradients over all ranks, and the values of rank 0.
fn shared(shares: &[usize]) -> Gathered {
    let of_ranks = unisono::threads(shares.len(), |mut comm| {
        let outputs = Arc::default();
        let mut replica = network(Arc::clone(&outputs));
        replica.connect(&mut comm).unwrap();
        let start = shares[..comm.rank()].iter().sum();
        let count = shares[comm.rank()];
        assert_eq!(replica.begin_step(0, usize::from(count > 0)).unwrap(), 1);
        let batch = (count > 0).then(|| samples(start..start + count));
        pass(&mut replica, batch.as_ref(), &outputs)
    });
    let mut all = Gathered { values: of_ranks[0].values.clone(), ..Gathered::default() };
    all.gradients = of_ranks[0].gradients.iter().map(|gradient| vec![0.0; gradient.len()]).collect();
    for rank in of_ranks {
        assert_eq!(rank.values, all.values, "all ranks hold the same bits");
        all.outputs.extend(rank.outputs);
        for (sum, own) in all.gradients.iter_mut().zip(rank.gradients) {
            sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
    }
    all
}

fn assert_close(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() < 1e-5 * expected.abs().max(1.0),
            "{what} at {at}: {found} {expected}"
        );
    }
}

/// Fails if a rank normalises by its own samples, if the backward pass omits the samples of other ranks, or if a rank without samples counts.
fn batch_is_normalised_as_a_whole_for_any_division_among_ranks() {
    let whole = shared(&[SAMPLES]);
    for shares in [&[8, 8, 8, 8][..], &[1, 20, 11], &[0, 30, 0, 2], &[31, 1], &[0, 32]] {
        let found = shared(shares);
        assert_close(&format!("outputs of {shares:?}"), &found.outputs, &whole.outputs);
        for (found, expected) in found.gradients.iter().zip(&whole.gradients) {
            assert_close(&format!("gradients of {shares:?}"), found, expected);
        }
        for (found, expected) in found.values.iter().zip(&whole.values) {
            assert_close(&format!("running statistics of {shares:?}"), found, expected);
        }
    }
}

/// Fails if a term of the derivative is omitted, or if the variance is not the biased one.
fn outputs_and_gradients_match_the_definition() {
    let outputs = Arc::default();
    let mut reference = composed(Arc::clone(&outputs));
    let expected = pass(&mut reference, Some(&samples(0..SAMPLES)), &outputs);
    let found = shared(&[SAMPLES]);
    assert_close("outputs", &found.outputs, &expected.outputs);
    let own = network(Arc::default());
    let place =
        |all: &[unisono_train::Parameter], name: &str| all.iter().position(|p| p.name == name).unwrap();
    for name in ["first", "norm.weight", "norm.bias", "second", "last.weight", "last.bias"] {
        let [here, there] = [own.parameters(), reference.parameters()].map(|all| place(all, name));
        let scale = expected.gradients[there].iter().fold(1.0_f32, |most, slope| most.max(slope.abs()));
        for (found, expected) in found.gradients[here].iter().zip(&expected.gradients[there]) {
            assert!((found - expected).abs() < 2e-4 * scale, "{name}: {found} {expected}");
        }
    }
}

/// PyTorch's rules are momentum 0.1 and the unbiased variance. Fails with the biased variance, or if the weights are swapped.
fn running_statistics_match_pytorch_and_are_used_in_evaluation() {
    let parameters = Parameters::new(0);
    let norm = Arc::new(SyncBatchNorm::new(&parameters, "norm", 1).unwrap());
    let layer = Arc::clone(&norm);
    let mut replica = Network::new(&parameters, move |x: &Tensor| {
        let sum = layer.forward(x)?.sum_all()?;
        Ok(Loss {
            tally: LossSums { targets: 4.0, loss: f64::from(sum.to_scalar::<f32>()?), correct: 0.0 },
            sum,
        })
    });
    let x = Tensor::new(&[[1.0_f32], [2.0], [3.0], [6.0]], &Device::Cpu).unwrap();
    let found = pass(&mut replica, Some(&x), &Mutex::default());
    // The mean is 3, and the squared deviations 4 + 1 + 0 + 9 = 14 are divided by 3.
    let (mean, variance) = (0.1 * 3.0, 0.9 + 0.1 * 14.0 / 3.0);
    assert_close("statistics", &[found.values[2][0], found.values[3][0]], &[mean, variance]);
    assert!(!replica.parameters()[2].is_trained && replica.parameters()[2].name == "norm.running_mean");
    // Values normalised by their own statistics sum to 0, unlike values normalised by running statistics.
    let expected = [1.0, 2.0, 3.0, 6.0].iter().map(|x| (x - mean) / (variance + 1e-5).sqrt()).sum::<f32>();
    assert_close("evaluation", &[replica.evaluate(&x, None).unwrap().loss as f32], &[expected]);
    assert_eq!(values(&mut replica), found.values, "evaluation changes nothing");
}

fn sgd() -> OptimizerSettings {
    OptimizerSettings::new(Sgd::default())
}

/// Ranks make different numbers of passes per step, with buckets of a few bytes in flight.
///
/// Fails if a rank with fewer passes does not take part in the others.
fn ranks_may_have_different_numbers_of_passes() {
    let hashes = unisono::threads(3, |mut comm| {
        let settings = BucketSettings {
            first_bucket_bytes: 8,
            bucket_bytes: unisono_train::BucketBytes::Fixed(8),
            ..BucketSettings::default()
        };
        let mut mirror = Mirror::new(&mut comm, network(Arc::default()), sgd(), &settings, None).unwrap();
        for step in 0..10 {
            let passes = (comm.rank() + step) % 3;
            let passes: Vec<_> =
                (0..passes).map(|pass| Some(samples(pass..pass + 5 + comm.rank()))).collect();
            let report = mirror.step(&mut comm, Share::of(&passes), 0.01, |_| true).unwrap();
            assert!(report.sums.tally.loss.is_finite());
        }
        mirror.hash().unwrap()
    });
    assert!(hashes.windows(2).all(|pair| pair[0] == pair[1]), "{hashes:?}");
}

/// Fails if one of the settings is accepted.
fn incompatible_settings_are_refused() {
    let local = LocalSteps { steps: 2, outer: Outer::Average };
    let refused = [
        (
            BucketSettings { order: Order::Tree, ..BucketSettings::default() },
            "remove --order world-invariant",
        ),
        (BucketSettings { local_steps: Some(local), ..BucketSettings::default() }, "remove --local-steps"),
        (BucketSettings { overlap: Overlap::InTurn, ..BucketSettings::default() }, "--overlap in-turn"),
        (BucketSettings { overlap: Overlap::Across, ..BucketSettings::default() }, "--overlap across"),
    ];
    for (settings, expected) in refused {
        let found = unisono::threads(2, |mut comm| {
            let made = Mirror::new(&mut comm, network(Arc::default()), sgd(), &settings, None);
            made.map(drop).unwrap_err().to_string()
        });
        assert!(found.iter().all(|message| message.contains(expected)), "{found:?}");
    }
}

/// Returns a replica that uses its layer this many times in a pass.
fn uses(times: usize) -> impl Replica<Batch = Tensor> {
    let parameters = Parameters::new(0);
    let norm = SyncBatchNorm::new(&parameters, "norm", INPUTS).unwrap();
    Network::new(&parameters, move |x: &Tensor| {
        let y = (0..times).try_fold(x.clone(), |x, _| norm.forward(&x))?;
        let sum = y.sqr()?.sum_all()?;
        Ok(Loss {
            tally: LossSums { targets: 1.0, loss: f64::from(sum.to_scalar::<f32>()?), correct: 0.0 },
            sum,
        })
    })
}

/// Fails if an error on one rank leaves another rank waiting: each must end with an error, long before the deadline.
fn mistakes_end_with_an_error_on_all_ranks() {
    let ended = |times: fn(usize) -> usize, rows: usize| {
        unisono::threads(2, move |mut comm| {
            let (replica, rank) = (uses(times(comm.rank())), comm.rank());
            let mut mirror =
                Mirror::new(&mut comm, replica, sgd(), &BucketSettings::default(), None).unwrap();
            let batch = [(rank == 0 || rows > 1).then(|| samples(0..rows))];
            let ended = mirror.step(&mut comm, Share::of(&batch), 0.1, |_| true).map(drop);
            let text = ended.as_ref().map_err(ToString::to_string).err();
            if let Some(text) = &text {
                comm.fail(text);
            }
            text.unwrap_or_default()
        })
    };
    let twice = ended(|_| 2, 4);
    assert!(twice.iter().any(|text| text.contains("norm is used twice in a pass")), "{twice:?}");
    let left_out = ended(|rank| usize::from(rank == 0), 4);
    assert!(left_out[1].contains("does not depend on norm"), "{left_out:?}");
    assert!(!left_out[0].is_empty(), "{left_out:?}");
    let single = ended(|_| 1, 1);
    assert!(single.iter().all(|text| text.contains("a variance needs at least 2")), "{single:?}");
}

/// An epoch may end with a single sample, whose values are normalised by the running statistics.
fn single_sample_uses_the_running_statistics() {
    for after in unisono::threads(2, |mut comm| {
        let mut mirror = Mirror::new(&mut comm, uses(1), sgd(), &BucketSettings::default(), None).unwrap();
        let mut step = |rows: usize| {
            let batch = [(comm.rank() == 0 || rows > 1).then(|| samples(0..rows))];
            mirror.step(&mut comm, Share::of(&batch), 0.0, |_| true).unwrap();
            values(mirror.replica())
        };
        (step(4), step(1))
    }) {
        assert_eq!(after.0, after.1);
    }
}

/// Returns the positions that each of three layers drops in a step of a rank, for a model with this seed.
fn dropped(seed: u64, before: usize, rank: u64, saved: Option<Vec<f32>>) -> (Vec<Vec<f32>>, Vec<f32>) {
    let parameters = Parameters::new(seed);
    let layers: Vec<_> = (0..3).map(|_| Dropout::new(&parameters, 0.25).unwrap()).collect();
    let masks = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&masks);
    let mut replica = Network::new(&parameters, move |x: &Tensor| {
        let all: Result<Vec<_>> = layers.iter().map(|layer| layer.forward(x)?.to_vec1::<f32>()).collect();
        *seen.lock().unwrap() = all?;
        Ok(Loss { sum: x.sum_all()?, tally: LossSums { targets: 1.0, ..LossSums::default() } })
    });
    let x = Tensor::ones(4000, candle_core::DType::F32, &Device::Cpu).unwrap();
    if let Some(saved) = saved {
        replica.with_values(0, &mut |values| values.copy_from_slice(&saved)).unwrap();
    }
    for _ in 0..=before {
        replica.begin_step(rank << 32, 1).unwrap();
        replica.pass(&x, &mut Gathered { gradients: vec![vec![0.0; 2]], ..Gathered::default() }).unwrap();
    }
    let buffer = values(&mut replica).swap_remove(0);
    let found = masks.lock().unwrap().clone();
    replica.evaluate(&x, None).unwrap();
    assert!(masks.lock().unwrap().iter().flatten().all(|&x| x == 1.0), "off in evaluation");
    (found, buffer)
}

/// Fails if the mask ignores seed, layer, step or rank, if values are not scaled, or if a resumed run restarts the count of steps.
fn dropout_mask_is_reproducible_and_differs_by_seed_layer_step_and_rank() {
    let (masks, buffer) = dropped(1, 2, 0, None);
    for mask in &masks {
        let kept = mask.iter().filter(|&&x| x != 0.0).count();
        assert!((2900..3100).contains(&kept), "{kept}");
        assert!(mask.iter().all(|&x| x == 0.0 || (x - 4.0 / 3.0).abs() < 1e-6));
    }
    assert!(masks[0] != masks[1] && masks[1] != masks[2], "layers differ");
    assert_eq!(dropped(1, 2, 0, None).0, masks);
    assert_ne!(dropped(2, 2, 0, None).0, masks, "seeds differ");
    assert_ne!(dropped(1, 1, 0, None).0, masks, "steps differ");
    assert_ne!(dropped(1, 2, 1, None).0, masks, "ranks differ");
    let later = dropped(1, 4, 0, None).0;
    assert_eq!(dropped(1, 1, 0, Some(buffer)).0, later, "a resumed run goes on");
    // The number of steps is exact beyond the range of one f32.
    let (_, many) = dropped(1, 1, 0, Some(vec![(1 << 20) as f32 - 1.0, 4095.0]));
    assert_eq!(many, [1.0, 4096.0]);
    for wrong in [-0.1, 1.0, f64::NAN] {
        let refused = Dropout::new(&Parameters::new(0), wrong).unwrap_err().to_string();
        assert!(refused.contains("from 0 to below 1"), "{refused}");
    }
    assert_eq!(
        Network::new(&Parameters::new(0), |x: &Tensor| loss_of(x, x, &Mutex::default())).parameters(),
        []
    );
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        batch_is_normalised_as_a_whole_for_any_division_among_ranks,
        outputs_and_gradients_match_the_definition,
        running_statistics_match_pytorch_and_are_used_in_evaluation,
        ranks_may_have_different_numbers_of_passes,
        incompatible_settings_are_refused,
        mistakes_end_with_an_error_on_all_ranks,
        single_sample_uses_the_running_statistics,
        dropout_mask_is_reproducible_and_differs_by_seed_layer_step_and_rank,
    ]
}
