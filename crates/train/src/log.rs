//! TensorBoard files.

use std::path::PathBuf;
use std::time::Instant;

use crate::metrics::Measured;
use crate::tensorboard::EventFile;
use crate::{EpochReport, Evaluation, Event, RunSettings, StepEvent, TrainError, WorkerReport, agree};
use unisono::Communicator;

/// The logs of a run. Only rank 0 writes.
#[derive(Debug)]
pub(crate) struct Log {
    file: Option<EventFile>,
    /// The end of the last step, evaluation or save.
    since: Instant,
}

impl Log {
    /// Opens the requested files; a resumed run continues after `resumed` steps. Called by all ranks.
    pub(crate) fn open(
        comm: &mut Communicator,
        settings: &RunSettings,
        resumed: Option<u64>,
    ) -> Result<Self, TrainError> {
        let open = |directory: &PathBuf| {
            let opened = EventFile::create(directory).and_then(|mut file| {
                resumed.map_or(Ok(()), |steps| file.resume(steps + 1))?;
                Ok(file)
            });
            opened.map_err(|error| TrainError::Log { error })
        };
        let directory = settings.log_directory.as_ref().filter(|_| comm.rank() == 0);
        let file = agree(comm, directory.map(open).transpose())?;
        Ok(Self { file, since: Instant::now() })
    }

    /// Excludes the time before this call from the time of the next step.
    pub(crate) fn restart(&mut self) {
        self.since = Instant::now();
    }

    pub(crate) fn flush(&mut self) -> Result<(), TrainError> {
        self.file.as_mut().map_or(Ok(()), EventFile::flush).map_err(|error| TrainError::Log { error })
    }

    /// Writes the curves of an event after this many steps of the run, if the event has any.
    pub(crate) fn write(&mut self, step: u64, event: &Event) -> Result<(), TrainError> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let took = self.since.elapsed().as_secs_f64();
        self.since = Instant::now();
        let mut curves = Vec::new();
        let mut curve = |name: &str, value: f64| curves.push((name.to_owned(), value));
        match event {
            Event::Step(StepEvent { loss, rate, targets, times, .. }) => {
                curve("train/loss", *loss);
                curve("train/learning rate", *rate);
                curve("time/targets per second", targets / took);
                let exposed = 100.0 * times.exposed.as_secs_f64() / took;
                curve("time/exposed communication percent", exposed);
            }
            Event::Evaluation(evaluation) => {
                let Evaluation { test_loss, test_accuracy, metrics, .. } = evaluation;
                tested("evaluation", *test_loss, *test_accuracy, metrics, curve);
            }
            Event::Epoch(report) => {
                let EpochReport { test_loss, test_accuracy, metrics, .. } = report;
                tested("epoch", *test_loss, *test_accuracy, metrics, &mut curve);
                curve("epoch/loss", report.loss);
                curve("epoch/samples per second", report.samples_per_s);
                curve("epoch/exposed communication percent", report.exposed_communication_percent);
                curve("epoch/input percent", report.input_percent);
                for stage in &report.input_stages {
                    curve(&format!("input/{} busy percent", stage.name), 100.0 * stage.busy);
                }
            }
            Event::Workers(report) => {
                for WorkerReport { rank, targets_per_s, waits_percent, .. } in &report.workers {
                    curve(&format!("workers/rank {rank} targets per second"), *targets_per_s);
                    curve(&format!("workers/rank {rank} waits percent"), *waits_percent);
                }
                curve("workers/updates missed, mean", report.mean_missed());
                curve("workers/updates missed, most", report.most_missed() as f64);
            }
            Event::Resumed { .. } | Event::Stragglers(_) | Event::Notice(_) => return Ok(()),
        }
        file.scalars(step, &curves).map_err(|error| TrainError::Log { error })?;
        if matches!(event, Event::Epoch(_)) { self.flush() } else { Ok(()) }
    }
}

/// Writes the curves of an evaluation. A regression has no accuracy.
fn tested(group: &str, loss: f64, accuracy: f64, metrics: &Measured, mut curve: impl FnMut(&str, f64)) {
    curve(&format!("{group}/test loss"), loss);
    if !accuracy.is_nan() {
        curve(&format!("{group}/test accuracy"), accuracy);
    }
    metrics.iter().for_each(|(name, &value)| curve(&format!("{group}/{name}"), value));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Test;

    #[test]
    fn time_of_a_step_excludes_the_evaluation_before_it() {
        let directory = tempfile::tempdir().unwrap();
        let since = Instant::now() - Duration::from_millis(50);
        let mut log = Log { file: Some(EventFile::create(directory.path()).unwrap()), since };
        log.write(1, &Event::Evaluation(Test::default().evaluation(1, 1))).unwrap();
        assert!(log.since - since >= Duration::from_millis(50));
    }
}
