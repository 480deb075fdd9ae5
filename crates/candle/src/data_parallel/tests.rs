use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Module, Optimizer, SGD, VarBuilder, VarMap, linear};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use unisono::Communicator;

use super::*;

const RANKS: usize = 3;

/// Returns a model of two layers, of which the second is optional, and a third that is never used.
fn model(varmap: &VarMap, width: usize) -> Result<impl Fn(&Tensor, bool) -> Result<Tensor> + use<>> {
    let vars = VarBuilder::from_varmap(varmap, DType::F32, &Device::Cpu);
    let (first, second) = (linear(width, 5, vars.pp("first"))?, linear(5, 5, vars.pp("second"))?);
    linear(2, 2, vars.pp("unused"))?;
    Ok(move |inputs: &Tensor, both: bool| {
        let hidden = first.forward(inputs)?.tanh()?;
        if both { second.forward(&hidden) } else { Ok(hidden) }
    })
}

fn values(gradients: &GradStore, varmap: &VarMap) -> Result<Vec<Option<Vec<f32>>>> {
    let values = |(_, var): &(String, Var)| {
        gradients.get(var).map(|gradient| gradient.flatten_all()?.to_vec1::<f32>()).transpose()
    };
    variables(varmap).iter().map(values).collect()
}

fn on_ranks<T: Send>(main: impl Fn(Communicator) -> Result<T> + Sync) -> Vec<Result<T>> {
    unisono::threads(RANKS, main)
}

/// Compares random shapes, and random numbers of samples per rank, including zero, with candle's own gradients of all samples.
#[test]
fn mean_gradients_equal_those_of_all_samples_on_one_rank() {
    for seed in 0..20 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let width = random.random_range(1..40);
        let mut counts = [0; RANKS].map(|_| random.random_range(0..6_usize));
        counts[seed as usize % RANKS] += 1;
        let total: usize = counts.iter().sum();
        let samples: Vec<f32> = (0..total * width).map(|_| random.random_range(-1.0..1.0)).collect();
        // On some ranks the loss depends only on the first layer.
        let both = [true, seed % 2 == 0, seed % 3 == 0];
        let ended = on_ranks(|comm| {
            let (rank, varmap) = (comm.rank(), VarMap::new());
            let forward = model(&varmap, width)?;
            let mut parallel = DataParallel::new(comm, &varmap)?;
            let sum_of = |of: usize| {
                let first: usize = counts[..of].iter().sum();
                let own = &samples[first * width..][..counts[of] * width];
                let inputs = Tensor::from_slice(own, (counts[of], width), &Device::Cpu)?;
                forward(&inputs, both[of])?.sqr()?.sum_all()
            };
            let sums: Vec<_> = (0..RANKS).map(sum_of).collect::<Result<_>>()?;
            let of_all = (Tensor::stack(&sums, 0)?.sum_all()? / total as f64)?.backward()?;
            let own = parallel.backward_weighted(&sums[rank], counts[rank])?;
            Ok((values(&own, &varmap)?, values(&of_all, &varmap)?))
        });
        let ended: Vec<_> = ended.into_iter().map(Result::unwrap).collect();
        for (own, of_all) in &ended {
            assert_eq!(own, &ended[0].0, "the ranks have the same bits");
            for (own, of_all) in own.iter().zip(of_all) {
                match (own, of_all) {
                    (None, None) => {}
                    (Some(own), Some(of_all)) => {
                        let close = |(own, all): (&f32, &f32)| (own - all).abs() <= 1e-5 * all.abs().max(1.0);
                        assert!(own.iter().zip(of_all).all(close), "seed {seed}: {own:?}, {of_all:?}");
                    }
                    _ => panic!("seed {seed}: {own:?}, but {of_all:?} on one rank"),
                }
            }
        }
    }
}

