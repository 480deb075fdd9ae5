//! `unisono train`: trains a model, data-parallel over all ranks.

use std::path::Path;

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;
use unisono::Communicator;
use unisono::config::{Launcher, Starter, bootstrap_folder, joins, share_cores};
use unisono_candle::Config;
use unisono_compress::Compression;
use unisono_data::DataError;
use unisono_strategies::Strategy;
use unisono_train::rate::Rate;
use unisono_train::{Feed, Replica, RunSettings, Stop, Summary, TrainError, Trainer, Wire};

use super::output::Format;
use super::world::STOP;
use super::{Failure, is_reporter, refused};

mod args;
mod report;
mod tensorflow;

#[cfg(feature = "service")]
pub(super) use args::DataOptions;
pub(super) use args::{Args, CacheArgs, InputOptions, USUAL};
use report::Reporter;
pub(super) use report::{measured, print_json};

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let settings = &args.options.settings;
    if args.write_config {
        if is_reporter() {
            settings.check().map_err(failure)?;
            print!("{}", settings.to_toml().map_err(failure)?);
        }
        return Ok(());
    }
    if args.world.is_alone() {
        tensorflow::refuse_other_workers().map_err(Failure::BadInput)?;
    }
    heed_signals(&settings.stop)?;
    // SAFETY: the command line has been read, and no thread has been started yet.
    unsafe { share_cores(args.world.local_ranks()) };
    if settings.elastic {
        return run_elastic(args, settings);
    }
    args.world.run(|comm| on_rank(comm, args, None))
}

/// Makes signals request a stop. Must be called first, because until then signals kill this process. A launcher forwards signals to its ranks, and a
/// request on one rank is enough.
fn heed_signals(stop: &Stop) -> Result<(), Failure> {
    STOP.set(stop.flag()).expect("a command trains once");
    let unheeded = |error| Failure::Error(format!("cannot install signal handlers: {error}"));
    if Launcher::detect().rank.is_none() {
        // A second Ctrl-C takes its default action, because the flag is already set: the user does not want to wait. A launcher handles a second one
        // itself, and may deliver the first one twice.
        flag::register_conditional_default(SIGINT, stop.flag()).map_err(unheeded)?;
    }
    for signal in [SIGINT, SIGTERM, SIGUSR1] {
        flag::register(signal, stop.flag()).map_err(unheeded)?;
    }
    Ok(())
}

/// Runs this rank of an elastic run, in which lost workers are started again. It may be one of them.
fn run_elastic(args: &Args, settings: &Config) -> Result<(), Failure> {
    if let Err(error) = settings.check() {
        return Err(Failure::refusal(is_reporter(), error));
    }
    let launcher = Launcher::detect();
    let place = launcher.rank.zip(launcher.ranks).filter(|_| launcher.starter == Some(Starter::Variables));
    let (Some((rank, ranks)), Some(folder)) = (place, bootstrap_folder()) else {
        return Err(refused(
            "--elastic needs a launcher that does not end the job with one of its ranks: use unisono launch --elastic -n N -- unisono \
             train --strategy parameter-server --elastic"
                .to_owned(),
        ));
    };
    if settings.strategy == Some(Strategy::ParameterServer) && joins() {
        return end(settings.join_parameter_server(&folder, (rank, ranks)).map_err(failure)?);
    }
    args.world.run_elastic(|comm| on_rank(comm, args, Some(&folder)))
}

/// Trains on this rank. Workers join through `folder` if the run is elastic.
fn on_rank(comm: &mut Communicator, args: &Args, folder: Option<&Path>) -> Result<(), Failure> {
    let (settings, world) = (&args.options.settings, RunWorld::of(comm));
    let has_stopped = |summary: Summary| summary.stopped.is_some();
    let ended = match settings.strategy {
        Some(Strategy::ParameterServer) => serve(comm, args, &world, folder),
        Some(Strategy::Pipeline) => {
            if world.rank == 0 && settings.pipeline_length(world.ranks) == 1 {
                eprintln!("unisono: {UNCUT}");
            }
            settings.pipeline(comm).and_then(|run| train(run, args, &world)).map(has_stopped)
        }
        _ => settings.trainer(comm).and_then(|run| train(run, args, &world)).map(has_stopped),
    };
    end(ended.map_err(|error| match error {
        // The other rank reports that it was stopped, as this one was.
        TrainError::Elsewhere { .. } if settings.stop.is_asked() => Failure::Stopped,
        error => failure(error),
    })?)
}

fn end(has_stopped: bool) -> Result<(), Failure> {
    if has_stopped { Err(Failure::Stopped) } else { Ok(()) }
}

pub(super) fn failure(error: TrainError) -> Failure {
    match error {
        TrainError::Elsewhere { .. } => Failure::ReportedElsewhere,
        TrainError::Data(stopped @ DataError::Stopped) => {
            if is_reporter() {
                eprintln!("unisono: {stopped}: there is no step to save");
            }
            Failure::Stopped
        }
        error if error.is_bad_input() => Failure::BadInput(error.to_string()),
        error => Failure::Error(error.to_string()),
    }
}

/// The notice for a run whose pipelines have one rank each.
const UNCUT: &str = "each pipeline has one rank, so the model is not split over ranks: start more ranks (--threads N or \
                     mpirun -n N), or increase --stages";

