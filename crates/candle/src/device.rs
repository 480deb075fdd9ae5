//! The device of a model: the CPU or, with the feature `cuda`, this rank's GPU.
//!
//! On a GPU, gradients and parameters stay in its memory. Values pass through the host only when they are broadcast, compared, saved or read, which
//! is rare. Files and hashes are therefore the same as on the CPU.

#[cfg(feature = "cuda")]
mod ahead;
#[cfg(any(test, feature = "cuda"))]
mod near;

use candle_core::Device;
#[cfg(feature = "cuda")]
use candle_core::{DType, Tensor};
use unisono_collectives::named;

#[cfg(feature = "cuda")]
use crate::error::{failed, text};
#[cfg(not(feature = "cuda"))]
use crate::model::Placed;
use unisono::Communicator;
use unisono::internals::gpus;
#[cfg(not(feature = "cuda"))]
use unisono_train::internals::PassOn;
use unisono_train::internals::lowest;
use unisono_train::{TrainError, agree};

#[cfg(feature = "cuda")]
pub(super) use ahead::ahead;

named! {
    /// The device on which models compute.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DeviceKind: "device" {
        /// GPUs if every rank finds one and they support all settings of the run, otherwise the CPU.
        Auto = "auto",
        /// The CPU.
        Cpu = "cpu",
        /// GPUs, one per rank. Needs the feature `cuda`.
        Cuda = "cuda",
    }
}

impl DeviceKind {
    /// Chooses this rank's device, of the same kind on all ranks, and describes the choice if there were alternatives. Without a GPU on any machine,
    /// [`DeviceKind::Auto`] is the CPU. `refused` is a setting of the run that a GPU does not support. Called by all ranks.
    pub(crate) fn choose(
        self,
        comm: &mut Communicator,
        refused: Option<String>,
    ) -> Result<(Device, Option<String>), TrainError> {
        let on_cpu = |why: &str| Ok((Device::Cpu, Some(format!("on the CPU: {why}"))));
        let on_gpus = |(device, name): (Device, String), why: &str| {
            let description = format!("on GPUs, rank 0 on {name}{}: {why}", stay_near(&device));
            Ok((device, Some(description)))
        };
        if self == Self::Cpu {
            return on_cpu("requested");
        }
        let found = match refused {
            None => find(comm),
            Some(why) => Err(NoGpu { why, advice: "leave it out" }),
        };
        if self == Self::Cuda {
            let refuse = |NoGpu { why, advice }| {
                TrainError::Setting(format!("cannot train on GPUs: {why}; {advice}, or train on the CPU"))
            };
            return on_gpus(agree(comm, found.map_err(refuse))?, "requested");
        }
        if lowest(comm, found.is_ok() || gpus() > 0)?.is_none() {
            return Ok((Device::Cpu, None));
        }
        match (lowest(comm, found.is_err())?, found) {
            (None, Ok(found)) => on_gpus(found, "every rank found one"),
            (_, Err(NoGpu { why, .. })) => on_cpu(&why),
            (rank, Ok(_)) => on_cpu(&format!("rank {} found no usable GPU", rank.unwrap_or_default())),
        }
    }
}

/// The reason why a rank has no GPU for training, and the remedy.
struct NoGpu {
    why: String,
    advice: &'static str,
}

#[cfg(feature = "cuda")]
fn find(comm: &Communicator) -> Result<(Device, String), NoGpu> {
    let found = comm.device().map_err(TrainError::from).and_then(|context| {
        let ordinal = context.ordinal();
        let name =
            context.name().map_err(|cause| unisono::Error::Cuda { what: "the name of a GPU", cause })?;
        // A separate stream, because candle's default stream synchronises with all others of its kind.
        let device = Device::new_cuda_with_stream(ordinal).map_err(failed)?;
        Ok((device, format!("GPU {ordinal}, {name}")))
    });
    let (device, name) = found.map_err(|error| NoGpu {
        why: format!("rank {} found no GPU: {error}", comm.rank()),
        advice: "check nvidia-smi",
    })?;
    // The driver loads kernels when they are first used. A GPU that is older than the one that they were compiled for refuses them.
    let computed = Tensor::zeros(1, DType::F32, &device).and_then(|zero| (zero + 1.0)?.to_vec1::<f32>());
    computed.map_err(|error| {
        let (rank, error) = (comm.rank(), text(error));
        NoGpu {
            why: format!("the kernels of this program do not run on {name} of rank {rank}: {error}"),
            advice: "build it for this GPU by CUDA_COMPUTE_CAP (docs/gpu.md)",
        }
    })?;
    Ok((device, name))
}

