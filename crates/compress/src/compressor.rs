//! Compressors: encodings with error feedback over a communicator.

use std::fmt;
use std::ops::{DerefMut, Range};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unisono::internals::work_async;
use unisono::{Communicator, ReduceOp, Request, Result};

mod exchanges;
mod levels;
mod power_sgd;
mod price;
mod quantized;
mod selection;
mod sparse;
mod wire;

use crate::kernels::quantized::{Int4, Int4Stochastic, Int8, Int8Stochastic, OneBit};
use exchanges::Exchange;
use levels::Groups;
pub use levels::Levels;
use power_sgd::PowerSgd;
pub use price::Prices;
use quantized::Quantized;
use selection::{Threshold, TopK};
pub use wire::{UnknownWire, Wire};

/// An encoding of gradients between nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Compression {
    /// Eight bits per element, and a scale for every 256 elements.
    Int8,
    /// Four bits per element, and a scale for every 256 elements.
    Int4,
    /// As `Int8`, but rounded at random to one of the two nearest values, so that the mean of many sums is the sum.
    ///
    /// Source: Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD: communication-efficient SGD via gradient quantization and encoding",
    /// NeurIPS 2017.
    Int8Stochastic,
    /// As `Int8Stochastic`, in four bits an element.
    Int4Stochastic,
    /// The sign of an element, and for every 256 elements the mean of those above zero and of those below.
    ///
    /// Source: Seide et al., as above.
    OneBit,
    /// Only the elements with the largest magnitudes.
    TopK {
        /// The fraction of the elements that is sent: above 0, and at most 1.
        fraction: f64,
    },
    /// The elements whose magnitudes reach a threshold, or all elements if that is smaller.
    ///
    /// Source: Strom, "Scalable distributed DNN training using commodity GPU cloud computing", Interspeech 2015, which sends them as
    /// their signs; Dryden, Moon, Jacobs and Van Essen, "Communication quantization for data-parallel training of deep neural
    /// networks", MLHPC 2016.
    Threshold {
        /// The smallest magnitude that is sent, of a node's sum plus its residual; finite, and above 0.
        least: f32,
    },
    /// Matrices as products of two thin ones. Vectors, and matrices for which that saves less than half, are sent uncompressed.
    ///
    /// Source: Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed optimization",
    /// NeurIPS 2019.
    PowerSgd {
        /// The columns of a thin matrix, from 1 to 64.
        rank: usize,
    },
}

/// The text names no compression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no compression is called `{0}`; there are {names}", names = Compression::NAMES)]
pub struct UnknownCompression(String);

/// The highest rank of PowerSGD. Formats that keep every element are better than higher ranks.
const MOST_RANK: usize = 64;

impl Compression {
    /// The names on the command line.
    pub const NAMES: &str = "int8, int4, int8:stochastic, int4:stochastic, onebit, topk:FRACTION (above 0, at most 1), \
                             threshold:MAGNITUDE (above 0) and powersgd:RANK (from 1 to 64)";

    /// Returns whether its constant, if it has one, is within the limits.
    pub fn is_valid(&self) -> bool {
        match *self {
            Self::TopK { fraction } => fraction > 0.0 && fraction <= 1.0,
            Self::Threshold { least } => least > 0.0 && least.is_finite(),
            Self::PowerSgd { rank } => (1..=MOST_RANK).contains(&rank),
            _ => true,
        }
    }

    /// Checks that it can send an array of this many elements.
    ///
    /// # Errors
    /// If it sends elements by their indices, and there are more than [`u32::MAX`].
    pub fn check(&self, count: usize) -> std::result::Result<(), String> {
        let has_indices = matches!(self, Self::TopK { .. } | Self::Threshold { .. });
        if has_indices && u32::try_from(count).is_err() {
            let most = u32::MAX;
            return Err(format!("{self} sends elements by 32-bit indices: at most {most}, and not {count}"));
        }
        Ok(())
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int8 => f.pad("int8"),
            Self::Int4 => f.pad("int4"),
            Self::Int8Stochastic => f.pad("int8:stochastic"),
            Self::Int4Stochastic => f.pad("int4:stochastic"),
            Self::OneBit => f.pad("onebit"),
            Self::TopK { fraction } => f.pad(&format!("topk:{fraction}")),
            Self::Threshold { least } => f.pad(&format!("threshold:{least}")),
            Self::PowerSgd { rank } => f.pad(&format!("powersgd:{rank}")),
        }
    }
}

impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(text: &str) -> std::result::Result<Self, UnknownCompression> {
        let (name, value) = text.split_once(':').unwrap_or((text, ""));
        let found = match name {
            "int8" if text == name => Some(Self::Int8),
            "int4" if text == name => Some(Self::Int4),
            "int8" if value == "stochastic" => Some(Self::Int8Stochastic),
            "int4" if value == "stochastic" => Some(Self::Int4Stochastic),
            "onebit" if text == name => Some(Self::OneBit),
            "topk" => value.parse().ok().map(|fraction| Self::TopK { fraction }),
            "threshold" => value.parse().ok().map(|least| Self::Threshold { least }),
            "powersgd" => value.parse().ok().map(|rank| Self::PowerSgd { rank }),
            _ => None,
        };
        found.filter(Self::is_valid).ok_or_else(|| UnknownCompression(text.to_owned()))
    }
}

