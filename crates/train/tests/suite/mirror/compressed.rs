//! Gradients that are compressed between nodes. Each node consists of threads of this process.

use unisono_compress::Compression;
use unisono_train::metrics::VisitOutputs;
use unisono_train::{
    BucketSettings, Gradients, LossSums, Mirror, OptimizerSettings, Parameter, Replica, ReplicaError, Sgd,
    Share, TrainError, Wire,
};

use super::line::{on_nodes, sgd};
use unisono_testing::suite::{self, Test};
use unisono_testing::tests;

const ROWS: usize = 24;
const COLUMNS: usize = 32;

/// Learns a matrix, by least squares, from its products with vectors.
struct Products {
    parameters: [Parameter; 2],
    values: [Vec<f32>; 2],
}

/// Returns the elements of the matrix to learn, which has full rank.
fn wanted(row: usize, column: usize) -> f32 {
    ((row * 31 + column * 17) % 23) as f32 / 23.0 - 0.5
}

/// A vector, different in each sample.
type Sample = Vec<f32>;

fn samples(rank: usize, step: usize) -> Vec<Sample> {
    let number = |at: usize| ((at * 7919 + rank * 104_729 + step * 1299) % 1000) as f32 / 1000.0 - 0.5;
    (0..16).map(|sample| (0..COLUMNS).map(|at| number(sample * COLUMNS + at)).collect()).collect()
}

impl Products {
    fn new() -> Self {
        let parameters = [Parameter::new("bias", [ROWS]), Parameter::new("weight", [ROWS, COLUMNS])];
        Self { parameters, values: [vec![0.0; ROWS], vec![0.0; ROWS * COLUMNS]] }
    }

    fn errors(&self, sample: &Sample) -> Vec<f32> {
        let error = |row: usize| {
            let products = (0..COLUMNS).map(|column| {
                (self.values[1][row * COLUMNS + column] - wanted(row, column)) * sample[column]
            });
            products.sum::<f32>() + self.values[0][row]
        };
        (0..ROWS).map(error).collect()
    }
}

impl Replica for Products {
    type Batch = Vec<Sample>;

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn pass(&mut self, samples: &Vec<Sample>, gradients: &mut dyn Gradients) -> Result<(), ReplicaError> {
        gradients.record_loss(self.evaluate(samples, None)?);
        let (mut weight, mut bias) = (vec![0.0; ROWS * COLUMNS], vec![0.0; ROWS]);
        for sample in samples {
            for (row, error) in self.errors(sample).into_iter().enumerate() {
                bias[row] += error;
                let row = &mut weight[row * COLUMNS..][..COLUMNS];
                row.iter_mut().zip(sample).for_each(|(sum, value)| *sum += error * value);
            }
        }
        gradients.put(1, &mut |gradient, fill| fill.write(gradient, &weight));
        gradients.put(0, &mut |gradient, fill| fill.write(gradient, &bias));
        Ok(())
    }

    fn evaluate(
        &mut self,
        samples: &Vec<Sample>,
        _: Option<VisitOutputs<'_>>,
    ) -> Result<LossSums, ReplicaError> {
        let squares = samples.iter().flat_map(|sample| self.errors(sample));
        let loss = squares.map(|error| f64::from(error).powi(2)).sum();
        Ok(LossSums { targets: samples.len() as f64, loss, correct: 0.0 })
    }