#[test]
fn ranks_start_with_the_values_of_rank_0_and_stay_identical() {
    let ended = on_ranks(|comm| {
        let (rank, varmap) = (comm.rank(), VarMap::new());
        let forward = model(&varmap, 4)?;
        let weights = |varmap: &VarMap| {
            varmap.data().lock().unwrap()["first.weight"]
                .flatten_all()
                .and_then(|weight| weight.to_vec1::<f32>())
        };
        let own = weights(&varmap)?;
        let mut optimizer = SGD::new(varmap.all_vars(), 0.1)?;
        let mut parallel = DataParallel::new(comm, &varmap)?;
        let begun = weights(&varmap)?;
        assert!(rank != 0 || own == begun);
        let inputs = Tensor::full(rank as f32, (2, 4), &Device::Cpu)?;
        let mut losses = Vec::new();
        for _ in 0..10 {
            let loss = (forward(&inputs, true)? - 1.0)?.sqr()?.mean_all()?;
            let mut sum = [f64::from(loss.to_scalar::<f32>()?)];
            optimizer.step(&parallel.backward(&loss)?)?;
            parallel.comm().all_reduce(&mut sum, unisono::ReduceOp::Sum).map_err(Error::wrap)?;
            losses.push(sum[0]);
        }
        let all: Vec<f32> = variables(&varmap)
            .iter()
            .flat_map(|(_, var)| var.flatten_all().unwrap().to_vec1::<f32>().unwrap())
            .collect();
        // The unused layer has no gradient, and keeps the values of rank 0.
        Ok((begun, all, losses))
    });
    let ended: Vec<_> = ended.into_iter().map(Result::unwrap).collect();
    assert!(ended.iter().all(|end| end == &ended[0]));
    let losses = &ended[0].2;
    assert!(losses[9] < 0.7 * losses[0], "{losses:?}");
}

/// Returns the error that all ranks report if each runs `main`.
fn refused(main: impl Fn(Communicator) -> Result<()> + Sync) -> Vec<String> {
    on_ranks(main).into_iter().map(|ended| ended.unwrap_err().to_string()).collect()
}

#[test]
fn gradients_that_cannot_be_averaged_are_an_error_on_all_ranks() {
    let said = refused(|comm| {
        let (rank, varmap) = (comm.rank(), VarMap::new());
        drop(model(&varmap, 4 + rank / 2)?);
        DataParallel::new(comm, &varmap).map(drop)
    });
    assert!(said.iter().all(|said| said.contains("first.weight is [5, 4] f32 on rank 0")), "{said:?}");
    let said = refused(|comm| DataParallel::new(comm, &VarMap::new()).map(drop));
    assert!(said[0].contains("there is no variable"), "{said:?}");
    let said = refused(|comm| {
        let (varmap, dtype) = (VarMap::new(), if comm.rank() == 1 { DType::F64 } else { DType::F32 });
        linear(2, 2, VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu))?;
        DataParallel::new(comm, &varmap).map(drop)
    });
    let other = "rank 1 reports an error";
    let expected = [other, "variable bias is F64 on Cpu", other];
    assert!(said.iter().zip(expected).all(|(said, expected)| said.contains(expected)), "{said:?}");
    // The gradient is infinite on one rank. The program may continue afterwards.
    let said = refused(|comm| {
        let (rank, varmap) = (comm.rank(), VarMap::new());
        let forward = model(&varmap, 4)?;
        let mut parallel = DataParallel::new(comm, &varmap)?;
        let loss = |factor: f64| {
            forward(&Tensor::ones((1, 4), DType::F32, &Device::Cpu)?, true)?.sum_all()? * factor
        };
        let failed = parallel.backward(&loss(if rank == 1 { f64::INFINITY } else { 1.0 })?);
        assert!(parallel.backward_weighted(&loss(1.0)?, 0).is_err());
        assert!(parallel.backward(&loss(1.0)?).is_ok());
        failed.map(drop)
    });
    assert!(
        said.iter().all(|said| said.contains("the gradient of parameter `first.bias` is not finite")),
        "{said:?}"
    );
}
