//! Visitors of a module's parameters, in the order of its fields.

use burn::module::{ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};
use unisono::Communicator;
use unisono_train::{Parameter, TrainError};

#[derive(Default)]
pub(crate) struct Describe {
    /// The fields that lead to the current parameter.
    path: Vec<String>,
    described: Vec<Parameter>,
    unsupported: Option<TrainError>,
}

impl Describe {
    /// Returns the parameters, if there are any and all are supported.
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
            self.unsupported.get_or_insert_with(|| {
                TrainError::Setting(format!("parameter `{name}` is of {dtype:?}: DataParallel supports f32"))
            });
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

/// Overwrites the parameters of every rank with those of rank 0.
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

/// Collects the gradients of a module's parameters, in their order.
pub(crate) struct Collect {
    pub(crate) gradients: GradientsParams,
    pub(crate) own: Vec<Option<TensorData>>,
}

impl ModuleVisitor for Collect {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.own.push(self.gradients.remove::<D>(param.id).map(Tensor::into_data));
    }
}

/// Registers the means as gradients.
pub(crate) struct Distribute {
    /// The mean of each parameter, in the order of visits.
    pub(crate) values: std::vec::IntoIter<Option<Vec<f32>>>,
    pub(crate) means: GradientsParams,
}

impl ModuleVisitor for Distribute {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(mean) = self.values.next().expect("the module has as many parameters as means") {
            let data = TensorData::new(mean, param.val().shape());
            self.means.register(param.id, Tensor::<D>::from_data(data, &param.val().device().inner()));
        }
    }
}
