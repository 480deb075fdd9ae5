//! One rank's copy of the model, with its parameters in flat memory: that is what is broadcast, updated and
//! hashed.

use std::fmt;
use std::ops::{AddAssign, Range};

use candle_core::{CpuStorage, D, Device, InplaceOp1, Layout as TensorLayout, Storage, Tensor};
use candle_nn::loss::cross_entropy;

use super::error::TrainError;
use super::model::{Model, NamedParameters};
use crate::data::{Batch, Inputs, Split};

/// Where each parameter lies in flat memory: sorted by name, one after the other.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    parameters: Vec<Parameter>,
}

/// Where one parameter lies.
#[derive(Debug, Clone)]
pub(super) struct Parameter {
    pub(super) range: Range<usize>,
    /// Whether it has but one dimension.
    pub(super) is_vector: bool,
}

impl Layout {
    /// The layout of parameters of these names and shapes, in this order.
    pub(super) fn new<'a>(shapes: impl IntoIterator<Item = (&'a str, Vec<usize>)>) -> Self {
        let mut end = 0;
        let place = |(_, shape): (&str, Vec<usize>)| {
            let start = end;
            end += shape.iter().product::<usize>();
            Parameter { range: start..end, is_vector: shape.len() < 2 }
        };
        Self { parameters: shapes.into_iter().map(place).collect() }
    }

    pub(super) fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// How many values all parameters have together.
    pub(super) fn count(&self) -> usize {
        self.parameters.last().map_or(0, |last| last.range.end)
    }
}

/// Sums over targets (images, or characters of a text).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Tally {
    pub(super) targets: f64,
    pub(super) loss: f64,
    pub(super) correct: f64,
}

impl Tally {
    /// How many sums there are.
    pub(super) const COUNT: usize = 3;

    pub(super) fn mean_loss(&self) -> f64 {
        self.loss / self.targets
    }

    pub(super) fn accuracy(&self) -> f64 {
        self.correct / self.targets
    }

    pub(super) fn as_array(self) -> [f64; Self::COUNT] {
        [self.targets, self.loss, self.correct]
    }

    pub(super) fn from_array([targets, loss, correct]: [f64; Self::COUNT]) -> Self {
        Self { targets, loss, correct }
    }

    /// Reads what [`Tally::write`] wrote, or a sum of such.
    pub(super) fn from_slice(sums: &[f32]) -> Self {
        Self::from_array(std::array::from_fn(|index| f64::from(sums[index])))
    }

    fn write(self, sums: &mut [f32]) {
        sums.iter_mut().zip(self.as_array()).for_each(|(sum, value)| *sum = value as f32);
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.targets += other.targets;
        self.loss += other.loss;
        self.correct += other.correct;
    }
}

/// The model and its parameters, twice: in tensors, and flat.
pub(super) struct Replica {
    model: Box<dyn Model>,
    parameters: NamedParameters,
    layout: Layout,
    values: Vec<f32>,
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica").field("parameters", &self.parameters).finish_non_exhaustive()
    }
}

