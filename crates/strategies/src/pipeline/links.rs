//! The messages between neighbours of a pipeline.

use unisono::{Communicator, Error, Request};
use unisono_steps::pipeline::Pass;

use super::Activations;
use unisono_train::LossSums;

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
    /// Activations to the next rank, and from the previous one.
    to_next: Option<Communicator>,
    from_previous: Option<Communicator>,
    /// Gradients to the previous rank, and from the next one.
    to_previous: Option<Communicator>,
    from_next: Option<Communicator>,
    in_flight: Vec<Sent>,
}

#[derive(Debug)]
enum Sent {
    Head(Request<Vec<u64>>),
    Values(Request<Vec<f32>>),
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
                (links.to_next, links.from_next) = (activations, gradients);
            } else if rank == next {
                (links.from_previous, links.to_previous) = (activations, gradients);
            }
        }
        Ok(links)
    }

    /// Sends the result of a pass to the rank that needs it, with the loss known so far. Does not wait for its receipt.
    pub(super) fn send(&mut self, of: Pass, result: Activations, tally: LossSums) -> Result<(), Error> {
        let link = if of.is_backward { &mut self.to_previous } else { &mut self.to_next };
        let link = link.as_mut().expect("a pipeline of one rank sends nothing");
        let Activations { shape, values } = result;
        assert!(shape.len() <= DIMENSIONS, "stages pass on at most {DIMENSIONS} dimensions, not {shape:?}");
        let mut head = bytemuck::cast::<_, [u64; 3]>(tally).to_vec();
        head.push(shape.len() as u64);
        head.extend(shape.iter().map(|&size| size as u64));
        head.resize(HEAD, 0);
        self.in_flight.push(Sent::Head(link.send_async(head, RECEIVER)?));
        self.in_flight.push(Sent::Values(link.send_async(values, RECEIVER)?));
        Ok(())
    }

    /// Waits for the result of another rank's pass.
    pub(super) fn receive(&mut self, of: Pass) -> Result<(Activations, LossSums), Error> {
        let link = if of.is_backward { &mut self.from_next } else { &mut self.from_previous };
        let link = link.as_mut().expect("a pipeline of one rank receives nothing");
        let mut head = [0_u64; HEAD];
        link.receive(&mut head, SENDER)?;
        let [targets, loss, correct, dimensions, sizes @ ..] = head;
        let shape: Vec<_> = sizes[..dimensions as usize].iter().map(|&size| size as usize).collect();
        let mut values = vec![0.0; shape.iter().product()];
        link.receive(&mut values, SENDER)?;
        Ok((Activations { shape, values }, bytemuck::cast([targets, loss, correct])))
    }

    /// Waits until all messages are sent.
    pub(super) fn wait(&mut self) -> Result<(), Error> {
        for sent in self.in_flight.drain(..) {
            match sent {
                Sent::Head(request) => drop(request.wait()?),
                Sent::Values(request) => drop(request.wait()?),
            }
        }
        Ok(())
    }
}
