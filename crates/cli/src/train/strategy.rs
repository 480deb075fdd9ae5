//! The options of `unisono train` that choose its strategy.

use clap::{Args as ClapArgs, ValueEnum};
use unisono_steps::pipeline::PipelineSchedule;
use unisono_train::{PipelineSettings, ServerSettings, Staleness, Strategy};

use crate::values::whole;

#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Strategy")]
pub(super) struct StrategyArgs {
    /// How ranks share the work [default: one-device, mirrored or multi-worker-mirrored, by the ranks and nodes there are]
    #[arg(long, value_name = "STRATEGY")]
    pub(super) strategy: Option<StrategyArg>,
    /// With --strategy parameter-server: the number of ranks that serve, the first ones; the others work [default: 1]
    #[arg(long, value_name = "N", value_parser = whole(1, usize::MAX))]
    pub(super) servers: Option<usize>,
    /// With --strategy parameter-server: how many steps of updates a gradient may miss: 0 (synchronous), a number, or unbounded
    /// [default: 0]
    #[arg(long, value_name = "STEPS")]
    pub(super) staleness: Option<Staleness>,
    /// With --strategy parameter-server, under unisono launch --elastic: go on without a worker that is lost, and let it join when it is
    /// started again
    #[arg(long)]
    pub(super) elastic: bool,
    /// With --staleness: apply a gradient that missed the updates of n steps at 1/(1+n) of the learning rate
    #[arg(long)]
    pub(super) damp_stale: bool,
    /// With --strategy pipeline: the ranks of a pipeline, each with a stage of the model; several pipelines are replicas of each other
    /// [default: all ranks]
    #[arg(long, value_name = "N", value_parser = whole(1, usize::MAX))]
    pub(super) stages: Option<usize>,
    /// With --strategy pipeline: into how many micro-batches a pipeline cuts its samples of a step [default: 4 per stage]
    #[arg(long, value_name = "N", value_parser = whole(1, usize::MAX))]
    pub(super) micro_batches: Option<usize>,
    /// With --strategy pipeline: the order of passes: gpipe, 1f1b or interleaved:STAGES (of each rank) [default: 1f1b]
    #[arg(long, value_name = "SCHEDULE")]
    pub(super) pipeline_schedule: Option<PipelineSchedule>,
    /// With --strategy pipeline: the layers that stages begin with, but for the first, comma-separated [default: measured, and cut evenly]
    #[arg(long, value_name = "LAYER,LAYER", value_delimiter = ',')]
    pub(super) split_at: Option<Vec<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum StrategyArg {
    /// One rank alone
    OneDevice,
    /// Every rank of one node holds the same model
    Mirrored,
    /// Every rank of any number of nodes holds the same model
    MultiWorkerMirrored,
    /// The ranks of one node share one copy of the parameters, their gradients and the optimizer state
    CentralStorage,
    /// Some ranks hold the parameters, the others compute gradients
    ParameterServer,
    /// The model is cut into stages, each on a rank of its own, which pass on micro-batches
    Pipeline,
}

impl StrategyArgs {
    pub(super) fn strategy(&self) -> Option<Strategy> {
        Some(match self.strategy? {
            StrategyArg::OneDevice => Strategy::OneDevice,
            StrategyArg::Mirrored => Strategy::Mirrored,
            StrategyArg::MultiWorkerMirrored => Strategy::MultiWorkerMirrored,
            StrategyArg::CentralStorage => Strategy::CentralStorage,
            StrategyArg::Pipeline => Strategy::Pipeline(PipelineSettings {
                ranks: self.stages,
                schedule: self.pipeline_schedule.unwrap_or(PipelineSettings::default().schedule),
                micro_batches: self.micro_batches,
                split_at: self.split_at.clone(),
            }),
            StrategyArg::ParameterServer => Strategy::ParameterServer(ServerSettings {
                servers: self.servers.unwrap_or(1),
                staleness: self.staleness.unwrap_or(Staleness::Steps(0)),
                damps: self.damp_stale,
            }),
        })
    }
}
