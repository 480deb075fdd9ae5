//! Measures and checks collectives and messages: iterations start at a barrier, the time of the slowest rank counts, every result
//! is checked, and contenders alternate. The [doctor] diagnoses a machine and the launch of a program.
//!
//! ```
//! use unisono::{Algorithm, Choice, DType, Memory, Operation, ReduceOp};
//! use unisono_bench::{Settings, measure};
//!
//! let settings = Settings {
//!     contenders: vec![Choice::from(Algorithm::Ring), Choice::Auto],
//!     operations: vec![Operation::AllReduce.into()],
//!     sizes_bytes: vec![4096],
//!     dtype: DType::F32,
//!     op: ReduceOp::Sum,
//!     memory: Memory::Slice,
//!     iterations: Some(10),
//!     warm_up: 3,
//!     checks: true,
//!     overlap: false,
//! };
//! let rows = unisono::threads(2, |mut comm| {
//!     let mut rows = Vec::new();
//!     measure(&mut comm, &settings, |row| rows.push(row)).map(|_| rows)
//! });
//! for row in rows.into_iter().next().unwrap()? {
//!     assert_eq!(row.wrong, Some(0), "{row:?}");
//! }
//! # Ok::<(), unisono::Error>(())
//! ```
//!
//! # Features
//! - `nccl`: arrays in GPU memory.

#![forbid(unsafe_code)]

pub mod doctor;
mod measure;

pub use measure::{Operation, Row, Settings, Times, compressed, measure, room};
