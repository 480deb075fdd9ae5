//! The choice among wire formats.

use std::fmt;
use std::str::FromStr;

use crate::{Parameter, TrainError};
use unisono::Communicator;
use unisono_compress::{Compression, Prices, UnknownWire, Wire};

/// One wire format, or several from which a run chooses the one with the shortest predicted time.
///
/// ```
/// use unisono_train::{Wire, Wires};
///
/// assert_eq!("bf16".parse(), Ok(Wires::One(Wire::Bf16)));
/// assert_eq!("auto:f32,bf16".parse(), Ok(Wires::Auto(vec![Wire::F32, Wire::Bf16])));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Wires {
    /// A fixed format.
    One(Wire),
    /// A non-empty list of candidates.
    Auto(Vec<Wire>),
}

impl FromStr for Wires {
    type Err = UnknownWire;

    fn from_str(text: &str) -> Result<Self, UnknownWire> {
        let Some(names) = text.strip_prefix("auto:") else { return Ok(Self::One(text.parse()?)) };
        let wire = |name: &str| match name.parse()? {
            Wire::Compressed(Compression::Threshold { .. }) => {
                Err(UnknownWire::Unpredictable(name.to_owned()))
            }
            wire => Ok(wire),
        };
        names.split(',').map(wire).collect::<Result<_, _>>().map(Self::Auto)
    }
}

impl fmt::Display for Wires {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(wire) => wire.fmt(f),
            Self::Auto(wires) => {
                let names: Vec<_> = wires.iter().map(Wire::to_string).collect();
                f.pad(&format!("auto:{}", names.join(",")))
            }
        }
    }
}

impl Wires {
    /// Returns the format with the shortest communication time for the gradients of these parameters, hidden or not, by the cost model. Also returns
    /// the reason. Called by all ranks with the same arguments; all receive rank 0's choice.
    ///
    /// # Errors
    /// The list is empty, the time of a format cannot be predicted, or communication failed.
    pub fn fastest(
        comm: &mut Communicator,
        wires: &[Wire],
        parameters: &[Parameter],
    ) -> Result<(Wire, String), TrainError> {
        let topology = comm.topology().clone();
        if topology.nodes() == 1 {
            return Ok((Wire::F32, "all ranks share a node".to_owned()));
        }
        let trained = parameters.iter().filter(|parameter| parameter.is_trained);
        let shapes: Vec<_> = trained.map(|parameter| &parameter.shape[..]).collect();
        let mut prices = Prices::of(comm);
        let price = |&wire: &Wire| {
            let time_us = prices.all_reduce_us(&topology, wire, &shapes);
            Ok((wire, time_us.map_err(TrainError::Setting)?))
        };
        let mut priced = wires.iter().map(price).collect::<Result<Vec<_>, TrainError>>()?;
        let least = priced.iter().enumerate().min_by(|(_, one), (_, other)| one.1.total_cmp(&other.1));
        let none = || TrainError::Setting("no wire format is given to choose from".to_owned());
        let mut chosen = [least.map(|(place, _)| place as u64).ok_or_else(none)?];
        comm.broadcast(&mut chosen, 0)?;
        let (wire, time_us) = priced.remove(chosen[0] as usize);
        let others: Vec<_> =
            priced.iter().map(|(wire, time_us)| format!("{wire} {:.1} ms", time_us / 1e3)).collect();
        let against =
            if others.is_empty() { String::new() } else { format!(", against {}", others.join(", ")) };
        Ok((wire, format!("predicted to travel for {:.1} ms a step{against}", time_us / 1e3)))
    }
}

#[cfg(test)]
mod tests {
    use unisono::{Topology, Unisono};

    use super::*;

    fn chosen(nodes: &[usize], wires: &str, shape: [usize; 2]) -> (Wire, String) {
        let Wires::Auto(wires) = wires.parse().unwrap() else { panic!("{wires} names several") };
        let world = Unisono::builder().nodes(Topology::from_node_sizes(nodes));
        let choices = world.on_threads(nodes.iter().sum(), |mut comm| {
            Wires::fastest(&mut comm, &wires, &[Parameter::new("weight", shape)]).unwrap()
        });
        let choices = choices.unwrap();
        assert!(choices.windows(2).all(|pair| pair[0] == pair[1]), "{choices:?}");
        choices.into_iter().next().unwrap()
    }

    #[test]
    fn fastest_format_is_chosen_with_a_reason() {
        let int8 = Wire::Compressed(Compression::Int8);
        let large = chosen(&[1, 1], "auto:f32,bf16,int8", [1024, 1024]);
        assert_eq!(large.0, int8);
        let why = large.1;
        assert!(why.contains(" ms a step, against f32 ") && why.contains(", bf16 "), "{why}");
        // The time of such small messages does not depend on their size, and int8 sends two.
        assert_eq!(chosen(&[1, 1], "auto:f32,int8", [2, 2]).0, Wire::F32);
        assert_eq!(chosen(&[2], "auto:bf16,int8", [1024, 1024]).0, Wire::F32);
        assert_eq!(chosen(&[2, 1], "auto:int8", [1024, 1024]).0, int8);
    }

    #[test]
    fn format_lists_round_trip_through_text() {
        for text in ["f32", "int8:stochastic", "auto:int8,bf16", "auto:powersgd:4,topk:0.01"] {
            assert_eq!(text.parse::<Wires>().unwrap().to_string(), text);
        }
        for (text, said) in [
            ("auto:", "no wire format is called ``"),
            ("auto:int8,f8", "`f8`"),
            ("auto:threshold:0.5", "depends on the gradients"),
        ] {
            let error = text.parse::<Wires>().unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
