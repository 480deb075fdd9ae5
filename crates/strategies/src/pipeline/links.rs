//! The messages between neighbours of a pipeline.

use unisono::{Communicator, Error, Request};
use unisono_steps::pipeline::Pass;

use super::Activations;
use unisono_train::{LossSums, ReplicaError};

/// The maximum number of dimensions of a shape.
const DIMENSIONS: usize = 7;
/// The size of a header: the loss sums, the number of dimensions, and the dimensions.
const HEAD: usize = 4 + DIMENSIONS;

/// The links of a rank to the next and the previous rank, in a ring: interleaved stages also lead from the last rank to the first.
///
/// Each direction between two ranks has a separate communicator, because the calls of a communicator run in order. A send that waits for its receiver
/// must not delay a receive.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// To the ranks that need this rank's activations (first) and gradients (second).
    to: [Option<Communicator>; 2],
    /// From the ranks whose activations and gradients this rank needs, in the same order.
    from: [Option<Communicator>; 2],
    heads: Vec<Request<Vec<u64>>>,
    values: Vec<Request<Vec<f32>>>,
}

/// The ranks of a link.
const SENDER: usize = 0;
const RECEIVER: usize = 1;

impl Links {
    /// Connects all neighbours. Called by all ranks.
    pub(super) fn of(comm: &mut Communicator) -> Result<Self, Error> {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let mut links = Self::default();
        if ranks == 1 {
            return Ok(links);
        }
        for one in 0..ranks {
            let next = (one + 1) % ranks;
            let [activations, gradients] = [comm.group(&[one, next])?, comm.group(&[next, one])?];
            if rank == one {
                (links.to[0], links.from[1]) = (activations, gradients);
            } else if rank == next {
                (links.from[0], links.to[1]) = (activations, gradients);
            }
        }
        Ok(links)
    }

    /// Sends the result of a pass to the rank that needs it, with the loss known so far. Does not wait for its receipt.
    pub(super) fn send(
        &mut self,
        of: Pass,
        result: Activations,
        tally: LossSums,
    ) -> Result<(), ReplicaError> {
        let link =
            self.to[usize::from(of.is_backward)].as_mut().expect("a pipeline of one rank sends nothing");
        let Activations { shape, values } = result;
        if shape.len() > DIMENSIONS {
            let count = shape.len();
            return Err(format!("the {of} returned {count} dimensions: expected at most {DIMENSIONS}").into());
        }
        let mut head = bytemuck::cast::<_, [u64; 3]>(tally).to_vec();
        head.push(shape.len() as u64);
        head.extend(shape.iter().map(|&size| size as u64));
        head.resize(HEAD, 0);
        self.heads.push(link.send_async(head, RECEIVER)?);
        self.values.push(link.send_async(values, RECEIVER)?);
        Ok(())
    }

    pub(super) fn receive(&mut self, of: Pass) -> Result<(Activations, LossSums), Error> {
        let link =
            self.from[usize::from(of.is_backward)].as_mut().expect("a pipeline of one rank receives nothing");
        let mut head = [0_u64; HEAD];
        link.receive(&mut head, SENDER)?;
        let [targets, loss, correct, dimensions, sizes @ ..] = head;
        let shape: Vec<_> = sizes[..dimensions as usize].iter().map(|&size| size as usize).collect();
        let mut values = vec![0.0; shape.iter().product()];
        link.receive(&mut values, SENDER)?;
        Ok((Activations { shape, values }, bytemuck::cast([targets, loss, correct])))
    }

    pub(super) fn wait(&mut self) -> Result<(), Error> {
        self.heads.drain(..).try_for_each(|head| head.wait().map(drop))?;
        self.values.drain(..).try_for_each(|values| values.wait().map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_with_too_many_dimensions_is_refused() {
        unisono::threads(2, |mut comm| {
            let mut links = Links::of(&mut comm).unwrap();
            let of = Pass { is_backward: false, stage: comm.rank(), micro_batch: 3 };
            let result = Activations { shape: vec![1; DIMENSIONS + 1], values: vec![0.0] };
            let refused = links.send(of, result, LossSums::default()).unwrap_err().to_string();
            assert!(refused.ends_with("returned 8 dimensions: expected at most 7"), "{refused}");
        });
    }
}
