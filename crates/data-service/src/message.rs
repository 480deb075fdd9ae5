//! The messages between servers and clients, as protocol buffers.

use prost::Message;
use prost::bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use unisono_data::{Kind, Pass, Schema, Values};

/// The version of this program. Servers and clients must have the same version, since another one may make other bits.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct DescribeRequest {}

/// The data set of a server.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Description {
    /// The [version](VERSION) of the server.
    #[prost(string, tag = "1")]
    pub(super) version: String,
    /// The name of the data set on its server.
    #[prost(string, tag = "2")]
    pub(super) source: String,
    /// The options with which it was loaded.
    #[prost(string, tag = "3")]
    pub(super) options: String,
    #[prost(fixed64, tag = "4")]
    pub(super) fingerprint: u64,
    /// A [`Kind`], as JSON.
    #[prost(string, tag = "5")]
    pub(super) kind: String,
    /// A [`Schema`](unisono_data::Schema), as JSON.
    #[prost(string, tag = "6")]
    pub(super) schema: String,
    /// The number of training samples.
    #[prost(uint64, tag = "7")]
    pub(super) train: u64,
    /// The number of held-out samples.
    #[prost(uint64, tag = "8")]
    pub(super) test: u64,
    /// The maximum number of batches that this server makes concurrently.
    #[prost(uint64, tag = "9")]
    pub(super) threads: u64,
}

impl Description {
    /// Returns a hash of everything that determines a batch, which is equal for all servers of a data set.
    pub(super) fn identity(&self) -> u64 {
        let mut hasher = Xxh3::new();
        for text in [&self.version, &self.options, &self.kind, &self.schema] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        for number in [self.fingerprint, self.train, self.test] {
            hasher.update(&number.to_le_bytes());
        }
        hasher.digest()
    }