    fn with_values(&mut self, index: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError> {
        visit(&mut self.values[index]);
        Ok(())
    }
}

const FORMATS: [&str; 7] =
    ["int8", "int4", "int4:stochastic", "onebit", "topk:0.1", "threshold:0.01", "powersgd:2"];

fn wire(name: &str) -> BucketSettings {
    BucketSettings { wire: name.parse().unwrap(), ..BucketSettings::default() }
}

/// Returns the mean loss of the last of these steps.
fn loss_after(steps: usize, nodes: &[usize], settings: &BucketSettings) -> f64 {
    after(steps, nodes, settings).0
}

/// Returns the mean loss of the last of these steps, and the hash of the learned values.
fn after(steps: usize, nodes: &[usize], settings: &BucketSettings) -> (f64, u64) {
    // At 0.05, the delay of 1-bit gradients is too large.
    let rate = 0.02;
    let ended = on_nodes(nodes, |mut comm| -> Result<_, TrainError> {
        let mut mirror = Mirror::new(&mut comm, Products::new(), sgd(), settings, None)?;
        let mut loss = f64::NAN;
        for step in 0..steps {
            let batch = [Some(samples(comm.rank(), step))];
            loss = mirror.step(&mut comm, Share::of(&batch), rate, |_| true)?.sums.tally.mean_loss();
        }
        Ok((loss, mirror.hash()?))
    });
    let ended: Vec<_> = ended.into_iter().map(Result::unwrap).collect();
    assert!(ended.windows(2).all(|pair| pair[0] == pair[1]), "all ranks hold the same: {ended:?}");
    ended[0]
}

fn training_with_compressed_gradients_converges() {
    let all = [&[1, 1][..], &[2, 1]];
    for nodes in all.into_iter().take(if suite::is_deep() { 2 } else { 1 }) {
        let begins = loss_after(1, nodes, &BucketSettings::default());
        let exact = loss_after(1000, nodes, &BucketSettings::default());
        assert!(exact < begins / 20.0, "{begins} became {exact}");
        for format in FORMATS {
            let compressed = loss_after(1000, nodes, &wire(format));
            assert!(compressed < begins / 15.0, "{format} over {nodes:?}: {begins} became {compressed}");
        }
    }
}

fn compression_within_one_node_has_the_bits_of_f32() {
    for format in FORMATS {
        assert_eq!(loss_after(20, &[2], &wire(format)), loss_after(20, &[2], &wire("f32")));
    }
}

fn first_steps_can_be_uncompressed() {
    let hash_after = |steps, settings: &BucketSettings| after(steps, &[1, 1], settings).1;
    let late = BucketSettings { uncompressed_steps: 3, ..wire("int4") };
    assert_eq!(hash_after(3, &late), hash_after(3, &wire("f32")));
    assert_ne!(hash_after(4, &late), hash_after(4, &wire("f32")));
}

fn compressed_gradient_that_is_not_finite_is_named_on_all_ranks() {
    for format in FORMATS {
        let ended = on_nodes(&[1, 2], |mut comm| {
            let mut mirror = Mirror::new(&mut comm, Products::new(), sgd(), &wire(format), None)?;
            let mut batch = samples(comm.rank(), 0);
            if comm.rank() == 2 {
                batch[3][4] = f32::INFINITY;
            }
            mirror.step(&mut comm, Share::of(&[Some(batch)]), 0.3, |_| true).map(drop)
        });
        for ended in ended {
            assert!(
                matches!(&ended, Err(TrainError::NotFinite { parameter, .. }) if parameter == "weight"),
                "{ended:?}"
            );
        }
    }
}

fn steps_without_an_update_do_not_lose_residuals() {
    // The gradient of the weight is zero for samples of zeros, so their steps send only its residual.
    let zeros = || Some(vec![vec![0.0; COLUMNS]; 16]);
    let learned = |without: usize, is_made: bool| {
        let mut ended = on_nodes(&[1, 1], |mut comm| -> Result<_, TrainError> {
            let rule = Sgd { momentum: 0.0, nesterov: false };
            let optimizer = OptimizerSettings { weight_decay: 0.0, ..OptimizerSettings::new(rule) };
            let mut mirror = Mirror::new(&mut comm, Products::new(), optimizer, &wire("topk:0.1"), None)?;
            let first = [Some(samples(comm.rank(), 0))];
            mirror.step(&mut comm, Share::of(&first), 0.02, |_| true)?;
            for _ in 0..without {
                // Steps without samples, or steps that are not made because rank 1 has no samples.
                let batch = [zeros().filter(|_| !is_made && comm.rank() == 0)];
                mirror.step(&mut comm, Share::of(&batch), 0.02, |_| is_made)?;
            }
            for _ in 0..40 {
                mirror.step(&mut comm, Share::of(&[zeros()]), 0.02, |_| true)?;
            }
            Ok(mirror.replica().values[1].clone())
        });
        ended.swap_remove(0).unwrap()
    };
    let expected = learned(0, true);
    let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    for is_made in [true, false] {
        let found = learned(5, is_made);
        let apart = expected.iter().zip(&found).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
        assert!(largest > 0.0 && apart < 0.01 * largest, "{apart} of {largest}, made: {is_made}");
    }
}

fn step_that_is_not_made_has_no_effect_where_nothing_is_compressed() {
    let hash_after = |nodes: &[usize], settings: &BucketSettings| {
        let mut ended = on_nodes(nodes, |mut comm| -> Result<_, TrainError> {
            let mut mirror = Mirror::new(&mut comm, Products::new(), sgd(), settings, None)?;
            for step in 0..6 {
                let batch = [Some(samples(comm.rank(), step))];
                mirror.step(&mut comm, Share::of(&batch), 0.02, |_| step != 2)?;
            }
            mirror.hash()
        });
        ended.swap_remove(0).unwrap()
    };
    let late = BucketSettings { uncompressed_steps: 4, ..wire("int8") };
    let late_and_last = BucketSettings { uncompressed_steps: 5, ..wire("int8") };
    assert_eq!(hash_after(&[2], &wire("int8")), hash_after(&[2], &wire("f32")));
    assert_eq!(hash_after(&[1, 1], &late_and_last), hash_after(&[1, 1], &wire("f32")));
    assert_ne!(hash_after(&[1, 1], &late), hash_after(&[1, 1], &wire("f32")));
}

fn wire_formats_round_trip_through_text() {
    let compressed = Wire::Compressed(Compression::PowerSgd { rank: 4 });
    for (wire, name) in
        [(Wire::F32, "f32"), (Wire::Bf16, "bf16"), (Wire::F16, "f16"), (compressed, "powersgd:4")]
    {
        assert_eq!((wire.to_string().as_str(), name.parse()), (name, Ok(wire)));
    }
    let error = "f8".parse::<Wire>().unwrap_err().to_string();
    assert!(error.contains("`f8`") && error.contains("powersgd:RANK"), "{error}");
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        training_with_compressed_gradients_converges,
        compression_within_one_node_has_the_bits_of_f32,
        first_steps_can_be_uncompressed,
        compressed_gradient_that_is_not_finite_is_named_on_all_ranks,
        steps_without_an_update_do_not_lose_residuals,
        step_that_is_not_made_has_no_effect_where_nothing_is_compressed,
        wire_formats_round_trip_through_text,
    ]
}
