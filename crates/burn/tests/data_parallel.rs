//! Tests that ranks with parts of batches train like one rank with whole batches.

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{DType, Device, Tensor, TensorData};
use unisono::Communicator;
use unisono_burn::{DataParallel, TrainError};

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    /// Used by some ranks only.
    side: Linear,
    /// Not used by any rank.
    unused: Linear,
}

fn device() -> Device {
    Device::flex().autodiff()
}

/// Returns a net of these widths, whose values depend on the seed.
fn net(widths: &[usize], seed: f32) -> Net {
    let linear = |inputs: usize, outputs: usize| {
        let layer: Linear = LinearConfig::new(inputs, outputs).init(&device());
        let fill =
            |count: usize, at: f32| (0..count).map(move |n| (seed + at + n as f32).sin() * 0.3).collect();
        let weight = TensorData::new(fill(inputs * outputs, 0.0), [inputs, outputs]);
        let bias = TensorData::new(fill(outputs, 0.5), [outputs]);
        Linear {
            weight: layer.weight.map(|_| Tensor::from_data(weight, &device()).require_grad()),
            bias: layer.bias.map(|own| own.map(|_| Tensor::from_data(bias, &device()).require_grad())),
        }
    };
    let layers = widths.windows(2).map(|pair| linear(pair[0], pair[1])).collect();
    let last = widths[widths.len() - 1];
    Net { layers, side: linear(widths[0], last), unused: linear(3, 2) }
}

impl Net {
    fn forward(&self, inputs: Tensor<2>, uses_side: bool) -> Tensor<2> {
        let side = uses_side.then(|| self.side.forward(inputs.clone()));
        let outputs = self.layers.iter().fold(inputs, |x, layer| tanh(layer.forward(x)));
        side.map_or(outputs.clone(), |side| outputs + side)
    }

    fn values(&self) -> Vec<f32> {
        let mut values = Values(Vec::new());
        self.visit(&mut values);
        values.0
    }
}

struct Values(Vec<f32>);

impl burn::module::ModuleVisitor for Values {
    fn visit_float<const D: usize>(&mut self, param: &burn::module::Param<Tensor<D>>) {
        self.0.extend(param.val().into_data().as_slice::<f32>().unwrap());
    }
}

/// Returns the samples with these numbers.
fn samples(numbers: std::ops::Range<usize>, inputs: usize, outputs: usize) -> (Tensor<2>, Tensor<2>) {
    let rows = numbers.len();
    let values = |columns: usize, at: f32| {
        let values = numbers.clone().flat_map(|row| {
            (0..columns).map(move |column| (at + row as f32 * 1.7 + column as f32 * 0.9).sin())
        });
        TensorData::new(values.collect(), [rows, columns])
    };
    (Tensor::from_data(values(inputs, 0.2), &device()), Tensor::from_data(values(outputs, 0.7), &device()))
}

/// Trains for some steps, with `counts` samples per step on each rank. Returns the parameters of each rank.
fn train(widths: &[usize], counts: &[usize], side: fn(usize) -> bool) -> Vec<Vec<f32>> {
    let (inputs, outputs, all) = (widths[0], widths[widths.len() - 1], counts.iter().sum::<usize>());
    unisono::threads(counts.len(), |comm: Communicator| {
        let rank = comm.rank();
        let (mut parallel, mut net) = DataParallel::new(comm, net(widths, rank as f32)).unwrap();
        let mut optimizer = SgdConfig::new().init();
        for step in 0..4 {
            let first = step * all + counts[..rank].iter().sum::<usize>();
            let gradients = if counts[rank] == 0 {
                GradientsParams::new()
            } else {
                let (x, y) = samples(first..first + counts[rank], inputs, outputs);
                let loss = MseLoss::new().forward(net.forward(x, side(rank)), y, Reduction::Sum);
                GradientsParams::from_grads(loss.backward(), &net)
            };
            let gradients = parallel.mean_weighted(&net, gradients, counts[rank]).unwrap();
            assert!(
                net.unused.weight.val().dims() == [3, 2]
                    && gradients.get::<2>(net.unused.weight.id).is_none()
            );
            net = optimizer.step(0.2, net, gradients);
        }
        net.values()
    })
}

fn assert_near(one: &[f32], other: &[f32]) {
    assert_eq!(one.len(), other.len());
    for (one, other) in one.iter().zip(other) {
        assert!((one - other).abs() < 1e-4 * one.abs().max(1.0), "{one} and {other}");
    }
}