/// Sums arrays of fixed size and meaning, such as the gradients of some parameters, with fewer bytes between nodes.
///
/// All ranks end with the same bits. If all ranks share a node, it is an ordinary all-reduce. Non-finite values make the result
/// non-finite, as without compression, and corrupt the residual.
///
/// ```
/// use unisono_compress::{Compression, Compressor, Levels};
/// use unisono::{Topology, Unisono};
///
/// let two_nodes = Unisono::builder().nodes(Topology::from_node_sizes(&[1, 1]));
/// let ended = two_nodes.on_threads(2, |mut comm| -> unisono::Result<()> {
///     let levels = Levels::of(&mut comm)?;
///     // A matrix and a vector, one after the other.
///     let compression = Compression::PowerSgd { rank: 1 };
///     let compressor = Compressor::new(&levels, compression, &[&[8, 16], &[16]]);
///     let mut gradients = vec![1.0; 8 * 16 + 16];
///     compressor.all_reduce(&mut comm, &mut gradients)?;
///     // This matrix is of rank 1.
///     assert!(gradients.iter().all(|sum| (sum - 2.0).abs() < 1e-5));
///     Ok(())
/// })?;
/// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
/// # Ok::<(), unisono::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Compressor {
    levels: Levels,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    encoder: Box<dyn Encoder>,
    /// The part of the gradients that this rank has not sent yet, one element for each of the array's; zeros on ranks that are not leaders.
    residual: Vec<f32>,
    /// Elements without a meaning.
    padding: Vec<Range<usize>>,
    /// Whether the residual was restored and not used since.
    is_restored: bool,
    /// Whether the last sums contain residuals.
    has_sent: bool,
    /// Whether the last values were finite.
    is_finite: bool,
}

/// An encoding and its state, without the residual.
trait Encoder: fmt::Debug + Send {
    /// Replaces the values by the sum of the sent parts of all leaders' values and residuals, and the residual by the unsent part
    /// of this leader. Returns whether all values are finite, identical on all leaders.
    fn all_reduce(
        &mut self,
        leaders: &mut Communicator,
        values: &mut [f32],
        residual: &mut [f32],
    ) -> Result<bool>;

    /// Sets the seed of random numbers, if it uses any.
    fn seed(&mut self, _: u64) {}

    /// Returns the encoder's state for each tensor, identical on all leaders; empty if it has none.
    fn state(&mut self) -> Vec<&mut [f32]> {
        Vec::new()
    }
}

impl Compressor {
    /// Creates a compressor for arrays that hold tensors of these shapes, row-major, one after the other. All ranks create it with the same
    /// arguments.
    ///
    /// # Panics
    /// If the compression is not [valid](Compression::is_valid), or does not support [an array of this size](Compression::check).
    pub fn new(levels: &Levels, compression: Compression, shapes: &[&[usize]]) -> Self {
        assert!(compression.is_valid(), "{compression}: expected one of {}", Compression::NAMES);
        let count = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
        compression.check(count).unwrap_or_else(|error| panic!("{error}"));
        let encoder: Box<dyn Encoder> = match compression {
            Compression::Int8 => Box::new(Quantized::<Int8>::new(shapes.len())),
            Compression::Int8Stochastic => Box::new(Quantized::<Int8Stochastic>::new(shapes.len())),
            Compression::Int4 => Box::new(Quantized::<Int4>::new(shapes.len())),
            Compression::Int4Stochastic => Box::new(Quantized::<Int4Stochastic>::new(shapes.len())),
            Compression::OneBit => Box::new(Quantized::<OneBit>::new(shapes.len())),
            Compression::TopK { fraction } => Box::new(TopK::new(fraction)),
            Compression::Threshold { least } => Box::new(Threshold::new(least)),
            Compression::PowerSgd { rank } => Box::new(PowerSgd::new(rank, shapes)),
        };
        let state = State {
            encoder,
            residual: vec![0.0; count],
            padding: Vec::new(),
            is_restored: false,
            has_sent: false,
            is_finite: true,
        };
        Self { levels: levels.clone(), state: Arc::new(Mutex::new(state)) }
    }

    /// Declares elements between tensors that have no meaning. All ranks pass zeros there, and they stay zeros, even if the encoding does
    /// not keep zeros.
    ///
    /// # Panics
    /// If a range is not within the array.
    #[must_use]
    pub fn with_padding(self, padding: Vec<Range<usize>>) -> Self {
        let mut state = lock(&self.state);
        assert!(padding.iter().all(|range| range.end <= state.residual.len()), "padding within the array");
        state.padding = padding;
        drop(state);
        self
    }

