//! Runs of a user's model on the user's samples.

use serde_json::json;

use super::Config;
use super::check::refuse;
use crate::network::Parameters;
use unisono::Communicator;
use unisono_strategies::Strategy;
use unisono_train::{Replica, Resumed, RunSettings, Shares, TrainError, agree};

/// The options of data and models that apply to any data and any model.
const OF_ANY: [&str; 4] = ["seed", "input-threads", "prefetch", "initial"];

impl Config {
    /// Returns a rank's shares of the samples, the settings of a run of a replica with these parameters, and the run to resume. `samples` are the
    /// numbers of training and held-out samples. Called by all ranks.
    pub(crate) fn run_of(
        &self,
        comm: &mut Communicator,
        replica: &impl Replica,
        parameters: &Parameters,
        samples: [usize; 2],
    ) -> Result<(Shares, RunSettings, Option<Resumed>), TrainError> {
        let strategy = self.strategy().unwrap_or_else(|| Strategy::suited(comm));
        strategy.check(comm)?;
        agree(comm, self.check_own(&strategy, replica.shares_values()).map_err(|error| self.placed(error)))?;
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let (resumed, global_batch) = self.begin(comm, &strategy, ranks)?;
        let on_cpu = Some("on the CPU, where its parameters are");
        agree(comm, self.check_choice(comm.choice(), parameters.device(), on_cpu))?;
        let loaded = comm.quiet("reading the initial values", |_| self.load_initial(rank, parameters));
        agree(comm, self.check_world(ranks).and(loaded))?;
        same_samples(comm, samples)?;
        if global_batch > samples[0] {
            return refuse(format!(
                "a global batch of {global_batch} samples on {ranks} ranks, but there are only {} to train on: choose a smaller batch",
                samples[0]
            ));
        }
        let shares = self.shares(&strategy, (rank, ranks), global_batch);
        let entries = (json!({ "samples": samples[0] }), self.learning_rate);
        let settings = self.settle(comm, replica, entries, (shares, samples[0]), resumed.as_ref())?;
        Ok((shares, settings, resumed))
    }

    /// Rejects options that a run of a user's model does not support, or that would have no effect on it.
    fn check_own(&self, strategy: &Strategy, shares_values: bool) -> Result<(), TrainError> {
        let is_changed = self.changed(&Self::default());
        let built_in = Self::of_data_and_model().into_iter().filter(|option| !OF_ANY.contains(&&**option));
        if let Some(option) = built_in.chain(["device".to_owned()]).find(|option| is_changed(option)) {
            return refuse(format!(
                "--{option} has no effect here: the program has a model and samples of its own; remove it"
            ));
        }
        self.check()?;
        self.check_strategy(strategy)?;
        match strategy {
            Strategy::ParameterServer(_) | Strategy::Pipeline(_) => refuse(format!(
                "--strategy {strategy} has a run of its own: use another strategy, or `ParameterServer` or `Pipeline` of unisono-strategies"
            )),
            Strategy::CentralStorage if !shares_values => refuse(
                "--strategy central-storage needs parameters that ranks share: build the model from `Parameters::shared`".to_owned(),
            ),
            Strategy::OneDevice | Strategy::Mirrored | Strategy::MultiWorkerMirrored if shares_values => {
                refuse("parameters that ranks share need --strategy central-storage: add it, or build the model from `Parameters::new`".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// Checks that all ranks have the same numbers of samples as rank 0, because each takes its share of them. Called by all ranks.
fn same_samples(comm: &mut Communicator, own: [usize; 2]) -> Result<(), TrainError> {
    let mut first = own.map(|count| count as u64);
    comm.broadcast(&mut first, 0)?;
    let is_same = first == own.map(|count| count as u64);
    let ([train, held_out], [first, first_held_out], rank) = (own, first, comm.rank());
    let differ = format!(
        "rank {rank} has {train} samples to train on and {held_out} held out, and rank 0 {first} and {first_held_out}: expected all samples \
         on every rank, which takes its share of each batch"
    );
    agree(comm, if is_same { Ok(()) } else { refuse(differ) })
}
