//! Models cut into stages.

use std::time::{Duration, Instant};

use candle_core::{Device, Result, Tensor, Var};
use unisono_data::Batch;

use super::layers::{Layer, Sequence};
use super::{inputs, loss};
use crate::network::{Cut, Parameters, StageNetwork};
use unisono_strategies::pipeline::Stage;

/// The number of times that a layer is timed.
const TIMES: usize = 3;

/// Consecutive layers of a model as a stage with these parameters, none of which exists yet. It ends with the loss if `is_last`.
///
/// # Errors
///
/// If a layer normalises over all ranks, or drops values.
pub(crate) fn stage(
    layers: &[Layer],
    is_last: bool,
    parameters: &Parameters,
) -> Result<impl Stage<Batch = Batch> + use<>> {
    let layers = Sequence::new(layers, parameters)?;
    StageNetwork::new(parameters, move |batch: &Batch, before: Option<&Tensor>| {
        let x = match before {
            Some(before) => before.clone(),
            None => inputs(batch)?,
        };
        let y = layers.forward(&x, batch.samples)?;
        if is_last { loss(&y, &batch.targets, None).map(Cut::Loss) } else { Ok(Cut::Activations(y)) }
    })
}

/// Returns the time that each layer takes for a batch, forward and back: the least of a few times. Only one is in
/// memory at a time.
///
/// # Errors
///
/// An error of candle.
pub(crate) fn measure(layers: &[Layer], batch: &Batch, seed: u64) -> Result<Vec<Duration>> {
    let mut x = inputs(batch)?;
    let mut all = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let parameters = Parameters::on(&Device::Cpu, seed)?;
        let own = Sequence::new(std::slice::from_ref(layer), &parameters)?;
        let is_last = number + 1 == layers.len();
        let mut least = Duration::MAX;
        let mut next = None;
        for _ in 0..TIMES {
            // The inputs need no gradient.
            let before = if number > 0 { Var::from_tensor(&x)?.as_tensor().clone() } else { x.clone() };
            let began = Instant::now();
            let y = own.forward(&before, batch.samples)?;
            let sum = if is_last { loss(&y, &batch.targets, None)?.sum } else { y.sum_all()? };
            sum.backward()?;
            least = least.min(began.elapsed());
            next = Some(y.detach());
        }
        x = next.expect("it was timed");
        all.push(least);
    }
    Ok(all)
}
