//! Runs whose model is cut into stages.

use std::ops::Range;
use std::time::Duration;

use unisono::Communicator;
use unisono_data::{Batch, Dataset, Pass};
use unisono_steps::pipeline::{PassCosts, balance};

use super::Config;
use super::check::refuse;
use super::prepare::{Built, Prepared};
use crate::error::failed;
use crate::model::{self, Layer};
use crate::network::Parameters;
use unisono_strategies::Strategy;
use unisono_strategies::pipeline::{Grid, MicroBatches, Pipeline, Stage};
use unisono_train::internals::broadcast;
use unisono_train::{Sampled, Shares, TrainError, Trainer, agree};

impl Config {
    /// As [`Config::trainer`], for a model that is cut into stages, independent of [`Config::strategy`]. The model, the data and the global batch are
    /// the same as with any other strategy. A pipeline's part of a step is cut into [micro-batches](Config::micro_batches), and not by
    /// [`Config::batch_size`].
    ///
    /// # Errors
    /// As [`Config::trainer`].
    pub fn pipeline<'a>(
        &self,
        comm: &'a mut Communicator,
    ) -> Result<Trainer<'a, Pipeline<impl Stage<Batch = Batch> + use<>>, MicroBatches<Sampled>>, TrainError>
    {
        let own = Self { strategy: Some(Strategy::Pipeline), ..self.clone() };
        let prepared = own.prepare(comm, Strategy::Pipeline, None, |comm, dataset, _, shares| {
            own.staged(comm, dataset, shares)
        })?;
        let Prepared { replica, feed, run, resumed, .. } = prepared;
        Trainer::new(comm, replica, MicroBatches(feed), run, resumed)
    }

    /// Returns this rank's stages, and a notice about them for the user. Called by all ranks.
    fn staged(
        &self,
        comm: &mut Communicator,
        dataset: &Dataset,
        shares: Shares,
    ) -> Built<Pipeline<impl Stage<Batch = Batch> + use<>>> {
        let (schedule, length) = (self.pipeline_schedule, self.pipeline_length(comm.ranks()));
        let Shares { micro_batch, fixed_passes, ranks: pipelines, .. } = shares;
        let micro_batches = fixed_passes.unwrap_or(1) / pipelines;
        let plan = agree(comm, schedule.plan(length, micro_batches).map_err(TrainError::Setting))?;
        let bubble = 100.0 * plan.timeline(&PassCosts { forward: 1.0, backward: 2.0, message: 0.0 }).bubble();

        let layers = model::layers(self.model, self.hidden.as_deref(), self.dropout, &dataset.kind);
        let layers = agree(comm, layers)?;
        let (cut, notice) = self.cut(comm, &layers, (dataset, micro_batch))?;
        let description = format!(
            "in {pipelines} pipeline(s) of {length}: {micro_batches} micro-batches of at most {micro_batch} samples by {schedule}, with a \
             bubble of {bubble:.1} %; {notice}"
        );
        let Grid { pipeline: own, replicas } = Grid::of(comm, length)?;
        let stages = plan.stages();
        let stage = |number: usize| {
            let stage = number * length + own.rank();
            let parameters = Parameters::new(self.seed);
            let built = model::stage(&layers[cut[stage].clone()], stage + 1 == stages, &parameters);
            let built = built.map_err(failed)?;
            self.load_initial(replicas.rank(), &parameters).map(|()| built)
        };
        let built = comm.quiet("building the model", |_| {
            (0..schedule.stages_per_rank()).map(stage).collect::<Result<Vec<_>, _>>()
        });
        let built = agree(comm, built)?;
        Ok((Pipeline::new(own, schedule, built)?, Some(description)))
    }

    /// Returns the layers of each stage, and a notice about them for the user. Called by all ranks; rank 0 measures the layers.
    fn cut(
        &self,
        comm: &mut Communicator,
        layers: &[Layer],
        (dataset, micro_batch): (&Dataset, usize),
    ) -> Result<(Vec<Range<usize>>, String), TrainError> {
        let stages = self.pipeline_length(comm.ranks()) * self.pipeline_schedule.stages_per_rank();
        let names: Vec<_> = layers.iter().map(|layer| layer.name.clone()).collect();
        let refusal = || {
            format!(
                "the {} has {} layers ({}), which cannot be cut into {stages} stages: use fewer, or a model of more layers",
                self.model,
                names.len(),
                names.join(", ")
            )
        };
        agree(comm, if names.len() < stages { refuse(refusal()) } else { Ok(()) })?;
        let (firsts, costs) = match &self.split_at {
            Some(split_at) => (agree(comm, named(split_at, &names, stages))?, Vec::new()),
            None => {
                let costs = self.costs(comm, layers, dataset, micro_batch)?;
                let seconds: Vec<_> = costs.iter().map(Duration::as_secs_f64).collect();
                (balance(&seconds, stages).expect("there are as many layers as stages at least"), costs)
            }
        };
        let ends = firsts[1..].iter().copied().chain([names.len()]);
        let cut: Vec<_> = firsts.iter().zip(ends).map(|(&first, end)| first..end).collect();
        let stage = |layers: &Range<usize>| {
            let names = names[layers.clone()].join(" ");
            let Some(costs) = costs.get(layers.clone()) else { return names };
            format!("{names} ({:.1?})", costs.iter().sum::<Duration>())
        };
        let notice = format!("stages: {}", cut.iter().map(stage).collect::<Vec<_>>().join(" | "));
        Ok((cut, notice))
    }

    /// Returns the time of each layer, as rank 0 measures it. Called by all ranks.
    fn costs(
        &self,
        comm: &mut Communicator,
        layers: &[Layer],
        dataset: &Dataset,
        micro_batch: usize,
    ) -> Result<Vec<Duration>, TrainError> {
        let measured = (comm.rank() == 0).then(|| {
            let samples: Vec<_> = (0..micro_batch.min(dataset.train.len())).collect();
            let batch = dataset.train.batch(&samples, Pass::Evaluation);
            let measure = |_: &mut Communicator| model::measure(layers, &batch?, self.seed).map_err(failed);
            comm.quiet("measuring the layers", measure)
        });
        let measured = agree(comm, measured.transpose())?;
        broadcast(comm, &measured.unwrap_or_default())
    }
}

/// Returns the first layer of each stage, given the names of the first layers of all stages but the first.
fn named(split_at: &[String], names: &[String], stages: usize) -> Result<Vec<usize>, TrainError> {
    let refuse = |why: String| {
        let names = names.join(", ");
        Err(TrainError::Setting(format!(
            "{why}: {stages} stages need the names of {} layers, in order, with which stages begin, of {names} (all but the first)",
            stages - 1
        )))
    };
    let mut firsts = vec![0];
    for name in split_at {
        match names.iter().position(|known| known == name) {
            Some(layer) if layer > firsts[firsts.len() - 1] => firsts.push(layer),
            Some(_) => return refuse(format!("no stage can begin at {name} there")),
            None => return refuse(format!("no layer is called `{name}`")),
        }
    }
    if firsts.len() == stages { Ok(firsts) } else { refuse(format!("{} names are given", split_at.len())) }
}
