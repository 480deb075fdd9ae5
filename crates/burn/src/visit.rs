//! Visitors of a module's parameters, in the order of its fields.

use burn::module::{ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};
use unisono::Communicator;
use unisono_train::{Buckets, Parameter, TrainError};

/// The error of an array of another type.
pub(crate) fn named(parameter: &str, array: &str, dtype: DType) -> TrainError {
    TrainError::Setting(format!(
        "the {array} of parameter `{parameter}` is of {dtype:?}: DataParallel supports f32"
    ))
}

/// Describes the parameters.
#[derive(Default)]
pub(crate) struct Describe {
    /// The fields that lead to the parameter.
    path: Vec<String>,
    described: Vec<Parameter>,
    unsupported: Option<TrainError>,
}

impl Describe {
    /// The parameters, if there are any and all are supported.
    pub(crate) fn result(self) -> Result<Vec<Parameter>, TrainError> {
        match self.unsupported {
            Some(error) => Err(error),
            None if self.described.is_empty() => {
                Err(TrainError::Setting("the module has no parameter: expected one at least".to_owned()))
            }
            None => Ok(self.described),
        }
    }

    fn add(&mut self, shape: Vec<usize>, dtype: DType) {
        let name = self.path.join(".");
        if dtype != DType::F32 {
            self.unsupported.get_or_insert_with(|| named(&name, "value", dtype));
        }
        self.described.push(Parameter::new(name, shape));
    }
}

impl ModuleVisitor for Describe {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        self.add(tensor.dims().to_vec(), tensor.dtype());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let tensor = param.val();
        self.add(tensor.dims().to_vec(), tensor.dtype());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let tensor = param.val();
        self.add(tensor.dims().to_vec(), tensor.dtype());
    }

    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
}

/// Gives every rank the values of rank 0.
pub(crate) struct Broadcast<'a> {
    pub(crate) comm: &'a mut Communicator,
    pub(crate) result: unisono::Result<()>,
}

impl ModuleMapper for Broadcast<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| {
            let (device, is_trained) = (tensor.device(), tensor.is_require_grad());
            let mut data = tensor.into_data();
            let values = data.as_mut_slice::<f32>().expect("parameters of other types were refused");
            if self.result.is_ok() {
                self.result = self.comm.broadcast(values, 0).map(drop);
            }
            Tensor::from_data(data, &device).set_require_grad(is_trained)
        })
    }
}

/// Takes the gradients of a module's parameters, in their order.
pub(crate) struct Collect {
    pub(crate) gradients: GradientsParams,
    pub(crate) own: Vec<Option<TensorData>>,
}

impl ModuleVisitor for Collect {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.own.push(self.gradients.remove::<D>(param.id).map(Tensor::into_data));
    }
}

/// Registers the means of sums over all ranks as gradients.
pub(crate) struct Distribute<'a> {
    pub(crate) buckets: &'a mut Buckets,
    pub(crate) described: &'a [Parameter],
    /// How many ranks have a gradient of each parameter.
    pub(crate) reached: &'a [f32],
    pub(crate) targets: f64,
    pub(crate) index: usize,
    pub(crate) means: GradientsParams,
    pub(crate) result: Result<(), TrainError>,
}

impl Distribute<'_> {
    /// The mean of a parameter, if any rank has a gradient of it.
    fn mean(&mut self, index: usize) -> Result<Option<Vec<f32>>, TrainError> {
        if self.reached[index] == 0.0 {
            return Ok(None);
        }
        let sums = self.buckets.gradient(index)?;
        let mean: Vec<f32> = sums.iter().map(|&sum| (f64::from(sum) / self.targets) as f32).collect();
        match mean.iter().find(|value| !value.is_finite()) {
            None => Ok(Some(mean)),
            Some(value) => Err(TrainError::Setting(format!(
                "the gradient of parameter `{}` is not finite: it has the value {value}",
                self.described[index].name
            ))),
        }
    }
}

impl ModuleVisitor for Distribute<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let index = self.index;
        self.index += 1;
        if self.result.is_err() {
            return;
        }
        match self.mean(index) {
            Ok(None) => {}
            Ok(Some(mean)) => {
                let data = TensorData::new(mean, param.val().shape());
                self.means.register(param.id, Tensor::<D>::from_data(data, &param.val().device().inner()));
            }
            Err(error) => self.result = Err(error),
        }
    }
}
