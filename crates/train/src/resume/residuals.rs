//! The residuals of compressors, and the states of their encoders, in a checkpoint.

use std::collections::HashMap;

use super::moment_name;
use crate::buckets::Unsent;
use crate::checkpoint::Tensor;

/// What compressors had not sent, and the state of their encoders, by the names under which they are saved.
pub(super) fn unsent(saved: Vec<Tensor>, names: &[String]) -> Unsent {
    let mut unsent = Unsent::default();
    for Tensor { name, values, .. } in saved {
        let Some((parameter, what)) = name.rsplit_once(':') else { continue };
        let Some(index) = names.iter().position(|name| name == parameter) else { continue };
        if what == ENCODER_STATE {
            unsent.states.insert(index, values);
        } else if let Some(node) = what.strip_prefix(RESIDUAL).and_then(|node| node.parse::<usize>().ok()) {
            let nodes = unsent.residuals.len().max(node + 1);
            unsent.residuals.resize_with(nodes, HashMap::new);
            unsent.residuals[node].insert(index, values);
        }
    }
    unsent
}

/// The name of what a node has not sent of a parameter's gradient, before the node's number.
const RESIDUAL: &str = "residual of node ";
/// The name of the state of the encoder of a parameter's gradient.
const ENCODER_STATE: &str = "encoding";

/// What compressors have not sent, and the state of their encoders, to be saved.
pub(super) fn tensors_of(unsent: Unsent, names: &[String]) -> Vec<Tensor> {
    let of_node = |(node, values): (usize, HashMap<usize, Vec<f32>>)| {
        values.into_iter().map(move |(index, values)| (index, format!("{RESIDUAL}{node}"), values))
    };
    let residuals = unsent.residuals.into_iter().enumerate().flat_map(of_node);
    let states = unsent.states.into_iter().map(|(index, values)| (index, ENCODER_STATE.to_owned(), values));
    let mut all: Vec<_> = residuals.chain(states).filter(|(_, _, values)| !values.is_empty()).collect();
    all.sort_unstable_by(|(one, what, _), (other, other_what, _)| (one, what).cmp(&(other, other_what)));
    let tensor = |(index, what, values): (usize, String, Vec<f32>)| Tensor {
        name: moment_name(&names[index], &what),
        shape: vec![values.len()],
        values,
    };
    all.into_iter().map(tensor).collect()
}
