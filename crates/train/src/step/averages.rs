//! The averages of the parameters in their place, to evaluate them.

use bytemuck::cast_vec;

use super::Mirror;
use crate::error::TrainError;
use crate::optimizer::averaged::AVERAGE;
use crate::replica::Replica;
use unisono::{Communicator, ReduceOp};

impl<R: Replica> Mirror<R> {
    /// Returns the [averages](crate::optimizer::Averaged) of all trained parameters, with their indices, once a step is made; none if the
    /// optimizer keeps none. Called by all ranks.
    pub(crate) fn averages(&mut self, comm: &mut Communicator) -> Result<Vec<(usize, Vec<f32>)>, TrainError> {
        self.settle()?;
        let mut averages = Vec::new();
        if !self.is_averaged || self.backend.optimizer()?.steps() == 0 {
            return Ok(averages);
        }
        let own = self.backend.optimizer()?.state().filter(|(name, ..)| *name == AVERAGE);
        let own: Vec<_> = own.map(|(_, index, values)| (index, values.to_vec())).collect();
        for (index, mut values) in own {
            if !self.replica.parameters()[index].is_trained {
                continue;
            }
            if let Some(mut bits) = self.backend.buckets().bits(index, &values) {
                comm.all_reduce(&mut bits, ReduceOp::Sum)?;
                values = cast_vec(bits);
            }
            averages.push((index, values));
        }
        Ok(averages)
    }

    /// Exchanges the values of these parameters with these arrays.
    pub(crate) fn exchange(&mut self, arrays: &mut [(usize, Vec<f32>)]) -> Result<(), TrainError> {
        for (index, array) in arrays {
            self.replica.with_values(*index, &mut |values| values.swap_with_slice(array))?;
        }
        Ok(())
    }
}
