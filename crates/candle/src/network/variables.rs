//! [`Parameters`] as the variables of `candle_nn` layers.

use candle_core::{DType, Device, Result, Shape, Tensor, bail};
use candle_nn::init::NormalOrUniform;
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

use super::parameters::Parameters;

impl Parameters {
    /// Returns the source of variables for a `candle_nn` model. Their type is `f32`.
    pub fn var_builder(&self) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(Backend(self.clone())), DType::F32, self.device().clone())
    }
}

struct Backend(Parameters);

impl SimpleBackend for Backend {
    fn get(&self, shape: Shape, name: &str, init: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        let own = self.0.device();
        if dtype != DType::F32 || !device.same_device(own) {
            bail!(
                "parameter {name} is requested as {dtype:?} on {:?}, but only f32 on {:?} is supported",
                device.location(),
                own.location()
            );
        }
        if let Some(array) = self.0.lock().iter_mut().find(|array| array.parameter.name == name) {
            let parameter = &array.parameter;
            // Layers that share a weight request it twice.
            if parameter.shape != shape.dims() {
                bail!(
                    "parameter {name} is requested with shape {shape:?}, but exists with {:?}",
                    parameter.shape
                );
            }
            // Such a layer reports only its own part of the gradient.
            if array.is_of_layer && parameter.is_trained {
                bail!(
                    "parameter {name} belongs to a layer of unisono, and is requested again: expected a shared weight from Parameters::add, \
                     or from the builder for all its uses"
                );
            }
            array.is_of_layer = false;
            return Ok(array.tensor.clone());
        }
        let count = shape.elem_count();
        let values = match init {
            Init::Const(value) => vec![value as f32; count],
            Init::Uniform { lo, up } => {
                let deviation = (up - lo) / 12_f64.sqrt();
                let middle = ((up + lo) / 2.0) as f32;
                self.0.even(name, count, deviation).into_iter().map(|value| value + middle).collect()
            }
            Init::Randn { mean, stdev } => self.0.normal(name, count, mean, stdev),
            Init::Kaiming { dist, fan, non_linearity } => {
                let deviation = non_linearity.gain() / (fan.for_shape(&shape) as f64).sqrt();
                match dist {
                    NormalOrUniform::Uniform => self.0.even(name, count, deviation),
                    NormalOrUniform::Normal => self.0.normal(name, count, 0.0, deviation),
                }
            }
        };
        // A batch norm of `candle_nn` copies its running statistics, so updates of them are neither visible here nor saved.
        if matches!(name.rsplit('.').next(), Some("running_mean" | "running_var")) {
            tracing::warn!(
                "{name} is of a BatchNorm of candle_nn, whose statistics are those of each rank's own samples, and are neither saved nor \
                 the same on all ranks: use unisono_candle::SyncBatchNorm instead"
            );
            return self.0.add_buffer(name, shape, values);
        }
        self.0.report_whole(name, shape, values)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("parameter {name} is requested without a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.lock().iter().any(|array| array.parameter.name == name)
    }
}
