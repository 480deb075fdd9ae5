//! All-reduces of gradients that send fewer bytes between nodes, with error feedback.
//!
//! Within a node, values are summed unencoded. The leaders of the nodes exchange the encoded sums. A leader keeps the residual,
//! which the encoding does not represent, and adds it to the next gradients (*error feedback*). So it arrives late, but is not
//! lost.
//!
//! **Source** of error feedback: Seide, Fu, Droppo, Li and Yu, "1-bit stochastic gradient descent and its application to data-parallel
//! distributed training of speech DNNs", Interspeech 2014; Karimireddy, Rebjock, Stich and Jaggi, "Error feedback fixes SignSGD and
//! other gradient compression schemes", ICML 2019.

#![forbid(unsafe_code)]

mod compressor;
#[doc(hidden)]
pub mod kernels;

pub use compressor::{Compression, Compressor, Levels, Prices, UnknownCompression, UnknownWire, Wire};