impl Replica {
    pub(super) fn new(model: Box<dyn Model>, parameters: NamedParameters) -> Result<Self, TrainError> {
        let shapes = parameters.iter().map(|(name, variable)| (name.as_str(), variable.dims().to_vec()));
        let layout = Layout::new(shapes);
        let mut values = Vec::with_capacity(layout.count());
        for (_, variable) in &parameters {
            values.extend(variable.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(Self { model, parameters, layout, values })
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn values(&self) -> &[f32] {
        &self.values
    }

    /// The flat values, to be changed; [`Replica::load`] makes them the model's.
    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// Takes the flat values into the model.
    pub(super) fn load(&mut self) -> Result<(), TrainError> {
        for ((_, variable), parameter) in self.parameters.iter().zip(self.layout.parameters()) {
            variable.inplace_op1(&CopyFrom(&self.values[parameter.range.clone()]))?;
        }
        Ok(())
    }

    /// Fills the bucket: the sum of the gradients of these samples, then the [`Tally`]. Of no samples, zeros.
    pub(super) fn add_up_gradients(
        &self,
        split: &Split,
        samples: &[usize],
        shift: usize,
        bucket: &mut [f32],
    ) -> Result<(), TrainError> {
        bucket.fill(0.0);
        if samples.is_empty() {
            return Ok(());
        }
        let batch = split.batch(samples, shift);
        let targets = batch.targets.len() as f64;
        let (logits, wanted) = self.predict(batch)?;
        let loss = cross_entropy(&logits, &wanted)?;
        let tally = Tally { targets, loss: f64::from(loss.to_scalar::<f32>()?) * targets, correct: 0.0 };
        // The gradients of the mean, times how many it is over.
        let gradients = (loss * targets)?.backward()?;
        let (flat, sums) = bucket.split_at_mut(self.values.len());
        for ((_, variable), parameter) in self.parameters.iter().zip(self.layout.parameters()) {
            // A parameter that the loss does not depend on has no gradient, which is a gradient of zero.
            if let Some(gradient) = gradients.get(variable) {
                copy_into(gradient, &mut flat[parameter.range.clone()])?;
            }
        }
        tally.write(sums);
        Ok(())
    }

    /// Counts how many of these held-out samples the model gets right.
    pub(super) fn evaluate(&self, split: &Split, samples: &[usize]) -> Result<Tally, TrainError> {
        let batch = split.batch(samples, 0);
        let targets = batch.targets.len() as f64;
        let (logits, wanted) = self.predict(batch)?;
        let logits = logits.detach();
        let loss = cross_entropy(&logits, &wanted)?.to_scalar::<f32>()?;
        let right = logits.argmax(D::Minus1)?.eq(&wanted)?.to_dtype(candle_core::DType::F32)?;
        let correct = right.sum_all()?.to_scalar::<f32>()?;
        Ok(Tally { targets, loss: f64::from(loss) * targets, correct: f64::from(correct) })
    }

    /// The logits, and the targets that they should point at.
    fn predict(&self, batch: Batch) -> Result<(Tensor, Tensor), TrainError> {
        let Batch { inputs, targets, samples } = batch;
        let inputs = match inputs {
            Inputs::Pixels(pixels) => {
                let size = pixels.len() / samples;
                Tensor::from_vec(pixels, (samples, size), &Device::Cpu)
            }
            Inputs::Tokens(tokens) => {
                let context = tokens.len() / samples;
                Tensor::from_vec(tokens, (samples, context), &Device::Cpu)
            }
        }?;
        let count = targets.len();
        Ok((self.model.forward(&inputs)?, Tensor::from_vec(targets, count, &Device::Cpu)?))
    }
}

/// Copies a tensor's values, in the order of its elements.
fn copy_into(tensor: &Tensor, values: &mut [f32]) -> candle_core::Result<()> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { candle_core::bail!("a gradient on another device") };
    let start = layout.start_offset();
    values.copy_from_slice(&storage.as_slice::<f32>()?[start..start + values.len()]);
    Ok(())
}

/// Overwrites a tensor with these values, where it lies.
struct CopyFrom<'a>(&'a [f32]);

impl InplaceOp1 for CopyFrom<'_> {
    fn name(&self) -> &'static str {
        "copy-from"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &TensorLayout) -> candle_core::Result<()> {
        let CpuStorage::F32(values) = storage else { candle_core::bail!("a parameter that is not f32") };
        let start = layout.start_offset();
        values[start..start + self.0.len()].copy_from_slice(self.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Kind;
    use crate::train::model::{self, ModelKind};

    #[test]
    fn what_is_loaded_is_what_the_model_computes_with() {
        let kind = Kind::Images { height: 2, width: 2, classes: 3 };
        let (model, parameters) = model::build(ModelKind::Mlp, &kind, 1).unwrap();
        let mut replica = Replica::new(model, parameters).unwrap();
        let split = Split::Images { pixels: vec![0, 50, 100, 250], labels: vec![2] };
        let before = replica.evaluate(&split, &[0]).unwrap();
        replica.values_mut().fill(0.0);
        replica.load().unwrap();
        let after = replica.evaluate(&split, &[0]).unwrap();
        assert!((after.mean_loss() - 3_f64.ln()).abs() < 1e-6, "all classes are equally likely");
        assert_ne!(before.loss, after.loss);
    }

    #[test]
    fn gradients_add_up_over_shares() {
        let kind = Kind::Images { height: 2, width: 2, classes: 3 };
        let (model, parameters) = model::build(ModelKind::Mlp, &kind, 1).unwrap();
        let replica = Replica::new(model, parameters).unwrap();
        let pixels = (0..20).map(|pixel| pixel * 12).collect();
        let split = Split::Images { pixels, labels: vec![0, 1, 2, 1, 0] };
        let bucket = |samples: &[usize]| {
            let mut bucket = vec![f32::NAN; replica.values().len() + Tally::COUNT];
            replica.add_up_gradients(&split, samples, 0, &mut bucket).unwrap();
            bucket
        };
        let (whole, one, other) = (bucket(&[0, 1, 2, 3, 4]), bucket(&[0, 1, 2]), bucket(&[3, 4]));
        for ((whole, one), other) in whole.iter().zip(one).zip(other) {
            assert!((whole - (one + other)).abs() < 1e-5 * (1.0 + whole.abs()));
        }
        assert!(bucket(&[]).iter().all(|&value| value == 0.0));
    }
}
