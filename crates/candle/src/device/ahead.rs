//! Copies batches to the model's GPU while it computes.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::cuda_backend::CudaDType;
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Device, Shape, Storage, Tensor};
use unisono::cudarc::driver::CudaSlice;
use unisono::{Communicator, HostToDevice};
use unisono_data::{Batch, DataError, Inputs};

use crate::model::{Placed, shape};
use unisono_train::internals::PassOn;
use unisono_train::{TrainError, agree};

/// Two batches may be in flight, each with inputs and targets. More do not make copies faster.
const BUFFERS: usize = 4;

/// Returns the copier of batches to this device ahead of the model, if it is a GPU. Called by all ranks, whose devices are of the same kind.
pub(crate) fn ahead(comm: &mut Communicator, device: &Device) -> Result<Option<PassOn<Placed>>, TrainError> {
    let Device::Cuda(gpu) = device else { return Ok(None) };
    let copies = comm.host_to_device(&gpu.cuda_stream(), BUFFERS);
    let (copies, gpu) = (Mutex::new(agree(comm, copies.map_err(TrainError::from))?), gpu.clone());
    Ok(Some(Arc::new(move |batch| match batch {
        Placed::Host(batch) => {
            let mut copies = copies.lock().unwrap_or_else(PoisonError::into_inner);
            copy(&mut copies, &gpu, batch).map_err(DataError::other)
        }
        there @ Placed::Device { .. } => Ok(there),
    })))
}

fn copy(copies: &mut HostToDevice, gpu: &CudaDevice, batch: Batch) -> unisono::Result<Placed> {
    let inputs = match &batch.inputs {
        Inputs::Pixels(pixels) => tensor(copies.copy(pixels)?, shape(&batch), gpu),
        Inputs::Tokens(tokens) => tensor(copies.copy(tokens)?, shape(&batch), gpu),
    };
    let targets = tensor(copies.copy(&batch.targets)?, batch.targets.len(), gpu);
    Ok(Placed::Device { inputs, targets, known: batch.targets })
}

fn tensor<T: CudaDType>(array: CudaSlice<T>, shape: impl Into<Shape>, gpu: &CudaDevice) -> Tensor {
    let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(array, gpu.clone()));
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}
