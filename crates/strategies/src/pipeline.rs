//! Pipeline parallelism: a model cut into stages of consecutive layers, each on separate ranks, which pass on micro-batches.
//!
//! A rank executes a [`PipelinePlan`] in each step, which is verified before it runs. A [`Pipeline`] is a [`Replica`] of the rank's stages. A
//! [`Mirror`](unisono_train::Mirror) over the ranks that hold the same stages sums their gradients while the pipeline drains, and updates the
//! parameters. `unisono_candle::StageNetwork` has an example.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use unisono::Communicator;
use unisono_steps::pipeline::{Act, Pass, PipelinePlan};
pub use unisono_steps::pipeline::{PassCosts, PipelineSchedule};

use unisono_train::metrics::VisitOutputs;
use unisono_train::{Gradients, LossSums, Parameter, Parts, Replica, ReplicaError, TrainError, agree};

mod evaluation;
mod feed;
mod grid;
mod links;
mod stage;
mod sums;

pub use feed::MicroBatches;
pub use grid::Grid;
pub use stage::{Activations, Stage, StageOutput};

use links::Links;
use sums::{Adding, Sum};

/// The stages of one rank of a pipeline, as a [`Replica`].
///
/// The ranks of a pipeline call [`pass`](Replica::pass) and evaluate together, each with the same micro-batches.
pub struct Pipeline<S> {
    schedule: PipelineSchedule,
    /// This rank's stages, in the order of the model.
    stages: Vec<S>,
    parameters: Vec<Parameter>,
    /// The index of each stage's first parameter.
    first: Vec<usize>,
    sums: Vec<Vec<Sum>>,
    comm: Communicator,
    links: Links,
    plan: Option<PipelinePlan>,
    waited: Duration,
}

impl<S> fmt::Debug for Pipeline<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedule, parameters, .. } = self;
        f.debug_struct("Pipeline").field("schedule", schedule).field("parameters", parameters).finish()
    }
}

impl<S: Stage> Pipeline<S> {
    /// Creates a pipeline over the ranks of this communicator, with this rank's stages. Their number must match the schedule: one or, if it is
    /// [interleaved](PipelineSchedule::Interleaved), several. Stage i of this rank is stage i · ranks + rank of the model. Called by all ranks with
    /// the same schedule.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if a rank has another number of stages. Errors of the collectives.
    pub fn new(
        mut comm: Communicator,
        schedule: PipelineSchedule,
        stages: Vec<S>,
    ) -> Result<Self, TrainError> {
        let (found, expected) = (stages.len(), schedule.stages_per_rank());
        let wrong = || {
            let rank = comm.rank();
            Err(TrainError::Setting(format!("rank {rank} has {found} stages, but {schedule} has {expected}")))
        };
        let checked = if found == expected { Ok(()) } else { wrong() };
        agree(&mut comm, checked)?;
        let (mut parameters, mut first) = (Vec::new(), Vec::new());
        for stage in &stages {
            first.push(parameters.len());
            parameters.extend_from_slice(stage.parameters());
        }
        let sums = stages.iter().map(|stage| stage.parameters().iter().map(Sum::of).collect()).collect();
        let links = Links::of(&mut comm)?;
        Ok(Self {
            schedule,
            stages,
            parameters,
            first,
            sums,
            comm,
            links,
            plan: None,
            waited: Duration::ZERO,
        })
    }

    fn plan(&mut self, micro_batches: usize) -> Result<PipelinePlan, ReplicaError> {
        match self.plan.take() {
            Some(plan) if plan.micro_batches() == micro_batches => Ok(plan),
            _ => {
                let plan = self.schedule.plan(self.comm.ranks(), micro_batches)?;
                match &plan.verify()[..] {
                    [] => Ok(plan),
                    [defect, ..] => Err(defect.as_str().into()),
                }
            }
        }
    }

    /// Checks that the last stage returns a loss, and any other stage activations.
    fn check(&self, stage: usize, output: StageOutput) -> Result<StageOutput, ReplicaError> {
        let is_last = stage + 1 == self.comm.ranks() * self.stages.len();
        match (&output, is_last) {
            (StageOutput::Loss(_), true) | (StageOutput::Activations(_), false) => Ok(output),
            (StageOutput::Loss(_), false) => {
                Err(format!("stage {stage} gives a loss, but it is not the last one").into())
            }
            (StageOutput::Activations(_), true) => {
                Err(format!("stage {stage} is the last one, but gives no loss").into())
            }
        }
    }
}

struct Step<'a, B> {
    batches: &'a [B],
    /// Results of passes that the next pass has not consumed.
    results: HashMap<Pass, Activations>,
    tally: LossSums,
    /// The micro-batch with the last backward pass.
    last: usize,
    has_weighed: bool,
}

