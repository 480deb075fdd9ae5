//! Runs whose model is cut into stages.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use unisono::Communicator;
use unisono_data::{Batch, Pass};
use unisono_steps::pipeline::{PassCosts, balance};

use super::Config;
use super::prepare::{Made, Prepared};
use crate::error::failed;
use crate::model::{self, Layer};
use crate::network::Parameters;
use unisono_strategies::pipeline::{Grid, MicroBatches, Pipeline, Stage};
use unisono_strategies::{PipelineSettings, Strategy};
use unisono_train::internals::broadcast;
use unisono_train::{Sampled, Shares, TrainError, Trainer, agree};

impl Config {
    /// As [`Config::trainer`], for a model that is cut into stages, independent of [`Config::strategy`]. The model, the data and the global batch are
    /// the same as with any other strategy. A pipeline's part of a step is cut into [micro-batches](PipelineSettings::micro_batches), and not by
    /// [`Config::batch_size`].
    ///
    /// # Errors
    /// As [`Config::trainer`].
    pub fn pipeline<'a>(
        &self,
        comm: &'a mut Communicator,
        pipeline: &PipelineSettings,
    ) -> Result<Trainer<'a, Pipeline<impl Stage<Batch = Batch> + use<>>, MicroBatches<Sampled>>, TrainError>
    {
        let strategy = Strategy::Pipeline(pipeline.clone());
        strategy.check(comm)?;
        let place = (comm.rank(), comm.ranks());
        let prepared = self.prepare(comm, &strategy, place, |comm, of| self.staged(comm, pipeline, of))?;
        let Prepared { replica, feed, run, resumed, .. } = prepared;
        Trainer::new(comm, replica, MicroBatches(feed), run, resumed)
    }

    /// Returns this rank's stages, and a notice about them for the user. Called by all ranks.
    fn staged(
        &self,
        comm: &mut Communicator,
        pipeline: &PipelineSettings,
        of: &Made<'_>,
    ) -> Result<(Pipeline<impl Stage<Batch = Batch> + use<>>, Option<String>), TrainError> {
        let (schedule, length) = (pipeline.schedule, pipeline.length(comm.ranks()));
        let Shares { micro_batch, fixed_passes, ranks: pipelines, .. } = of.shares;
        let micro_batches = fixed_passes.unwrap_or(1) / pipelines;
        let plan = schedule.plan(length, micro_batches);
        let plan = plan.map_err(|error| TrainError::Setting(error.to_string()))?;
        let bubble = 100.0 * plan.timeline(&PassCosts { forward: 1.0, backward: 2.0, message: 0.0 }).bubble();

        let layers = model::layers(self.model, self.hidden.as_deref(), self.dropout, &of.dataset.kind);
        let layers = agree(comm, layers)?;
        let cut = self.cut(comm, pipeline, &layers, of)?;
        let description = format!(
            "in {pipelines} pipeline(s) of {length}: {micro_batches} micro-batches of at most {micro_batch} samples by {schedule}, with a \
             bubble of {bubble:.1} %; {cut}"
        );
        let Grid { pipeline: own, replicas } = Grid::of(comm, length)?;
        let stages = plan.stages();
        let stage = |number| {
            let stage = number * length + own.rank();
            let parameters = Parameters::new(self.seed);
            let built = model::stage(&layers[cut.layers(stage)], stage + 1 == stages, &parameters);
            let built = built.map_err(failed)?;
            self.load_initial(replicas.rank(), &parameters).map(|()| built)
        };
        let built = comm.quiet("building the model", |_| {
            (0..schedule.stages_per_rank()).map(stage).collect::<Result<Vec<_>, _>>()
        });
        let built = agree(comm, built)?;
        Ok((Pipeline::new(own, schedule, built)?, Some(description)))
    }

    /// Cuts the model into stages. Called by all ranks; rank 0 measures the layers.
    fn cut(
        &self,
        comm: &mut Communicator,
        pipeline: &PipelineSettings,
        layers: &[Layer],
        Made { dataset, shares, .. }: &Made<'_>,
    ) -> Result<Cut, TrainError> {
        let stages = pipeline.length(comm.ranks()) * pipeline.schedule.stages_per_rank();
        let names: Vec<_> = layers.iter().map(|layer| layer.name.clone()).collect();
        if names.len() < stages {
            return Err(TrainError::Setting(format!(
                "the {} has {} layers ({}), which cannot be cut into {stages} stages: use fewer, or a model of more layers",
                self.model,
                names.len(),
                names.join(", ")
            )));
        }
        if let Some(split_at) = &pipeline.split_at {
            return Ok(Cut { firsts: named(split_at, &names, stages)?, names, costs: Vec::new() });
        }
        let measured = match comm.rank() {
            0 => {
                let samples: Vec<_> = (0..shares.micro_batch.min(dataset.train.len())).collect();
                let batch = dataset.train.batch(&samples, Pass::Evaluation);
                comm.quiet("measuring the layers", |_| {
                    model::measure(layers, &batch?, self.seed).map_err(failed)
                })
            }
            _ => Ok(Vec::new()),
        };
        let measured = agree(comm, measured)?;
        let costs: Vec<Duration> = broadcast(comm, &measured)?;
        let seconds: Vec<_> = costs.iter().map(Duration::as_secs_f64).collect();
        let firsts = balance(&seconds, stages).expect("there are as many layers as stages at least");
        Ok(Cut { firsts, names, costs })
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

struct Cut {
    /// The first layer of each stage.
    firsts: Vec<usize>,
    names: Vec<String>,
    /// The measured time of each layer, if the layers were measured.
    costs: Vec<Duration>,
}

impl Cut {
    fn layers(&self, stage: usize) -> Range<usize> {
        self.firsts[stage]..self.firsts.get(stage + 1).copied().unwrap_or(self.names.len())
    }
}

/// Displays the layers of each stage, and the time that it takes.
impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = |stage| {
            let (layers, mut text) = (self.layers(stage), self.names[self.layers(stage)].join(" "));
            if let Some(costs) = self.costs.get(layers) {
                text += &format!(" ({:.1?})", costs.iter().sum::<Duration>());
            }
            text
        };
        let stages: Vec<_> = (0..self.firsts.len()).map(stage).collect();
        write!(f, "stages: {}", stages.join(" | "))
    }
}
