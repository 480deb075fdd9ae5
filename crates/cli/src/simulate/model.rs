//! The gradients of a model, without the model itself.

use std::fs;
use std::path::Path;
use std::str::FromStr;

/// The number of inputs of the MLP of `train` and `bench-step`: images of 28 x 28 pixels. There are ten classes.
const MLP_INPUTS: usize = 28 * 28;
const MLP_CLASSES: usize = 10;

/// The number of square matrices for a given number of parameters, about the number of layers of a deep network.
const LAYERS: usize = 50;

/// The maximum number of parameters. More do not fit any machine.
const MOST_PARAMETERS: f64 = 1e12;

/// The shapes of the parameters, from the first layer to the last.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Model(pub(super) Vec<Vec<usize>>);

impl Model {
    /// Returns a model with this many parameters in about 50 square matrices.
    pub(super) fn of_parameters(parameters: usize) -> Self {
        let side = (parameters / LAYERS).isqrt().max(1);
        let matrices = parameters / (side * side);
        let rest = parameters % (side * side);
        let mut shapes = vec![vec![side, side]; matrices];
        shapes.extend((rest > 0).then(|| vec![rest]));
        Self(shapes)
    }

    /// Reads a file with one shape per line.
    pub(super) fn read(file: &Path) -> Result<Self, String> {
        let name = file.display();
        let text = fs::read_to_string(file).map_err(|error| format!("cannot read `{name}`: {error}"))?;
        let mut shapes = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                let wrong =
                    || format!("`{name}`, line {number}: expected a shape, such as 64x3x7x7, got {line:?}");
                shapes.push(shape(line).ok_or_else(wrong)?);
            }
        }
        let count: f64 = shapes.iter().map(|shape| count(shape)).sum();
        if shapes.is_empty() || count > MOST_PARAMETERS {
            return Err(format!("`{name}` has {count} parameters: expected 1 to 1000G"));
        }
        Ok(Self(shapes))
    }

    pub(super) fn parameters(&self) -> usize {
        self.0.iter().map(|shape| shape.iter().product::<usize>()).sum()
    }
}

fn shape(text: &str) -> Option<Vec<usize>> {
    let shape: Vec<usize> = text.split('x').map(str::parse).collect::<Result<_, _>>().ok()?;
    (!shape.contains(&0) && count(&shape) <= MOST_PARAMETERS).then_some(shape)
}

/// Returns the number of elements of a shape, as a float that cannot overflow.
fn count(shape: &[usize]) -> f64 {
    shape.iter().map(|&size| size as f64).product()
}

/// Parses `mlp:1024,1024`.
impl FromStr for Model {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let widths = text.strip_prefix("mlp:").and_then(|hidden| {
            let hidden: Vec<usize> = hidden.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
            Some([&[MLP_INPUTS], &hidden[..], &[MLP_CLASSES]].concat())
        });
        let layers = widths.filter(|widths| {
            let count: f64 = widths.windows(2).map(count).sum();
            !widths.contains(&0) && count <= MOST_PARAMETERS
        });
        let layers =
            layers.ok_or("expected mlp: and the widths of its hidden layers, such as mlp:1024,1024")?;
        Ok(Self(layers.windows(2).flat_map(|pair| [vec![pair[1], pair[0]], vec![pair[1]]]).collect()))
    }
}

/// Parses a number of parameters. K, M and G mean thousands, millions and billions.
pub(super) fn parameters(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.chars().last() {
        Some('K' | 'k') => (&text[..text.len() - 1], 1e3),
        Some('M' | 'm') => (&text[..text.len() - 1], 1e6),
        Some('G' | 'g') => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    let count = digits.parse().ok().map(|number: f64| (number * unit).round());
    let count = count.filter(|count| (1.0..=MOST_PARAMETERS).contains(count));
    count
        .map(|count| count as usize)
        .ok_or_else(|| "expected 1 to 1000G parameters, such as 25.6M".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_has_the_requested_parameters() {
        let mlp: Model = "mlp:1024,1024".parse().unwrap();
        assert_eq!(mlp.parameters(), 1_863_690);
        for count in [1, 49, 50, 999, 25_600_000] {
            assert_eq!(Model::of_parameters(count).parameters(), count);
        }
        for wrong in ["mlp", "mlp:", "mlp:0", "mlp:1024,x", "cnn:3", "mlp:99999999999,99999999999"] {
            assert!(wrong.parse::<Model>().is_err(), "{wrong}");
        }
        assert_eq!(parameters("25.6M"), Ok(25_600_000));
        assert!(["0", "x", "", "2000G", "NaN", "1é"].iter().all(|wrong| parameters(wrong).is_err()));
    }
}
