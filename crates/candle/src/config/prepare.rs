//! Prepares a run, of a built-in model or of a user's: its model, its data and its state.

use std::path::Path;
use std::sync::Arc;

use super::Config;
use super::check::refuse;
use super::stoppable::stoppable;
use crate::device;
use crate::error::{failed, text};
use crate::model::{self, ModelKind, Placed};
use crate::network::{DROPOUT_STEPS, Parameters};
use candle_core::Device;
use serde_json::json;
use unisono::{Communicator, Rank, Unisono};
use unisono_data::{Dataset, Source};
use unisono_strategies::{ParameterServer, ServerSettings, Strategy};
use unisono_train::checkpoint::newest_state;
use unisono_train::internals::{check_outputs, refusal};
use unisono_train::{
    Parameter, Progress, Replica, Resumed, RunSettings, Sampled, Shares, TrainError, Trainer, Wire, Wires,
    agree,
};

pub(super) struct Prepared<R> {
    pub(super) replica: R,
    /// Produces batches on the host.
    pub(super) feed: Sampled,
    pub(super) device: Device,
    pub(super) run: RunSettings,
    pub(super) resumed: Option<Resumed>,
}

/// A replica, and a notice about it for the user.
pub(super) type Built<R> = Result<(R, Option<String>), TrainError>;