#[test]
fn ranks_with_parts_of_batches_train_as_one_rank_with_whole_batches() {
    let mut state = 7_u64;
    let mut random = |most: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        1 + (state >> 33) as usize % most
    };
    let mut shapes: Vec<Vec<usize>> =
        (0..8).map(|_| (0..1 + random(3)).map(|_| random(40)).collect()).collect();
    // Large enough for several buckets.
    shapes.push(vec![64, 600, 600, 10]);
    for widths in &shapes {
        let alone = train(widths, &[12], |_| true);
        let start = net(widths, 0.0).values();
        assert!(alone[0].iter().zip(&start).any(|(trained, start)| (trained - start).abs() > 1e-3));
        for counts in [&[6, 6][..], &[1, 11], &[12, 0], &[4, 5, 3]] {
            let ranks = train(widths, counts, |_| true);
            assert!(ranks.iter().all(|values| *values == ranks[0]), "{widths:?}, {counts:?}");
            assert_near(&ranks[0], &alone[0]);
        }
    }
}

#[test]
fn a_parameter_used_by_one_rank_counts_as_zero_on_the_others() {
    let ranks = train(&[3, 4, 2], &[3, 3], |rank| rank == 1);
    assert_eq!(ranks[0], ranks[1]);
    let (start, side) = (net(&[3, 4, 2], 0.0).values(), 3 * 4 + 4 + 4 * 2 + 2);
    assert_ne!(ranks[0][side..side + 8], start[side..side + 8]);
    assert_eq!(ranks[0][side + 8..], start[side + 8..], "what no rank uses stays");
}

#[test]
fn mean_averages_over_ranks() {
    let means = unisono::threads(2, |comm| {
        let rank = comm.rank();
        let (mut parallel, net) = DataParallel::new(comm, net(&[2, 1], 0.0)).unwrap();
        let mut own = GradientsParams::new();
        let id = net.layers[0].weight.id;
        own.register(id, Tensor::<2>::full([2, 1], 1.0 + 4.0 * rank as f32, &Device::flex()));
        let mean = parallel.mean(&net, own).unwrap();
        (mean.len(), mean.get::<2>(id).unwrap().into_data().try_to_vec::<f32>().unwrap())
    });
    assert_eq!(means, [(1, vec![3.0; 2]), (1, vec![3.0; 2])]);
}

#[test]
fn modules_and_gradients_that_do_not_match_are_refused() {
    let refused = |make: fn(usize) -> Net| {
        unisono::threads(2, |comm| {
            let rank = comm.rank();
            DataParallel::new(comm, make(rank)).map(drop).unwrap_err().to_string()
        })
    };
    for why in refused(|rank| net(&[2, 3 + rank, 1], 0.0)) {
        assert!(why.contains("layers.0.weight is [2, 3] f32 on rank 0, and [2, 4] f32 on rank 1"), "{why}");
    }
    let halves = refused(|rank| match rank {
        0 => net(&[2, 1], 0.0),
        _ => {
            let net = net(&[2, 1], 0.0);
            let half = |weight: Tensor<2>| weight.inner().cast(DType::F64);
            Net { side: Linear { weight: net.side.weight.map(half), ..net.side }, ..net }
        }
    });
    assert_eq!(halves[0], "rank 1 reports an error");
    assert_eq!(halves[1], "parameter `side.weight` is of F64: DataParallel supports f32");

    let results: Vec<Result<usize, TrainError>> = unisono::threads(2, |comm| {
        let rank = comm.rank();
        let (mut parallel, module) = DataParallel::new(comm, net(&[2, 1], 0.0))?;
        let id = module.side.weight.id;
        let with = |value: f32| {
            let mut own = GradientsParams::new();
            own.register(id, Tensor::<2>::full([2, 1], value, &Device::flex()));
            own
        };
        let infinite = parallel.mean(&module, with([1.0, f32::INFINITY][rank])).unwrap_err().to_string();
        assert_eq!(infinite, "the gradient of parameter `side.weight` is not finite: it has the value inf");
        let none = parallel.mean_weighted(&module, GradientsParams::new(), 0).unwrap_err().to_string();
        assert_eq!(none, "no rank has a target: expected at least one among all ranks");
        let other = parallel.mean(&net(&[2, 2], 0.0), with(1.0)).unwrap_err().to_string();
        assert!(other.starts_with("the module has other parameters than in DataParallel::new"), "{other}");
        let foreign = parallel.mean(&net(&[2, 1], 0.0), with(1.0)).unwrap_err().to_string();
        assert!(foreign.starts_with("there are 1 gradients of parameters that the module does not have"));
        // After an error on all ranks, the program may continue.
        Ok(parallel.mean(&module, with(1.0))?.len())
    });
    assert!(results.iter().all(|result| matches!(result, Ok(1))), "{results:?}");
}
