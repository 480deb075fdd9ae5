//! Parameters with reproducible initial values, whose gradients are reported.
//!
//! Candle has no hooks, but a custom operation defines its own derivative. A parameter is therefore the result of an operation with an empty input,
//! created once. Its values are updated in place, so a step copies nothing. Candle calls the derivative after all uses of the parameter have added to
//! the gradient.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{CpuStorage, CustomOp1, Device, Error, Layout, Result, Shape, Tensor, Var, bail};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, backend::BackendStorage};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use scoped_tls_hkt::scoped_thread_local;
use unisono::Communicator;

use super::passes::Passes;
use super::shared;
use crate::values::{visit, with_values};
use unisono_train::{Fill, Gradients, Parameter};

scoped_thread_local!(
    /// The receiver of gradients for the backward pass on this thread.
    pub(super) static mut GRADIENTS: for<'a> &'a mut (dyn Gradients + 'a)
);
scoped_thread_local!(
    /// The [provider](Gradients::wait_for_param) of parameter values for the forward pass of training on this thread.
    pub(super) static mut VALUES: for<'a> &'a mut (dyn Gradients + 'a)
);
scoped_thread_local!(
    /// Set while this thread needs no derivatives: each result of a forward pass is freed as soon as the next one exists.
    pub(super) static EVALUATION: ()
);

/// Returns whether a forward pass of training runs on this thread.
pub(super) fn is_training() -> bool {
    VALUES.is_set()
}

/// Waits until `gradients` has provided the values of a parameter.
pub(super) fn bring_from(gradients: &mut dyn Gradients, index: usize, tensor: &Tensor) -> Result<()> {
    let mut brought = Ok(());
    visit(tensor, &mut |values| brought = gradients.wait_for_param(index, values))?;
    brought.map_err(Error::wrap)
}

/// Reports the gradient of a parameter to the running backward pass. Ignores it if the user's program runs the pass itself.
fn report(index: usize, write: &mut dyn FnMut(&mut [f32], Fill)) {
    if GRADIENTS.is_set() {
        GRADIENTS.with(|gradients| gradients.put(index, write));
    }
}

#[cfg(feature = "cuda")]
fn report_on_device(index: usize, gradient: &Tensor) -> Result<()> {
    if !GRADIENTS.is_set() {
        return Ok(());
    }
    let put = |gradients: &mut dyn Gradients| gradients.put_on_device(index, gradient);
    if !GRADIENTS.with(put).map_err(Error::wrap)? {
        let values = gradient.flatten_all()?.to_vec1::<f32>()?;
        report(index, &mut |target, fill| fill.write(target, &values));
    }
    Ok(())
}

#[derive(Debug, Clone)]
pub(super) struct Array {
    pub(super) parameter: Parameter,
    pub(super) tensor: Tensor,
    /// Whether its layer [waits for](Weight::wait) the values before it uses them.
    pub(super) is_of_layer: bool,
}

/// A parameter of a layer that computes the gradient by loops.
#[derive(Debug, Clone)]
pub(super) struct Weight {
    index: usize,
    pub(super) tensor: Tensor,
}

impl Weight {
    /// Waits until the values are available to the running forward pass of a step.
    pub(super) fn wait(&self) -> Result<()> {
        if !VALUES.is_set() {
            return Ok(());
        }
        VALUES.with(|gradients| bring_from(gradients, self.index, &self.tensor))
    }

    pub(super) fn report(&self, write: &mut dyn FnMut(&mut [f32], Fill)) {
        report(self.index, write);
    }
}

/// The parameters of a model under construction, in the order in which it requests them.
///
/// Candle's own store draws initial values from a generator that cannot be seeded, and lists parameters in random order. Here the seed and the name
/// of each parameter select its random stream, so ranks agree on every value without communication.
#[derive(Debug, Clone)]
pub struct Parameters {
    pub(super) seed: u64,
    made: Arc<Mutex<Vec<Array>>>,
    passes: Arc<Mutex<Passes>>,
    /// An input of every operation that reports gradients, so that candle computes derivatives there.
    anchor: Var,
    /// Whether Unisono's operations compute gradients, and write them to their buckets. This is the case on the CPU. Elsewhere, layers are composed
    /// of candle operations.
    pub(super) has_loops: bool,
    /// The communicator of the ranks that share the values of parameters, if they are shared.
    pub(super) sharing: Option<Arc<Mutex<Communicator>>>,
}

impl Parameters {
    /// Returns an empty set on the CPU. Called by all ranks with the same seed.
    pub fn new(seed: u64) -> Self {
        Self::on(&Device::Cpu, seed).expect("a tensor of one number")
    }

    /// Returns an empty set on a device. Called by all ranks with the same seed.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn on(device: &Device, seed: u64) -> Result<Self> {
        let anchor = Var::from_vec(vec![0.0_f32], 1, device)?;
        let (made, passes) = (Arc::default(), Arc::default());
        Ok(Self { seed, made, passes, anchor, has_loops: device.is_cpu(), sharing: None })
    }

    /// Returns an empty set on the CPU for [central storage](unisono_strategies::Strategy::CentralStorage). All ranks of the communicator, which are
    /// on one node, share one copy of the values. The memory is freed when the process ends. Called by all ranks with the same seed; they must then
    /// add the same parameters in the same order.
    ///
    /// # Errors
    /// Errors of the collectives.
    pub fn shared(seed: u64, comm: &mut Communicator) -> unisono::Result<Self> {
        let own = comm.split(Some(0), 0)?.expect("every rank has a color");
        Ok(Self { sharing: Some(Arc::new(Mutex::new(own))), ..Self::new(seed) })
    }

    /// Returns the tensor that `make` creates from these values, in the memory for parameters.
    fn placed(&self, values: Vec<f32>, make: impl FnOnce(Vec<f32>) -> Result<Tensor>) -> Result<Tensor> {
        match &self.sharing {
            Some(comm) => {
                shared::tensor(&mut comm.lock().unwrap_or_else(PoisonError::into_inner), values, make)
            }
            None => make(values),
        }
    }

    /// Returns the device on which the model computes.
    pub fn device(&self) -> &Device {
        self.anchor.device()
    }

    /// Adds a parameter with values uniform around 0, with standard deviation `deviation`.
    ///
    /// # Errors
    /// If a parameter of this name exists.
    pub fn add(&self, name: impl Into<String>, shape: impl Into<Shape>, deviation: f64) -> Result<Tensor> {
        let (name, shape) = (name.into(), shape.into());
        let values = self.even(&name, shape.elem_count(), deviation);
        self.report_whole(&name, shape, values)
    }

    /// Adds a buffer: an array that is broadcast and saved like a parameter, and not trained.
    pub(super) fn add_buffer(&self, name: &str, shape: impl Into<Shape>, values: Vec<f32>) -> Result<Tensor> {
        let shape = shape.into();
        let tensor = Tensor::from_vec(values, shape.clone(), self.device())?;
        let index = self.register(name, &shape, tensor.clone(), true)?;
        self.lock()[index].parameter.is_trained = false;
        Ok(tensor)
    }

    pub(super) fn passes(&self) -> MutexGuard<'_, Passes> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> Vec<Array> {
        self.lock().clone()
    }

    /// Returns the input of an operation that reports gradients, unless the pass has no derivatives.
    pub(super) fn anchor(&self) -> Tensor {
        if EVALUATION.is_set() { self.anchor.as_detached_tensor() } else { self.anchor.as_tensor().clone() }
    }

    /// Returns values uniform around 0.
    pub(super) fn even(&self, name: &str, count: usize, deviation: f64) -> Vec<f32> {
        let mut rng = self.stream(name);
        let bound = (deviation * 3_f64.sqrt()) as f32;
        (0..count).map(|_| (2.0 * rng.random::<f32>() - 1.0) * bound).collect()
    }

    /// Returns values from a normal distribution (Box and Muller, 1958).
    pub(super) fn normal(&self, name: &str, count: usize, mean: f64, deviation: f64) -> Vec<f32> {
        let mut rng = self.stream(name);
        let mut draw = || {
            let (radius, angle) = (1.0 - rng.random::<f64>(), rng.random::<f64>());
            (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
        };
        (0..count).map(|_| (mean + deviation * draw()) as f32).collect()
    }

    /// Adds a parameter of a layer that reports the gradient itself if it computes it by loops.
    pub(super) fn add_weight(&self, name: &str, shape: impl Into<Shape>, values: Vec<f32>) -> Result<Weight> {
        let shape = shape.into();
        if !self.has_loops {
            let index = self.lock().len();
            return Ok(Weight { index, tensor: self.report_whole(name, shape, values)? });
        }
        let tensor = self.placed(values, |values| Tensor::from_vec(values, shape.clone(), &Device::Cpu))?;
        Ok(Weight { index: self.register(name, &shape, tensor.clone(), true)?, tensor })
    }

    /// Adds a parameter whose gradient is reported after candle has computed all of it.
    pub(super) fn report_whole(&self, name: &str, shape: Shape, values: Vec<f32>) -> Result<Tensor> {
        let index = self.lock().len();
        let tensor = self.placed(values, |values| {
            let made = Made { index, shape: shape.clone(), values: Mutex::new(values) };
            self.anchor.as_tensor().apply_op1(made)
        })?;
        self.register(name, &shape, tensor.clone(), false)?;
        Ok(tensor)
    }

    fn register(&self, name: &str, shape: &Shape, tensor: Tensor, is_of_layer: bool) -> Result<usize> {
        let mut made = self.lock();
        if made.iter().any(|array| array.parameter.name == name) {
            bail!("two parameters have the name {name}");
        }
        made.push(Array { parameter: Parameter::new(name, shape.dims()), tensor, is_of_layer });
        Ok(made.len() - 1)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Array>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stream(&self, name: &str) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        // FNV-1a: the standard library's hashes may change between releases.
        rng.set_stream(name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }));
        rng
    }
}

/// The operation that creates a parameter.
struct Made {
    index: usize,
    shape: Shape,
    /// Taken by the only forward pass.
    values: Mutex<Vec<f32>>,
}

impl CustomOp1 for Made {
    fn name(&self) -> &'static str {
        "parameter"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        let values = std::mem::take(&mut *self.values.lock().unwrap_or_else(PoisonError::into_inner));
        Ok((CpuStorage::F32(values), self.shape.clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, anchor: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        let values = std::mem::take(&mut *self.values.lock().unwrap_or_else(PoisonError::into_inner));
        let device = anchor.device().clone();
        let values = device.clone_htod(&values)?;
        Ok((CudaStorage::wrap_cuda_slice(values, device), self.shape.clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        #[cfg(feature = "cuda")]
        if gradient.device().is_cuda() {
            report_on_device(self.index, &gradient.contiguous()?)?;
            return Ok(None);
        }
        with_values(&gradient.contiguous()?, |values| {
            report(self.index, &mut |target, fill| fill.write(target, values));
        })?;
        Ok(None)
    }
}