impl Config {
    /// Loads the data and builds the model on every rank. All ranks then receive the parameters of rank 0, or of a checkpoint. Called by all ranks
    /// with the same settings. A failure on one rank is a failure on all.
    ///
    /// # Errors
    /// [`TrainError`] names the problem with the settings, the data or the model. On ranks without an error, [`TrainError::Elsewhere`] names the
    /// lowest rank that has one.
    pub fn trainer<'a>(
        &self,
        comm: &'a mut Communicator,
    ) -> Result<Trainer<'a, impl Replica<Batch = Placed> + use<>, Sampled<Dataset, Placed>>, TrainError> {
        let strategy = self.strategy.unwrap_or_else(|| Strategy::suited(comm));
        if let Strategy::ParameterServer | Strategy::Pipeline = strategy {
            return refuse(format!(
                "the strategy {strategy} has a run of its own: call Config::parameter_server or Config::pipeline"
            ));
        }
        let Prepared { replica, feed, device, run, resumed } = self.prepare_whole(comm, strategy, None)?;
        let feed = feed.placed(device::ahead(comm, &device)?);
        Trainer::new(comm, replica, feed, run, resumed)
    }

    /// Like [`trainer`](Self::trainer), for parameter servers, independent of [`Config::strategy`].
    ///
    /// # Errors
    /// As [`Config::trainer`].
    pub fn parameter_server<'a>(
        &self,
        comm: &'a mut Communicator,
    ) -> Result<ParameterServer<'a, impl Replica<Batch = Placed> + use<>, Sampled<Dataset, Placed>>, TrainError>
    {
        let strategy = Strategy::ParameterServer;
        let own = Self { strategy: Some(strategy), ..self.clone() };
        let Prepared { replica, feed, run, resumed, .. } = own.prepare_whole(comm, strategy, None)?;
        ParameterServer::new(comm, replica, feed.placed(None), run, self.server_settings(), resumed)
    }

    /// Replaces a lost worker in a run of [`Config::parameter_server`] that is [elastic](ParameterServer::elastic). `rank` and `ranks` are numbered
    /// as by the launcher. Returns whether the run has stopped on request.
    ///
    /// # Errors
    /// As [`ParameterServer::join`].
    pub fn join_parameter_server(
        &self,
        folder: &Path,
        (rank, ranks): (Rank, usize),
    ) -> Result<bool, TrainError> {
        let (strategy, servers) = (Strategy::ParameterServer, self.server_settings());
        // Before the data are loaded.
        servers.check_joins(rank)?;
        // The other ranks are already in the run, and have made all decisions that ranks make together.
        let mut alone = Unisono::builder().ignore_environment().threads(1)?.remove(0);
        let directory = self.checkpoint_dir.as_ref().filter(|_| self.resume);
        let progress = directory.map(|directory| newest_state::<Progress>(directory)).transpose()?.flatten();
        let global_batch = progress.map(|progress| progress.global_batch).or(self.global_batch);
        let own =
            Self { strategy: Some(strategy), global_batch, log_dir: None, ..self.without_checkpoints() };
        let place = Some((rank, ranks));
        let Prepared { replica, feed, run, .. } = own.prepare_whole(&mut alone, strategy, place)?;
        ParameterServer::join(folder, (rank, ranks), replica, feed.placed(None), &run, servers)
    }

    fn server_settings(&self) -> ServerSettings {
        ServerSettings { servers: self.servers, staleness: self.staleness, damps: self.damp_stale }
    }

    /// As [`prepare`](Self::prepare), for a whole model on each rank, or one shared by all ranks of a node.
    fn prepare_whole(
        &self,
        comm: &mut Communicator,
        strategy: Strategy,
        place: Option<(Rank, usize)>,
    ) -> Result<Prepared<impl Replica<Batch = Placed> + use<>>, TrainError> {
        self.prepare(comm, strategy, place, |comm, dataset, device, _| {
            let parameters = match strategy {
                Strategy::CentralStorage => Parameters::shared(self.seed, comm)?,
                _ => agree(comm, Parameters::on(device, self.seed).map_err(failed))?,
            };
            let hidden = self.hidden.as_deref();
            let replica = comm.quiet("building the model", |comm| {
                model::classifier(self.model, hidden, self.dropout, &dataset.kind, &parameters)
                    .and_then(|replica| self.load_initial(comm.rank(), &parameters).map(|()| replica))
            });
            let description = (strategy == Strategy::CentralStorage).then(|| {
                "which share one copy of the parameters, the gradients and the optimizer state: each rank adds its gradients in turn, and \
                 updates its part"
                    .to_owned()
            });
            Ok((agree(comm, replica)?, description))
        })
    }

    /// Sets parameters to the initial values from a file, if there is one. Does nothing on ranks other than 0 among those that hold the same
    /// parameters: they receive or share the values of rank 0.
    pub(super) fn load_initial(&self, rank: Rank, parameters: &Parameters) -> Result<(), TrainError> {
        let Some(file) = self.initial.as_ref().filter(|_| rank == 0) else { return Ok(()) };
        let mut left = parameters.load(file).map_err(|error| TrainError::Setting(text(error)))?;
        // A model that was trained without dropout has no count of steps.
        left.retain(|name| name != DROPOUT_STEPS);
        if left.is_empty() {
            return Ok(());
        }
        let (file, left) = (file.display(), left.join(", "));
        Err(TrainError::Setting(format!(
            "`{file}` has no values of these shapes: {left}; expected a file of the same model"
        )))
    }

    /// Returns the model, the data and the state of a run. `make` builds the replica. Called by all ranks of the communicator, which is the world
    /// unless `place` is given: the rank and the number of ranks in the world.
    pub(super) fn prepare<R: Replica>(
        &self,
        comm: &mut Communicator,
        strategy: Strategy,
        place: Option<(Rank, usize)>,
        make: impl FnOnce(&mut Communicator, &Dataset, &Device, Shares) -> Built<R>,
    ) -> Result<Prepared<R>, TrainError> {
        if place.is_none() {
            agree(comm, strategy.check(comm, self.pipeline_length(comm.ranks())))?;
        }
        let (rank, ranks) = place.unwrap_or((comm.rank(), comm.ranks()));
        agree(comm, self.check().and_then(|()| self.check_strategy(strategy)))?;
        let (resumed, global_batch) = self.begin(comm, strategy, ranks)?;
        let refused = self.refuses_device(strategy, global_batch);
        let (device, computes) = self.device.choose(comm, refused)?;
        agree(comm, self.check_choice(comm.choice(), &device, computes.as_deref()))?;
        let shares = self.shares(strategy, (rank, ranks), global_batch);
        agree(comm, self.check_world(shares.ranks))?;
        self.needs_of_data().check(comm)?;
        let mut own = self.clone();
        if comm.rank() > 0 && matches!(self.data, Source::Service(_)) {
            // All ranks wait for the same servers, and only one reports it.
            own.report = None;
        }
        // Loading may write a snapshot.
        let loaded = comm.quiet("loading the data set", |_| own.kept_dataset());
        let checked = loaded.and_then(|(dataset, kept)| {
            Ok((Arc::new(self.check_data(dataset, global_batch, shares.ranks)?), kept))
        });
        let (dataset, kept) = agree(comm, checked)?;
        if device.is_cpu() {
            self.needs(strategy, ranks, shares, &dataset).check(comm)?;
        }
        let (replica, strategy) = make(comm, &dataset, &device, shares)?;
        let is_compared = self.checkpoint_dir.is_some() || comm.ranks() > 1;
        let hashed = |_: &mut Communicator| {
            let dataset = Arc::clone(&dataset);
            stoppable(&self.stop, move || dataset.fingerprint())
        };
        let fingerprint = is_compared.then(|| comm.quiet("hashing the data set", hashed)).transpose();
        let fingerprint = agree(comm, fingerprint.map_err(TrainError::from))?;
        let (entries, peak) = (self.description(&dataset, fingerprint), self.scaled_rate(global_batch));
        self.check_data_of_ranks(comm, &entries)?;
        let samples = dataset.train.len();
        let run = self.settle(comm, &replica, (entries, peak), (shares, samples), resumed.as_ref())?;
        let kept = kept.map(|report| report.to_string());
        let notices: Vec<_> = dataset.notices().iter().cloned().chain(kept).collect();
        let run = RunSettings {
            computes,
            strategy,
            // A data server may know the target when this configuration does not.
            metrics: self.metrics(dataset.schema.target.is_some()),
            input: (!notices.is_empty()).then(|| notices.join("\n")),
            ..run
        };
        let feed = agree(comm, self.feed(dataset, shares))?;
        Ok(Prepared { replica, feed, device, run, resumed })
    }

    /// Returns a rank's shares of the samples, the settings of a run of a replica with these parameters, and the run to resume. `samples` are the
    /// numbers of training and held-out samples. Called by all ranks.
    pub(crate) fn run_of(
        &self,
        comm: &mut Communicator,
        replica: &impl Replica,
        parameters: &Parameters,
        samples: [usize; 2],
    ) -> Result<(Shares, RunSettings, Option<Resumed>), TrainError> {
        let strategy = self.strategy.unwrap_or_else(|| Strategy::suited(comm));
        agree(comm, strategy.check(comm, self.pipeline_length(comm.ranks())))?;
        agree(comm, self.check_own(strategy, replica.shares_values()).map_err(|error| self.placed(error)))?;
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let (resumed, global_batch) = self.begin(comm, strategy, ranks)?;
        let on_cpu = Some("on the CPU, where its parameters are");
        agree(comm, self.check_choice(comm.choice(), parameters.device(), on_cpu))?;
        let loaded = comm.quiet("reading the initial values", |_| self.load_initial(rank, parameters));
        agree(comm, self.check_world(ranks).and(loaded))?;
        let own = samples.map(|count| count as u64);
        let mut first = own;
        comm.broadcast(&mut first, 0)?;
        let differ = || {
            let ([train, held_out], [first, first_held_out]) = (own, first);
            format!(
                "rank {rank} has {train} samples to train on and {held_out} held out, and rank 0 {first} and {first_held_out}: expected all \
                 samples on every rank, which takes its share of each batch"
            )
        };
        agree(comm, if own == first { Ok(()) } else { refuse(differ()) })?;
        let too_large = || match samples[0] {
            0 => "there are no samples to train on".to_owned(),
            count => format!(
                "a global batch of {global_batch} samples on {ranks} ranks, but there are only {count} to train on: choose a smaller batch"
            ),
        };
        agree(comm, if global_batch > samples[0] { refuse(too_large()) } else { Ok(()) })?;
        let shares = self.shares(strategy, (rank, ranks), global_batch);
        let entries = (json!({ "samples": samples[0] }), self.learning_rate);
        let settings = self.settle(comm, replica, entries, (shares, samples[0]), resumed.as_ref())?;
        Ok((shares, settings, resumed))
    }

    /// Checks that ranks agree, chooses the algorithm, checks the paths of files, and finds the run to resume and the global batch. Called by all ranks.
    pub(super) fn begin(
        &self,
        comm: &mut Communicator,
        strategy: Strategy,
        ranks: usize,
    ) -> Result<(Option<Resumed>, usize), TrainError> {
        self.check_options_of_ranks(comm)?;
        if let Some(choice) = self.algorithm.clone() {
            let chosen = comm.set_choice(choice);
            agree(comm, chosen.map_err(|error| TrainError::Setting(error.to_string())))?;
        }
        let kept = self.checkpoints();
        check_outputs(comm, kept.as_ref(), self.resume, self.log_dir.as_deref())?;
        let directory = self.checkpoint_dir.as_ref().filter(|_| self.resume);
        let resumed = directory.map(|directory| Resumed::find(comm, directory)).transpose()?.flatten();
        let before = resumed.as_ref().map(|resumed| resumed.progress.global_batch);
        let usual = self.batch_size.saturating_mul(self.workers(strategy, ranks));
        Ok((resumed, self.global_batch.or(before).unwrap_or(usual)))
    }

    pub(super) fn shares(
        &self,
        strategy: Strategy,
        (rank, ranks): (Rank, usize),
        global_batch: usize,
    ) -> Shares {
        let replicas = self.replicas(strategy, ranks);
        let usual = Shares {
            // Servers compute no samples.
            rank: rank.min(replicas - 1),
            ranks: replicas,
            global_batch,
            micro_batch: self.batch_size,
            fixed_passes: self.world_invariant(),
        };
        if strategy != Strategy::Pipeline {
            return usual;
        }
        let samples = global_batch.div_ceil(replicas);
        // Four per rank suffice for a small bubble (Huang et al., "GPipe", 2019, section 2.3).
        let micro_batches = self.micro_batches.unwrap_or(4 * self.pipeline_length(ranks)).min(samples);
        let fixed_passes = Some(micro_batches * replicas);
        // Numbered as in a grid.
        Shares { rank: rank % replicas, micro_batch: samples.div_ceil(micro_batches), fixed_passes, ..usual }
    }

    fn refuses_device(&self, strategy: Strategy, global_batch: usize) -> Option<String> {
        let why = match strategy {
            Strategy::ParameterServer => "parameter servers hold their parameters in host memory",
            Strategy::Pipeline => "the stages of a pipeline compute on the CPU",
            Strategy::CentralStorage => "ranks share parameters in host memory",
            Strategy::OneDevice | Strategy::Mirrored | Strategy::MultiWorkerMirrored => {
                let of_model = || "on a GPU no batch norm computes over all ranks".to_owned();
                let refused = refusal(&self.buckets(global_batch));
                return refused.or_else(|| (self.model == ModelKind::ResNet).then(of_model));
            }
        };
        Some(why.to_owned())
    }

    /// Chooses the wire format, checks that a checkpoint to resume from belongs to this run, and returns the settings of the run with this peak
    /// learning rate. `entries` describe the model and the data in checkpoints. Called by all ranks.
    pub(super) fn settle(
        &self,
        comm: &mut Communicator,
        replica: &impl Replica,
        (entries, peak): (serde_json::Value, f64),
        (shares, samples): (Shares, usize),
        resumed: Option<&Resumed>,
    ) -> Result<RunSettings, TrainError> {
        let (wire, wire_choice) = self.choose_wire(comm, replica.parameters(), resumed)?;
        let chosen = Self { wire: Wires::One(wire), ..self.clone() };
        let description = chosen.with_run(entries);
        if let Some(resumed) = resumed {
            agree(comm, chosen.compare(&description, shares.global_batch, resumed))?;
        }
        let run = chosen.run_settings(shares.global_batch, shares.steps(samples), peak);
        Ok(RunSettings { wire_choice, description, ..run })
    }

    /// Returns the wire format of a run with these parameters, and the reason if it was chosen automatically. Called by all ranks.
    fn choose_wire(
        &self,
        comm: &mut Communicator,
        parameters: &[Parameter],
        resumed: Option<&Resumed>,
    ) -> Result<(Wire, Option<String>), TrainError> {
        let wires = match &self.wire {
            Wires::One(wire) => return Ok((*wire, None)),
            Wires::Auto(wires) => wires,
        };
        let before = resumed.and_then(|resumed| resumed.progress.description["wire format"].as_str());
        let before = before.and_then(|name| name.parse().ok());
        match before.filter(|wire| wires.contains(wire) || *wire == Wire::F32) {
            Some(wire) => Ok((wire, Some("as before the run was resumed".to_owned()))),
            None => Wires::fastest(comm, wires, parameters).map(|(wire, why)| (wire, Some(why))),
        }
    }
}