impl<S: Stage> Pipeline<S> {
    fn act(
        &mut self,
        act: Act,
        step: &mut Step<'_, S::Batch>,
        gradients: &mut dyn Gradients,
    ) -> Result<(), ReplicaError> {
        match act {
            Act::Receive { of, .. } => {
                let began = Instant::now();
                let (result, tally) = self.links.receive(of)?;
                // The loss is sent from the last stage to the first, with the gradients of the last backward pass.
                if of.is_backward && of.micro_batch == step.last {
                    step.tally = tally;
                }
                step.results.insert(of, result);
                self.waited += began.elapsed();
            }
            Act::Send { of, .. } => {
                let result = step.results.remove(&of).ok_or("a verified plan sends what was made")?;
                self.links.send(of, result, step.tally)?;
            }
            Act::Compute(pass) if pass.is_backward => self.backward(pass, step, gradients)?,
            Act::Compute(pass) => self.forward(pass, step)?,
        }
        Ok(())
    }

    fn forward(&mut self, pass: Pass, step: &mut Step<'_, S::Batch>) -> Result<(), ReplicaError> {
        let Pass { stage, micro_batch, .. } = pass;
        let before = stage.checked_sub(1).and_then(|stage| step.results.remove(&Pass { stage, ..pass }));
        let own = &mut self.stages[stage / self.comm.ranks()];
        let output = own.forward(micro_batch, &step.batches[micro_batch], before.as_ref())?;
        match self.check(stage, output)? {
            StageOutput::Activations(activations) => {
                step.results.insert(pass, activations);
            }
            StageOutput::Loss(tally) => step.tally += tally,
        }
        Ok(())
    }

    fn backward(
        &mut self,
        pass: Pass,
        step: &mut Step<'_, S::Batch>,
        gradients: &mut dyn Gradients,
    ) -> Result<(), ReplicaError> {
        let Pass { stage, micro_batch, .. } = pass;
        let gradient = step.results.remove(&Pass { stage: stage + 1, ..pass });
        let number = stage / self.comm.ranks();
        let is_last = micro_batch == step.last;
        if is_last && !std::mem::replace(&mut step.has_weighed, true) {
            gradients.record_loss(step.tally);
        }
        let gradients: Option<&mut dyn Gradients> = if is_last { Some(gradients) } else { None };
        let mut adding = Adding { gradients, first: self.first[number], sums: &mut self.sums[number] };
        let result = self.stages[number].backward(micro_batch, gradient.as_ref(), &mut adding)?;
        adding.rest();
        match result {
            Some(result) if stage > 0 => step.results.insert(pass, result),
            None if stage == 0 => None,
            Some(_) => return Err("the first stage has nobody to give a gradient to".into()),
            None => return Err(format!("stage {stage} gives no gradient to the stage before").into()),
        };
        Ok(())
    }
}

impl<S: Stage> Replica for Pipeline<S> {
    /// The micro-batches of a step, identical on each rank of the pipeline.
    type Batch = Vec<S::Batch>;

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn pass(&mut self, batches: &Self::Batch, gradients: &mut dyn Gradients) -> Result<(), ReplicaError> {
        let plan = self.plan(batches.len())?;
        let acts = &plan.ranks()[self.comm.rank()];
        let last = acts.iter().rev().find_map(|act| match act {
            Act::Compute(pass) if pass.is_backward => Some(pass.micro_batch),
            _ => None,
        });
        let mut step = Step {
            batches,
            results: HashMap::new(),
            tally: LossSums::default(),
            last: last.ok_or("a verified plan goes back")?,
            has_weighed: false,
        };
        self.waited = Duration::ZERO;
        for &act in acts {
            self.act(act, &mut step, gradients)?;
        }
        let began = Instant::now();
        self.links.wait()?;
        self.waited += began.elapsed();
        self.plan = Some(plan);
        Ok(())
    }

    fn evaluate(
        &mut self,
        batches: &Self::Batch,
        visit: Option<VisitOutputs<'_>>,
    ) -> Result<LossSums, ReplicaError> {
        self.evaluate_batches(batches, visit)
    }

    fn parts(&mut self) -> Option<Parts<'_>> {
        Some(Parts { comm: &mut self.comm, first: &self.first })
    }

    /// Returns the time of this rank's bubbles and of its messages.
    fn waited(&self) -> Duration {
        self.waited
    }

    fn with_values(&mut self, index: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError> {
        let stage = self.first.partition_point(|&first| first <= index) - 1;
        self.stages[stage].with_values(index - self.first[stage], visit)
    }
}