    /// Sets the seed of formats that round at random; the default is 0. Compressors with different seeds round independently of each
    /// other, and so do the ranks and the calls of one compressor.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        lock(&self.state).encoder.seed(seed);
        self
    }

    /// Replaces the values by the sum of those of all ranks. All ranks call it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// If the array does not have the size of the shapes.
    pub fn all_reduce(&self, comm: &mut Communicator, values: &mut [f32]) -> Result<()> {
        match &self.levels.0 {
            Some(levels) => comm.work(|| self.run(levels, values)),
            None => {
                self.add_restored(values);
                comm.all_reduce(values, ReduceOp::Sum).map(drop)
            }
        }
    }

    /// Starts an all-reduce on the communication thread, as [`Communicator::all_reduce_async`] does.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    ///
    /// # Panics
    /// As [`Compressor::all_reduce`].
    pub fn all_reduce_async<B>(&self, comm: &mut Communicator, mut values: B) -> Result<Request<B>>
    where
        B: DerefMut<Target = [f32]> + Send + 'static,
    {
        let Some(levels) = self.levels.0.clone() else {
            self.add_restored(&mut values);
            return comm.all_reduce_async(values, ReduceOp::Sum);
        };
        let compressor = self.clone();
        work_async(comm, values, move |values| compressor.run(&levels, values))
    }

    fn run(&self, levels: &Mutex<Groups>, values: &mut [f32]) -> Result<()> {
        let mut state = self.state_for(values);
        let State { encoder, residual, padding, has_sent, is_finite, .. } = &mut *state;
        if values.is_empty() {
            return Ok(());
        }
        let Groups { node, leaders } = &mut *lock(levels);
        if let Some(node) = node {
            node.reduce(values, ReduceOp::Sum, 0)?;
        }
        if let Some(leaders) = leaders {
            *has_sent = true;
            *is_finite = encoder.all_reduce(leaders, values, residual)?;
            for range in padding {
                values[range.clone()].fill(0.0);
                residual[range.clone()].fill(0.0);
            }
        }
        if let Some(node) = node {
            node.broadcast(values, 0)?;
            let mut flag = [u8::from(*is_finite)];
            node.broadcast(&mut flag, 0)?;
            *is_finite = flag == [1];
        }
        Ok(())
    }

    fn state_for(&self, values: &[f32]) -> MutexGuard<'_, State> {
        let state = lock(&self.state);
        assert_eq!(values.len(), state.residual.len(), "the array has the size of the shapes");
        state
    }

    /// Adds a restored residual, if nothing is compressed any more.
    fn add_restored(&self, values: &mut [f32]) {
        let mut state = self.state_for(values);
        state.has_sent = std::mem::take(&mut state.is_restored);
        if state.has_sent {
            values.iter_mut().zip(&state.residual).for_each(|(value, residual)| *value += residual);
            state.residual.fill(0.0);
        }
    }

    /// Returns whether all values of the last array were finite on all ranks; identical on all ranks. Always true if nothing is
    /// compressed. Wait for the call's request first.
    pub fn was_finite(&self) -> bool {
        lock(&self.state).is_finite
    }

    /// Returns the residual of this rank, the leader of its node: the part of the gradients that it has not sent yet, one element for each
    /// of the array's. Save it in a checkpoint, and [restore](Self::restore) it. Wait for the call's request
    /// first.
    pub fn residual(&self) -> Vec<f32> {
        lock(&self.state).residual.clone()
    }

    /// Adds the sums of the last call, which no rank uses, to the residual of this rank, the leader of its node, unless they contain no
    /// residuals. One rank calls it, after it has waited for the call's request.
    pub fn keep(&self, sums: &[f32]) {
        let State { residual, is_restored, has_sent, .. } = &mut *lock(&self.state);
        if !std::mem::take(has_sent) {
            return;
        }
        *is_restored = true;
        residual.iter_mut().zip(sums).for_each(|(residual, sum)| *residual += sum);
    }

    /// Returns the encoder's state for each tensor, which is identical on all leaders; empty if it has none. Wait for the call's
    /// request first.
    pub fn encoder_state(&self) -> Vec<Vec<f32>> {
        lock(&self.state).encoder.state().into_iter().map(|values| values.to_vec()).collect()
    }

    /// Restores the residual of this rank, the leader of its node, and the encoder's state.
    ///
    /// Only the sum of all residuals matters, not their assignment to leaders. With fewer nodes, add the residuals of the missing
    /// nodes to others. Wait for the call's request first.
    ///
    /// # Panics
    /// If they do not have the sizes of [`residual`](Self::residual) and [`encoder_state`](Self::encoder_state).
    pub fn restore(&self, residual: &[f32], encoder_state: &[Vec<f32>]) {
        let mut state = lock(&self.state);
        state.is_restored = true;
        state.residual.copy_from_slice(residual);
        let places = state.encoder.state();
        assert_eq!(places.len(), encoder_state.len(), "a state for each tensor");
        places.into_iter().zip(encoder_state).for_each(|(place, saved)| place.copy_from_slice(saved));
    }
}

/// Locks a mutex. If a thread has panicked while it held the lock, its world has failed, and the contents are not used again.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
