//! A model of [burn](https://burn.dev), trained on several ranks. In this folder, `cargo build --release`, and then
//! `unisono launch -n 2 -- target/release/unisono-burn-example`.
//!
//! Every rank computes the gradients of its part of each batch. They are copied into one bucket, in memory that the other ranks read in
//! place, all-reduced by one call, and copied back: [`Reducer`] is all that a trainer needs. At the end rank 0 trains once more, alone,
//! with whole batches, and compares.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use unisono::{Communicator, ReduceOp, Registered};

const INPUTS: usize = 16;
const HIDDEN: usize = 256;
const BATCH: usize = 96;
const STEPS: usize = 300;
const RATE: f64 = 1e-3;
/// How far the losses of the two runs may be apart: they add in different orders.
const ROUNDING: f32 = 1e-2;

#[derive(Module, Debug)]
struct Perceptron {
    first: Linear,
    second: Linear,
}

impl Perceptron {
    fn new(device: &Device) -> Self {
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        Self { first: linear(INPUTS, HIDDEN), second: linear(HIDDEN, 1) }
    }

    fn forward(&self, inputs: Tensor<2>) -> Tensor<2> {
        self.second.forward(relu(self.first.forward(inputs)))
    }
}

/// All-reduces the gradients of a module, in the order of its parameters.
struct Reducer {
    bucket: Registered<f32>,
}

impl Reducer {
    fn new(comm: &Communicator, module: &impl Module) -> unisono::Result<Self> {
        Ok(Self { bucket: comm.alloc(module.num_params())? })
    }

    /// The mean over all ranks.
    fn all_reduce(
        &mut self,
        comm: &mut Communicator,
        module: &impl Module,
        mut gradients: GradientsParams,
    ) -> unisono::Result<GradientsParams> {
        let mut averaged = GradientsParams::new();
        module.visit(&mut Collect { gradients: &mut gradients, bucket: &mut self.bucket });
        comm.all_reduce(&mut self.bucket, ReduceOp::Mean)?;
        module.visit(&mut Distribute { bucket: &self.bucket, gradients: &mut averaged });
        Ok(averaged)
    }
}

/// Copies gradients into a bucket.
struct Collect<'a> {
    gradients: &'a mut GradientsParams,
    bucket: &'a mut [f32],
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient =
            self.gradients.remove::<D>(param.id).expect("every parameter has a gradient").into_data();
        let values = gradient.as_slice().expect("gradients are of f32");
        let (place, rest) = std::mem::take(&mut self.bucket).split_at_mut(values.len());
        place.copy_from_slice(values);
        self.bucket = rest;
    }
}

/// Copies them back.
struct Distribute<'a> {
    bucket: &'a [f32],
    gradients: &'a mut GradientsParams,
}

impl ModuleVisitor for Distribute<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let shape = param.shape();
        let (values, rest) = self.bucket.split_at(shape.num_elements());
        let gradient = Tensor::<D>::from_data(TensorData::new(values.to_vec(), shape), &Device::flex());
        self.gradients.register(param.id, gradient);
        self.bucket = rest;
    }
}

/// Gives every rank the parameters of rank 0.
struct Broadcast<'a> {
    comm: &'a mut Communicator,
    result: unisono::Result<()>,
}

impl ModuleMapper for Broadcast<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| {
            let (device, mut data) = (tensor.device(), tensor.into_data());
            let values = data.as_mut_slice::<f32>().expect("parameters are of f32");
            if self.result.is_ok() {
                self.result = self.comm.broadcast(values, 0).map(drop);
            }
            Tensor::from_data(data, &device).require_grad()
        })
    }
}

/// The parameters as plain numbers, for comparisons.
struct Values(Vec<f32>);

impl ModuleVisitor for Values {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.extend(param.val().into_data().as_slice::<f32>().expect("parameters are of f32"));
    }
}

fn main() -> ExitCode {
    unisono::run(run)
}

fn run(comm: &mut Communicator) -> unisono::Result<()> {
    assert!(BATCH.is_multiple_of(comm.ranks()), "{BATCH} samples are for a number of ranks that divides it");
    let device = Device::flex().autodiff();
    device.seed(7);
    let mut broadcast = Broadcast { comm, result: Ok(()) };
    let start = Perceptron::new(&device).map(&mut broadcast);
    broadcast.result?;

    let mut reducer = Reducer::new(comm, &start)?;
    let mut reduced = Duration::ZERO;
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let began = Instant::now();
    let (model, loss) = train(start.clone(), &device, (rank, ranks), |module, gradients| {
        let began = Instant::now();
        let averaged = reducer.all_reduce(comm, module, gradients);
        reduced += began.elapsed();
        averaged
    })?;
    let took = began.elapsed();

    let mut parameters = Values(Vec::new());
    model.visit(&mut parameters);
    let (mut largest, mut smallest) = (parameters.0.clone(), parameters.0);
    comm.all_reduce(&mut largest, ReduceOp::Max)?;
    comm.all_reduce(&mut smallest, ReduceOp::Min)?;
    assert_eq!(largest, smallest, "all ranks have the same parameters");
    let mut loss = [loss];
    comm.all_reduce(&mut loss, ReduceOp::Mean)?;

    if rank == 0 {
        let (_, alone) = train(start, &device, (0, 1), |_, gradients| Ok(gradients))?;
        assert!((loss[0] / alone - 1.0).abs() < ROUNDING, "{} on {ranks} ranks, {alone} on one", loss[0]);
        println!(
            "{ranks} ranks have the same parameters; loss {:.6}, and {alone:.6} on one rank with whole batches",
            loss[0]
        );
        let ms = |time: Duration| time.as_secs_f64() * 1000.0 / STEPS as f64;
        println!("{:.2} ms a step, of which {:.2} reduce {} gradients", ms(took), ms(reduced), largest.len());
    }
    Ok(())
}

/// Trains on one rank's part of each batch; `reduce` makes the gradients those of whole batches. Returns the model, and the loss of the
/// last step.
fn train(
    mut model: Perceptron,
    device: &Device,
    place: (usize, usize),
    mut reduce: impl FnMut(&Perceptron, GradientsParams) -> unisono::Result<GradientsParams>,
) -> unisono::Result<(Perceptron, f32)> {
    let mut optimizer = AdamConfig::new().init();
    let mut last = 0.0;
    for step in 0..STEPS {
        let (inputs, targets) = part_of_batch(step, place, device);
        let loss = MseLoss::new().forward(model.forward(inputs), targets, Reduction::Mean);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        let gradients = reduce(&model, gradients)?;
        model = optimizer.step(RATE, model, gradients);
        last = loss.into_scalar::<f32>();
    }
    Ok((model, last))
}

/// The samples of a batch that belong to a rank: points, and a smooth function of them.
fn part_of_batch(step: usize, (rank, ranks): (usize, usize), device: &Device) -> (Tensor<2>, Tensor<2>) {
    let count = BATCH / ranks;
    let first = step * BATCH + rank * count;
    let point = |sample: usize| (0..INPUTS).map(move |axis| (sample as f32 * (axis as f32 + 1.3)).sin());
    let inputs: Vec<_> = (first..first + count).flat_map(point).collect();
    let value = |sample: usize| {
        point(sample).enumerate().map(|(axis, x)| x * (axis as f32).cos()).sum::<f32>().tanh()
    };
    let targets: Vec<_> = (first..first + count).map(value).collect();
    let tensor = |values, columns| Tensor::from_data(TensorData::new(values, [count, columns]), device);
    (tensor(inputs, INPUTS), tensor(targets, 1))
}