/// Binds this thread, and with it all threads that it starts from now on, such as the input pipeline, to cores near its GPU. Returns a notice.
#[cfg(feature = "cuda")]
fn stay_near(device: &Device) -> String {
    use unisono::cudarc::driver::sys::CUdevice_attribute as Attribute;

    let Device::Cuda(gpu) = device else { return String::new() };
    let stream = gpu.cuda_stream();
    let number = |attribute| stream.context().attribute(attribute).ok();
    let address = || {
        let domain = number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
        let bus = number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
        let slot = number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
        Some(format!("{domain:04x}:{bus:02x}:{slot:02x}.0"))
    };
    let cores = address().and_then(|address| near::stay(&address));
    cores.map(|cores| format!(" ({cores})")).unwrap_or_default()
}

/// Returns no copier of batches: without the feature `cuda` the model is on the CPU.
#[cfg(not(feature = "cuda"))]
pub(super) fn ahead(_: &mut Communicator, _: &Device) -> Result<Option<PassOn<Placed>>, TrainError> {
    Ok(None)
}

#[cfg(not(feature = "cuda"))]
fn stay_near(_: &Device) -> &'static str {
    ""
}

#[cfg(not(feature = "cuda"))]
fn find(_: &Communicator) -> Result<(Device, String), NoGpu> {
    Err(NoGpu {
        why: "this program was built without the feature `cuda`".to_owned(),
        advice: "build it with that feature (docs/gpu.md)",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chooses the device on two ranks.
    fn choose(kind: DeviceKind, refused: Option<&str>) -> Vec<Result<Option<String>, TrainError>> {
        unisono::threads(2, |mut comm| {
            kind.choose(&mut comm, refused.map(str::to_owned)).map(|(device, description)| {
                assert!(device.is_cpu());
                description
            })
        })
    }

    #[test]
    fn cpu_is_always_available() {
        for description in choose(DeviceKind::Cpu, None) {
            assert_eq!(description.unwrap().as_deref(), Some("on the CPU: requested"));
        }
    }

    #[test]
    fn auto_falls_back_to_the_cpu_and_reports_the_reason() {
        let why = (gpus() > 0).then_some("on the CPU: on a GPU this is not done");
        for description in choose(DeviceKind::Auto, Some("on a GPU this is not done")) {
            assert_eq!(description.unwrap().as_deref(), why);
        }
    }

    #[test]
    fn requested_gpu_is_not_replaced_by_another_device() {
        let mut refused = choose(DeviceKind::Cuda, Some("on a GPU this is not done")).into_iter();
        let message = refused.next().unwrap().unwrap_err().to_string();
        assert_eq!(
            message,
            "cannot train on GPUs: on a GPU this is not done; leave it out, or train on the CPU"
        );
        assert!(matches!(refused.next().unwrap().unwrap_err(), TrainError::Elsewhere { rank: 0 }));
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn gpu_is_unavailable_without_the_feature() {
        let why = (gpus() > 0).then_some("on the CPU: this program was built without the feature `cuda`");
        for description in choose(DeviceKind::Auto, None) {
            assert_eq!(description.unwrap().as_deref(), why);
        }
        let message = choose(DeviceKind::Cuda, None).remove(0).unwrap_err().to_string();
        assert!(message.contains("feature `cuda`") && message.contains("docs/gpu.md"), "{message}");
    }
}
