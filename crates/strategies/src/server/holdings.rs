//! The parameters on all servers, as the coordinator restores and saves them.

use std::sync::Arc;

use super::layout::Layout;
use super::message::{Kind, Link, Message};
use super::shard::{Shard, ShardState};
use unisono_train::checkpoint::{Checkpoint, Tensor};
use unisono_train::internals::{Plan, saved_moment};
use unisono_train::optimizer::UpdateRule;
use unisono_train::{Parameter, Progress, Replica, Resumed, TrainError};

/// The coordinator's own shard, and its links to the other servers.
#[derive(Debug)]
pub(super) struct Holdings<'a> {
    pub(super) own: &'a Shard,
    /// The links to the other servers, from server 1 on.
    pub(super) others: Vec<Link>,
    pub(super) layout: Layout,
    pub(super) rule: Arc<dyn UpdateRule>,
    /// The number of updates that servers make in place of one step. Checkpoints count steps, like those of any other strategy.
    pub(super) updates_per_step: u64,
}

impl Holdings<'_> {
    /// Distributes the values of a replica, and the optimizer state of a checkpoint, to all servers.
    pub(super) fn restore(
        &mut self,
        replica: &mut impl Replica,
        resumed: Option<&Resumed>,
    ) -> Result<(), TrainError> {
        let parameters = replica.parameters().to_vec();
        let plan = self.layout.ledger(&parameters).plan;
        let mut held: Vec<_> = self.zeros(&plan);
        for (index, place) in (0..parameters.len()).filter_map(|index| Some((index, plan.place(index)?))) {
            let target = &mut held[place.bucket];
            replica.with_values(index, &mut |values| {
                target.values[place.range.clone()].copy_from_slice(values);
            })?;
            let Some(resumed) = resumed else { continue };
            target.updates = resumed.progress.updates * self.updates_per_step;
            for (moment, name) in target.moments.iter_mut().zip(self.rule.state_names()) {
                let saved = resumed.moment(&parameters[index], name)?;
                moment[place.range.clone()].copy_from_slice(saved);
            }
        }
        let of = |server| self.layout.of(server).map(|bucket| held[bucket].clone()).collect::<Vec<_>>();
        self.own.restore(&of(0));
        for (server, link) in (1..).zip(&mut self.others) {
            link.send(Message::new(Kind::Restore))?;
            of(server).iter().try_for_each(|held| held.send(link))?;
        }
        // Waits for all servers, because a worker may pull from them as soon as it has a share.
        self.others.iter_mut().try_for_each(|link| link.receive().map(drop))?;
        Ok(())
    }

    /// Returns the values and the optimizer state as a checkpoint in the format of all strategies.
    pub(super) fn checkpoint(
        &mut self,
        replica: &impl Replica,
        progress: &Progress,
    ) -> Result<Checkpoint<Progress>, TrainError> {
        let plan = self.layout.ledger(replica.parameters()).plan;
        let held = self.read(&plan)?;
        let (mut parameters, mut optimizer) = (Vec::new(), Vec::new());
        for (index, Parameter { name, shape, .. }) in replica.parameters().iter().enumerate() {
            let place = plan.place(index).expect("all parameters are trained");
            let held = &held[place.bucket];
            let values = held.values[place.range.clone()].to_vec();
            parameters.push(Tensor { name: name.clone(), shape: shape.clone(), values });
            for (moment, name_of_moment) in held.moments.iter().zip(self.rule.state_names()) {
                optimizer.push(saved_moment(name, name_of_moment, moment[place.range.clone()].to_vec()));
            }
        }
        let updates = held.iter().map(|held| held.updates).max().unwrap_or(0).div_ceil(self.updates_per_step);
        let state = Progress { updates, ..progress.clone() };
        Ok(Checkpoint { step: progress.step, state, parameters, optimizer })
    }

    fn read(&mut self, plan: &Plan) -> unisono::Result<Vec<ShardState>> {
        let mut held = self.zeros(plan);
        for (bucket, own) in self.layout.of(0).zip(self.own.read()) {
            held[bucket] = own;
        }
        for (server, link) in (1..).zip(&mut self.others) {
            link.send(Message::new(Kind::Read))?;
            self.layout.of(server).try_for_each(|bucket| held[bucket].receive(link))?;
        }
        Ok(held)
    }

    fn zeros(&self, plan: &Plan) -> Vec<ShardState> {
        let moments = self.rule.state_names().len();
        plan.counts.iter().map(|&count| ShardState::zeros(count, moments)).collect()
    }

    /// Ends the links to the other servers, and announces whether the run has stopped on request.
    pub(super) fn leave(&mut self, has_stopped: bool) -> unisono::Result<()> {
        let leave = Message { asks_to_stop: has_stopped.into(), ..Message::new(Kind::Leave) };
        self.others.iter_mut().try_for_each(|link| link.send(leave))
    }
}