/// The ranks that train, as described by the first lines of a run's output.
struct RunWorld {
    rank: usize,
    ranks: usize,
    nodes: usize,
    transport: &'static str,
}

impl RunWorld {
    fn of(comm: &Communicator) -> Self {
        let (rank, ranks, transport) = (comm.rank(), comm.ranks(), comm.transport());
        Self { rank, ranks, nodes: comm.topology().nodes(), transport }
    }
}

fn train<R: Replica, F: Feed<Batch = R::Batch>>(
    mut trainer: Trainer<'_, R, F>,
    args: &Args,
    world: &RunWorld,
) -> Result<Summary, TrainError> {
    if world.rank != 0 {
        return trainer.run(|_| ());
    }
    if args.format == Format::Table {
        introduce(&mut trainer, world, &args.options.settings);
    }
    let mut reporter = Reporter::new(args, trainer.settings().strategy.is_none());
    let summary = trainer.run(|event| reporter.report(&event))?;
    reporter.done(&summary);
    Ok(summary)
}

fn introduce<R: Replica, F: Feed<Batch = R::Batch>>(
    trainer: &mut Trainer<'_, R, F>,
    world: &RunWorld,
    settings: &Config,
) {
    let RunWorld { ranks, nodes, transport, .. } = *world;
    let ran = trainer.all_reduce();
    let RunSettings { buckets, rate, global_batch, input, computes, strategy, wire_choice, .. } =
        trainer.settings();
    let (wire, parameters) = (buckets.wire, trainer.parameter_count());
    println!("{}", opening(settings, parameters, trainer.sample_count(), *global_batch, *rate));
    for line in [input, computes].into_iter().flatten() {
        println!("{line}");
    }
    let by = match ran {
        Some(_) if matches!(wire, Wire::Compressed(_)) && nodes > 1 => {
            format!("in each of {nodes} nodes, and between them as {wire}")
        }
        Some(ran) => format!("by {}: {}", ran.method, ran.why),
        None => "in GPU memory".to_owned(),
    };
    match strategy {
        // The transport does not matter without other ranks.
        None if ranks == 1 => {}
        None => println!("{ranks} ranks over {transport}, all-reduce {by}"),
        Some(parts) => println!("{ranks} ranks over {transport}, {parts}"),
    }
    if let Some(why) = wire_choice {
        println!("gradients are sent as {wire}: {why}");
    }
    if let Some(buckets) = trainer.buckets().filter(|_| nodes > 1) {
        println!("buckets of {}", buckets.size());
    }
    if wire == Wire::Compressed(Compression::OneBit) && nodes > 1 {
        // Observed: a cnn does not learn at its usual rate of 0.05, but learns as usual at 0.01.
        eprintln!(
            "unisono: onebit delays large gradients: if the loss does not decrease, divide the --learning-rate by 5"
        );
    }
    if let Some(local) = settings.local_steps() {
        println!("parameters are averaged after local steps: {local}");
    }
    if let Some(buckets) = trainer.buckets().filter(|_| settings.shard_optimizer) {
        println!(
            "the update and the optimizer state are sharded: {} of {} buckets are reduce-scattered, the others all-reduced",
            buckets.scattered(),
            buckets.len()
        );
    }
    if matches!(wire, Wire::Compressed(_)) && nodes == 1 {
        println!("all ranks share a node: gradients are sent as f32 instead of {wire}");
    }
}

/// Trains with parameter servers. The coordinator prints progress. Returns whether the run has stopped on request.
fn serve(
    comm: &mut Communicator,
    args: &Args,
    world: &RunWorld,
    folder: Option<&Path>,
) -> Result<bool, TrainError> {
    let settings = &args.options.settings;
    let RunWorld { rank, ranks, transport, .. } = *world;
    let mut run = settings.parameter_server(comm)?;
    if let Some(folder) = folder {
        run = run.elastic(folder.to_owned());
    }
    if rank != 0 {
        return Ok(run.run(|_| ())?.has_stopped);
    }
    if args.format == Format::Table {
        let (feed, of_run) = (run.feed(), run.settings());
        let samples = feed.steps().and_then(|steps| feed.samples(steps));
        let (parameters, global_batch) = (run.parameter_count(), of_run.global_batch);
        println!("{}", opening(settings, parameters, samples, global_batch, of_run.rate));
        let (owned, size) = run.buckets();
        let owned: Vec<_> = owned.iter().map(usize::to_string).collect();
        let (servers, staleness) = (settings.servers, settings.staleness);
        println!(
            "{ranks} ranks over {transport}: {servers} server(s) with {} buckets of at most {size}; {} worker(s), with a staleness of {staleness}",
            owned.join(" and "),
            ranks - servers
        );
    }
    let mut reporter = Reporter::new(args, false);
    let ended = run.run(|event| reporter.report(&event))?;
    ended.summary.iter().for_each(|summary| reporter.done(summary));
    Ok(ended.has_stopped)
}

fn opening(
    settings: &Config,
    parameters: usize,
    samples: Option<usize>,
    global_batch: usize,
    rate: Rate,
) -> String {
    let Config { data, model, optimizer, .. } = settings;
    let samples = samples.map_or(String::new(), |samples| format!("{samples} samples in "));
    let (name, rate) = (optimizer.0.name(), rate.peak());
    format!(
        "{model} of {parameters} parameters on {data}, {samples}batches of {global_batch}; {name} at up to {rate:.3e}"
    )
}