    /// Returns the first difference from another description that affects a batch: its name, this value and the other value.
    pub(super) fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let samples = |of: &Self| format!("{} and {}", of.train, of.test);
        let fingerprint = |of: &Self| format!("{:016x}", of.fingerprint);
        let text = |what, of: fn(&Self) -> String| (what, of(self), of(other));
        [
            text("version", |of| of.version.clone()),
            text("options", |of| of.options.clone()),
            ("number of samples", samples(self), samples(other)),
            text("kind of samples", |of| of.kind.clone()),
            text("schema", |of| of.schema.clone()),
            ("fingerprint", fingerprint(self), fingerprint(other)),
        ]
        .into_iter()
        .find(|(_, own, other)| own != other)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(super) struct BatchRequest {
    /// The [identity](Description::identity) of the data set.
    #[prost(fixed64, tag = "1")]
    pub(super) identity: u64,
    #[prost(bool, tag = "2")]
    pub(super) is_held_out: bool,
    /// The training pass; `None` for evaluation.
    #[prost(message, optional, tag = "3")]
    pub(super) training: Option<Training>,
    #[prost(uint64, repeated, tag = "4")]
    pub(super) samples: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub(super) struct Training {
    #[prost(fixed64, tag = "1")]
    pub(super) seed: u64,
    #[prost(uint64, tag = "2")]
    pub(super) epoch: u64,
}

impl BatchRequest {
    pub(super) fn new(identity: u64, is_held_out: bool, samples: &[usize], pass: Pass) -> Self {
        let training = match pass {
            Pass::Training { seed, epoch } => Some(Training { seed, epoch }),
            Pass::Evaluation => None,
        };
        Self {
            identity,
            is_held_out,
            training,
            samples: samples.iter().map(|&sample| sample as u64).collect(),
        }
    }

    pub(super) fn pass(&self) -> Pass {
        self.training.map_or(Pass::Evaluation, |Training { seed, epoch }| Pass::Training { seed, epoch })
    }
}

/// A batch. Numbers are in little-endian order.
#[derive(Clone, PartialEq, Message)]
pub(super) struct BatchAnswer {
    #[prost(oneof = "Sent", tags = "1, 2, 3")]
    pub(super) inputs: Option<Sent>,
    /// The targets, as `u32`.
    #[prost(bytes = "bytes", tag = "4")]
    pub(super) targets: Bytes,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Sent {
    /// The levels of images, which the client normalises: a quarter of the bytes, with the same bits.
    #[prost(bytes = "bytes", tag = "1")]
    Levels(Bytes),
    /// Numbers, as `f32`.
    #[prost(bytes = "bytes", tag = "2")]
    Numbers(Bytes),
    /// Tokens, as `u32`.
    #[prost(bytes = "bytes", tag = "3")]
    Tokens(Bytes),
}

impl BatchAnswer {
    pub(super) fn new(inputs: Values, targets: &[u32]) -> Self {
        let inputs = match inputs {
            Values::Levels(levels) => Sent::Levels(levels.into()),
            Values::Numbers(numbers) => Sent::Numbers(bytes(&numbers, f32::to_le_bytes)),
            Values::Tokens(tokens) => Sent::Tokens(bytes(&tokens, u32::to_le_bytes)),
        };
        Self { inputs: Some(inputs), targets: bytes(targets, u32::to_le_bytes) }
    }

    /// Checks that the answer has `samples` samples of this shape. Returns their inputs and targets, or the problem.
    pub(super) fn values(&self, samples: usize, shape: Shape) -> Result<(Values, Vec<u32>), String> {
        let is_text = shape.context.is_some();
        let is_known = |numbers: &[u32]| numbers.iter().all(|&number| (number as usize) < shape.classes);
        let (inputs, found) = match self.inputs.as_ref().ok_or("its answer has no inputs")? {
            Sent::Levels(levels) => (Values::Levels(levels.to_vec()), levels.len()),
            Sent::Numbers(bytes) => (Values::Numbers(numbers(bytes, f32::from_le_bytes)), bytes.len() / 4),
            Sent::Tokens(bytes) => (Values::Tokens(numbers(bytes, u32::from_le_bytes)), bytes.len() / 4),
        };
        let is_right = match &inputs {
            Values::Tokens(tokens) => is_text && is_known(tokens),
            Values::Levels(_) | Values::Numbers(_) => !is_text,
        };
        let targets = numbers(&self.targets, u32::from_le_bytes);
        let expected = (samples * shape.inputs, samples * shape.targets());
        if (found, targets.len()) != expected || !is_right || !is_known(&targets) {
            return Err(format!(
                "its answer has {found} inputs and {} targets, some perhaps out of range: expected {} and {} for {samples} samples",
                targets.len(),
                expected.0,
                expected.1
            ));
        }
        Ok((inputs, targets))
    }
}

/// The numbers of values in a sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    inputs: usize,
    /// The number of values that a target or a token may have. The bits of a number may have any value.
    classes: usize,
    /// The length of a window if the samples are a text: each has this many targets.
    pub(super) context: Option<usize>,
}

impl Shape {
    pub(super) fn of(kind: &Kind, schema: &Schema) -> Self {
        let (inputs, classes, context) = match *kind {
            Kind::Images { height, width, channels, classes } => {
                (height.saturating_mul(width).saturating_mul(channels), classes, None)
            }
            Kind::Table { features, .. } if schema.target.is_some() => (features, usize::MAX, None),
            Kind::Table { features, classes } => (features, classes, None),
            Kind::Text { context, ref vocabulary } => (context, vocabulary.len(), Some(context)),
        };
        Self { inputs, classes, context }
    }

    fn targets(self) -> usize {
        self.context.unwrap_or(1)
    }

    /// Returns the maximum size of an answer with this many samples in bytes.
    pub(super) fn answer_bytes(self, samples: usize) -> usize {
        /// The overhead of a message.
        const FRAME: usize = 64;
        let sample_bytes = self.inputs.saturating_add(self.targets()).saturating_mul(size_of::<u32>());
        sample_bytes.saturating_mul(samples).saturating_add(FRAME)
    }
}

fn bytes<N: Copy>(numbers: &[N], bytes_of: fn(N) -> [u8; 4]) -> Bytes {
    numbers.iter().flat_map(|&number| bytes_of(number)).collect::<Vec<_>>().into()
}

fn numbers<N>(bytes: &[u8], number_of: fn([u8; 4]) -> N) -> Vec<N> {
    bytes.as_chunks().0.iter().map(|&bytes| number_of(bytes)).collect()
}

/// Queries a server for the other servers that it has found.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct ServersRequest {
    /// The [identity](Description::identity) of the data set.
    #[prost(fixed64, tag = "1")]
    pub(super) identity: u64,
}

/// The servers of a data set that one of them has found.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Servers {
    /// A random number drawn when this server started, which identifies it under several addresses.
    #[prost(fixed64, tag = "1")]
    pub(super) instance: u64,
    #[prost(string, repeated, tag = "2")]
    pub(super) addresses: Vec<String>,
    /// The maximum number of batches that this server makes concurrently.
    #[prost(uint64, tag = "3")]
    pub(super) threads: u64,
}

/// Requests that a server reports another one to its clients, until the request expires.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct JoinRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) description: Option<Description>,
    /// The address at which clients reach the joining server. An unspecified host stands for the sender of the request.
    #[prost(string, tag = "2")]
    pub(super) address: String,
}

#[cfg(test)]
mod tests;
