//! TensorBoard files and traces.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::trace::{self, Recorder};
use crate::compare::agree;
use crate::error::TrainError;
use crate::metrics::Measured;
use crate::replica::Replica;
use crate::report::{EpochReport, Evaluation, WorkerReport, WorkersReport};
use crate::run::RunSettings;
use crate::share::StepReport;
use crate::step::Mirror;
use crate::tensorboard::EventFile;
use unisono::Communicator;

/// The maximum number of spans per rank in a trace.
const SPANS: usize = 100_000;

/// The logs of a run. Only rank 0 writes.
#[derive(Debug)]
pub struct Log {
    file: Option<EventFile>,
    trace: Option<PathBuf>,
    last_step: Instant,
}

impl Log {
    /// Opens the requested files; a resumed run continues after `resumed` steps. Called by all ranks.
    pub fn open(
        comm: &mut Communicator,
        settings: &RunSettings,
        resumed: Option<u64>,
    ) -> Result<Self, TrainError> {
        let file = match &settings.log_directory {
            Some(directory) if comm.rank() == 0 => {
                open(directory, resumed).map(Some).map_err(|error| cannot_write(directory, error))
            }
            _ => Ok(None),
        };
        let file = agree(comm, file)?;
        Ok(Self { file, trace: settings.trace.clone(), last_step: Instant::now() })
    }

    /// Makes the mirror record spans for the trace. Called by all ranks.
    pub(super) fn record<R: Replica>(
        &self,
        comm: &mut Communicator,
        mirror: &mut Mirror<R>,
    ) -> Result<(), TrainError> {
        if self.trace.is_some() {
            // After a barrier: all ranks start their clocks at about the same moment.
            comm.barrier()?;
            mirror.record(Some(Recorder::new(comm.rank(), Instant::now(), SPANS)));
        }
        Ok(())
    }

    /// Writes a step's curves.
    pub fn step(&mut self, step: u64, report: &StepReport, rate: f64) -> Result<(), TrainError> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let took = self.last_step.elapsed().as_secs_f64();
        self.last_step = Instant::now();
        let tally = report.sums.tally;
        let written = file.scalars(
            step,
            &[
                ("train/loss", tally.mean_loss()),
                ("train/learning rate", rate),
                ("time/targets per second", tally.targets / took),
                ("time/exposed communication percent", 100.0 * report.times.exposed.as_secs_f64() / took),
            ],
        );
        written.map_err(|error| cannot_write(file.path(), error))
    }

    /// Writes an evaluation's curves.
    pub fn evaluation(&mut self, evaluation: &Evaluation) -> Result<(), TrainError> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let Evaluation { step, test_loss, test_accuracy, metrics, .. } = evaluation;
        let curves = [("evaluation/test loss", *test_loss), ("evaluation/test accuracy", *test_accuracy)];
        // A regression has no accuracy.
        let curves = &curves[..if test_accuracy.is_nan() { 1 } else { 2 }];
        let written =
            file.scalars(*step, curves).and_then(|()| of_metrics(file, *step, "evaluation", metrics));
        written.map_err(|error| cannot_write(file.path(), error))
    }

    /// Writes the curves of the workers of parameter servers.
    pub fn workers(&mut self, step: u64, report: &WorkersReport) -> Result<(), TrainError> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let of_worker = |worker: &WorkerReport| {
            let WorkerReport { rank, targets_per_s, waits_percent, .. } = *worker;
            let name = |what: &str| format!("workers/rank {rank} {what}");
            [(name("targets per second"), targets_per_s), (name("waits percent"), waits_percent)]
        };
        let mut curves: Vec<_> = report.workers.iter().flat_map(of_worker).collect();
        curves.push(("workers/updates missed, mean".to_owned(), report.mean_missed()));
        curves.push(("workers/updates missed, most".to_owned(), report.most_missed() as f64));
        let curves: Vec<_> = curves.iter().map(|(name, value)| (&**name, *value)).collect();
        file.scalars(step, &curves).map_err(|error| cannot_write(file.path(), error))
    }

    /// Writes an epoch's curves.
    pub fn epoch(&mut self, step: u64, report: &EpochReport) -> Result<(), TrainError> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let written = file.scalars(
            step,
            &[
                ("epoch/loss", report.loss),
                ("epoch/test loss", report.test_loss),
                ("epoch/samples per second", report.samples_per_s),
                ("epoch/exposed communication percent", report.exposed_communication_percent),
                ("epoch/input percent", report.input_percent),
            ],
        );
        let accuracy = [("epoch/test accuracy", report.test_accuracy)];
        // A regression has none.
        let accuracy = &accuracy[..usize::from(!report.test_accuracy.is_nan())];
        let written = written.and_then(|()| file.scalars(step, accuracy));
        let written = written.and_then(|()| of_metrics(file, step, "epoch", &report.metrics));
        let stages: Vec<_> = report
            .input_stages
            .iter()
            .map(|stage| (format!("input/{} busy percent", stage.name), 100.0 * stage.busy))
            .collect();
        let stages: Vec<_> = stages.iter().map(|(tag, busy)| (&**tag, *busy)).collect();
        let written = written.and_then(|()| file.scalars(step, &stages));
        written.and_then(|()| file.flush()).map_err(|error| cannot_write(file.path(), error))
    }

    /// Writes the spans of all ranks into one file. Called by all ranks.
    pub(super) fn finish<R: Replica>(
        &mut self,
        comm: &mut Communicator,
        mirror: &mut Mirror<R>,
    ) -> Result<(), TrainError> {
        let (Some(path), Some(recorder)) = (self.trace.take(), mirror.record(None)) else { return Ok(()) };
        let traces = trace::gather(comm, recorder)?;
        let merged = traces.map_or(Ok(()), |traces| {
            trace::merge(&path, &traces).map_err(|error| cannot_write(&path, error))
        });
        agree(comm, merged)
    }
}

fn of_metrics(file: &mut EventFile, step: u64, group: &str, metrics: &Measured) -> io::Result<()> {
    metrics.iter().try_for_each(|(name, &value)| file.scalars(step, &[(&format!("{group}/{name}"), value)]))
}

fn open(directory: &Path, resumed: Option<u64>) -> io::Result<EventFile> {
    let mut file = EventFile::create(directory)?;
    if let Some(steps) = resumed {
        file.resume(steps + 1)?;
    }
    Ok(file)
}

fn cannot_write(path: &Path, error: io::Error) -> TrainError {
    TrainError::Log { what: path.display().to_string(), error }
}
