//! A model of burn, trained on several ranks: `unisono launch -n 2 -- target/release/examples/perceptron`.

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use unisono_burn::{DataParallel, TrainError};

const INPUTS: usize = 16;
const BATCH: usize = 96;

#[derive(Module, Debug)]
struct Perceptron {
    first: Linear,
    second: Linear,
}

/// Returns the samples of a rank in a batch: points, and a smooth function of them.
fn samples(step: usize, (rank, ranks): (usize, usize), device: &Device) -> (Tensor<2>, Tensor<2>) {
    let own = (0..BATCH).filter(|sample| sample % ranks == rank).map(|sample| step * BATCH + sample);
    let point = |sample: usize| (0..INPUTS).map(move |axis| (sample as f32 * (axis as f32 + 1.3)).sin());
    let value =
        |sample| point(sample).zip(0_u8..).map(|(x, axis)| x * f32::from(axis).cos()).sum::<f32>().tanh();
    let (inputs, targets): (Vec<_>, Vec<_>) = own.map(|sample| (point(sample), value(sample))).unzip();
    let rows = targets.len();
    let inputs = TensorData::new(inputs.into_iter().flatten().collect(), [rows, INPUTS]);
    (Tensor::from_data(inputs, device), Tensor::from_data(TensorData::new(targets, [rows, 1]), device))
}

fn train(comm: &mut unisono::Communicator) -> Result<(), TrainError> {
    let (place, device) = ((comm.rank(), comm.ranks()), Device::flex().autodiff());
    device.seed(7);
    let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device);
    let model = Perceptron { first: linear(INPUTS, 256), second: linear(256, 1) };
    let (mut parallel, mut model) = DataParallel::new(comm, model)?;
    let mut optimizer = AdamConfig::new().init();
    for step in 0..300 {
        let (inputs, targets) = samples(step, place, &device);
        let rows = targets.dims()[0];
        let outputs = model.second.forward(relu(model.first.forward(inputs)));
        let loss = MseLoss::new().forward(outputs, targets, Reduction::Sum);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        let gradients = parallel.mean_weighted(&model, gradients, rows)?;
        model = optimizer.step(1e-3, model, gradients);
        let mut sum = [loss.into_scalar::<f32>()];
        if step == 299 {
            parallel.comm().all_reduce(&mut sum, unisono::ReduceOp::Sum)?;
            println!("{} ranks: loss {:.6}", place.1, sum[0] / BATCH as f32);
        }
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    unisono::run(train)
}
