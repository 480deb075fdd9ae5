//! Batches on the device of a model.

use candle_core::{Device, Result, Tensor};
use unisono_data::{Batch, Inputs};

/// The batch of a built-in model, on the host or copied ahead to the model's GPU.
#[derive(Debug, Clone)]
pub enum Placed {
    /// On the host.
    Host(Batch),
    /// On the model's device.
    Device {
        /// The input tensor.
        inputs: Tensor,
        /// The targets.
        targets: Tensor,
        /// The targets on the host, where they are checked and counted.
        known: Vec<u32>,
    },
}

impl From<Batch> for Placed {
    fn from(batch: Batch) -> Self {
        Self::Host(batch)
    }
}

impl Placed {
    /// Returns the input tensor on this device, the targets on the host, and their copy on a device if there is one.
    pub(super) fn tensors(&self, device: &Device) -> Result<(Tensor, &[u32], Option<&Tensor>)> {
        match self {
            Self::Host(batch) => Ok((inputs(batch)?.to_device(device)?, &batch.targets, None)),
            Self::Device { inputs, targets, known } => Ok((inputs.clone(), known, Some(targets))),
        }
    }
}

/// Returns the input tensor of a batch, on the CPU.
///
/// # Errors
/// Fails if the number of values does not fit the number of samples.
pub fn inputs(batch: &Batch) -> Result<Tensor> {
    let shape = shape(batch);
    match &batch.inputs {
        Inputs::Pixels(pixels) => Tensor::from_slice(pixels, shape, &Device::Cpu),
        Inputs::Tokens(tokens) => Tensor::from_slice(tokens, shape, &Device::Cpu),
    }
}

/// Returns the shape of the input tensor: a row for each sample.
pub(crate) fn shape(batch: &Batch) -> (usize, usize) {
    let values = match &batch.inputs {
        Inputs::Pixels(pixels) => pixels.len(),
        Inputs::Tokens(tokens) => tokens.len(),
    };
    (batch.samples, values / batch.samples.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ModelKind, classifier};
    use crate::network::Parameters;
    use crate::network::tests::gradients_of;
    use unisono_data::Kind;
    use unisono_train::Replica;

    #[test]
    fn location_of_the_batch_does_not_change_the_result() {
        let images = Kind::Images { height: 5, width: 4, channels: 1, classes: 3 };
        let pixels = Inputs::Pixels((0..60).map(|place| (place as f32 * 0.7).sin()).collect());
        let text = Kind::Text { context: 4, vocabulary: ('a'..='e').collect() };
        let tokens = Inputs::Tokens(vec![0, 3, 1, 4, 2, 2, 0, 1]);
        let of_images = Batch { inputs: pixels, targets: vec![2, 0, 1], samples: 3 };
        let of_text = Batch { inputs: tokens, targets: vec![3, 1, 4, 0, 2, 0, 1, 4], samples: 2 };
        for (kind, data, batch) in
            [(ModelKind::Mlp, images, of_images), (ModelKind::Transformer, text, of_text)]
        {
            let there = Placed::Device {
                inputs: inputs(&batch).unwrap(),
                targets: Tensor::new(&*batch.targets, &Device::Cpu).unwrap(),
                known: batch.targets.clone(),
            };
            let targets = batch.targets.len();
            let [on_host, on_device] = [Placed::from(batch), there].map(|batch| {
                let mut replica = classifier(kind, None, 0.0, &data, &Parameters::new(3)).unwrap();
                (gradients_of(&mut replica, &batch), replica.evaluate(&batch, None).unwrap())
            });
            assert_eq!(on_device, on_host, "{kind}");
            let ((trained, gradients), evaluated) = on_host;
            assert_eq!(evaluated.targets, targets as f64);
            assert!(!gradients.is_empty() && trained.loss > 0.0);
        }
    }
}
