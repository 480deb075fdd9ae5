//! Ranks that differ from the others: each is named, on every rank.

use std::time::Duration;

use unisono::Communicator;
use unisono_train::metrics::VisitOutputs;
use unisono_train::{
    BucketSettings, Event, Gradients, LossSums, Mirror, OutOfData, Parameter, Parts, Replica, ReplicaError,
    RunSettings, StragglerReport, Trainer,
};

use super::line::{BIAS, Line, Point, UNUSED, WEIGHT, sgd};
use super::trainer::{run_settings, stream};
use unisono_testing::suite::Test;
use unisono_testing::tests;

/// Returns the errors of `Mirror::new` on each of three ranks, some of whose models `change` has modified.
fn refused(change: impl Fn(usize, &mut Line) + Sync) -> Vec<String> {
    unisono::threads(3, |mut comm| {
        let mut line = Line::new();
        change(comm.rank(), &mut line);
        Mirror::new(&mut comm, line, sgd(), &BucketSettings::default(), None).unwrap_err().to_string()
    })
}

fn assert_all(messages: &[String], parts: &[&str]) {
    for message in messages {
        for part in parts {
            assert!(message.contains(part), "no {part:?} in {message}");
        }
    }
}

fn differing_models_are_reported_with_parameter_names() {
    let shape = refused(|rank, line| {
        if rank == 2 {
            line.parameters[UNUSED].shape = vec![4, 10];
        }
    });
    assert_all(&shape, &["rank 2's differs", "unused is [40] f32 on rank 0, and [4, 10] f32 on rank 2"]);

    let missing = refused(|rank, line| {
        if rank > 0 {
            line.parameters.remove(BIAS);
            line.values.remove(BIAS);
            line.parameters[0].is_trained = rank != 1;
        }
    });
    assert_all(
        &missing,
        &[
            "those of ranks [1, 2] differ from rank 0's",
            "rank 1 lacks bias [1] f32, which rank 0 has",
            "weight is [1, 3] f32 on rank 0, and [1, 3] f32, not trained on rank 1",
        ],
    );

    let more = refused(|rank, line| {
        if rank == 1 {
            for number in 0..20 {
                line.parameters.push(Parameter::new(format!("extra.{number}"), [2]));
                line.values.push(vec![0.0; 2]);
            }
        }
    });
    assert_all(&more, &["rank 1 has extra.0 [2] f32, which rank 0 lacks", "; and 12 more"]);

    let order = refused(|rank, line| {
        if rank == 1 {
            line.parameters.swap(WEIGHT, BIAS);
        }
    });
    assert_all(&order, &["where rank 0 has weight, rank 1 has bias: the same parameters, in another order"]);
}

fn model_with_two_parameters_of_the_same_name_is_refused() {
    let refused = refused(|_, line| line.parameters[UNUSED].name = "bias".to_owned());
    assert_all(&refused, &["two parameters of the model are called `bias`"]);
    let refused = self::refused(|_, line| line.parameters[UNUSED].name = "__metadata__".to_owned());
    assert_all(&refused, &["called `__metadata__`, which checkpoints reserve"]);

    let is_shared = |_, line: &mut Line| line.parameters[UNUSED].name = "shared".to_owned();
    let refused = errors_in_parts(4, is_shared, |_, _, _| ());
    assert_all(&refused, &["two parameters of the model are called `shared`"]);
}

/// A line that runs a function in each pass of one rank. Passes are counted from 1. It may be a part of a model.
pub(crate) struct Odd<D> {
    line: Line,
    others: Option<Communicator>,
    passes: usize,
    /// Whether each pass waits for the values before it runs the function.
    pub(crate) brings_values: bool,
    does: D,
}

impl<D> Odd<D> {
    pub(crate) fn new(line: Line, others: Option<Communicator>, does: D) -> Self {
        Self { line, others, passes: 0, brings_values: false, does }
    }
}

impl<D: FnMut(usize, &mut Line)> Replica for Odd<D> {
    type Batch = Vec<Point>;

    fn parameters(&self) -> &[Parameter] {
        self.line.parameters()
    }

    fn pass(&mut self, points: &Vec<Point>, gradients: &mut dyn Gradients) -> Result<(), ReplicaError> {
        self.passes += 1;
        if self.brings_values {
            for (index, values) in self.line.values.iter_mut().enumerate() {
                gradients.wait_for_param(index, values)?;
            }
        }
        (self.does)(self.passes, &mut self.line);
        self.line.pass(points, gradients)
    }

    fn evaluate(
        &mut self,
        points: &Vec<Point>,
        visit: Option<VisitOutputs<'_>>,
    ) -> Result<LossSums, ReplicaError> {
        self.line.evaluate(points, visit)
    }

    fn parts(&mut self) -> Option<Parts<'_>> {
        self.others.as_mut().map(|comm| Parts { comm, first: &[0] })
    }

    fn with_values(&mut self, index: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError> {
        self.line.with_values(index, visit)
    }

    fn brings_values(&self) -> bool {
        self.brings_values
    }
}

/// Returns the results of each of three ranks in a run of one epoch of ten steps, with the straggler reports.
fn run(
    settings: &RunSettings,
    does: impl Fn(usize, usize, &mut Line) + Sync,
) -> Vec<(Result<String, String>, Vec<StragglerReport>)> {
    unisono::threads(3, |mut comm| {
        let rank = comm.rank();
        let does = |pass, line: &mut Line| does(rank, pass, line);
        let odd = Odd::new(Line::new(), None, does);
        let feed = stream(rank, &[10, 10, 10]);
        let mut told = Vec::new();
        let ended = Trainer::new(&mut comm, odd, feed, settings.clone(), None).unwrap().run(|event| {
            if let Event::Stragglers(report) = event {
                told.push(report);
            }
        });
        (ended.map(|summary| summary.parameters_hash).map_err(|error| error.to_string()), told)
    })
}

fn errors(settings: &RunSettings, does: impl Fn(usize, usize, &mut Line) + Sync) -> Vec<String> {
    run(settings, does).into_iter().map(|(ended, _)| ended.unwrap_err()).collect()
}

fn differing_replicas_are_reported_with_rank_and_parameter() {
    let settings = run_settings(1, OutOfData::Error);
    let drifts = |odd: &'static [usize]| {
        errors(&settings, move |rank, pass, line| {
            if odd.contains(&rank) && pass == 2 {
                line.values[BIAS][0] += 1e-4;
            }
        })
    };
    let said = ["after step 2", "ranks [1] differ from those of the others; on rank 1 from bias on"];
    assert_all(&drifts(&[1]), &said);
    // Rank 0 may be in the minority too.
    assert_all(&drifts(&[0]), &["ranks [0] differ from those of the others; on rank 0 from bias on"]);
}

fn ranks_whose_loss_is_not_finite_are_named() {
    let settings = RunSettings { verify_replicas_every: None, ..run_settings(1, OutOfData::Error) };
    let spoilt = |value: f32, odd: &'static [usize]| {
        errors(&settings, move |rank, pass, line| {
            if odd.contains(&rank) && pass == 4 {
                line.values[WEIGHT][0] = value;
            }
        })
    };
    let one = ["the loss of rank 2 of 3 is not finite (NaN) in epoch 1, step 4: look at the samples there"];
    assert_all(&spoilt(f32::NAN, &[2]), &one);
    assert_all(&spoilt(f32::INFINITY, &[0, 1]), &["the loss of ranks [0, 1] of 3 is not finite (inf)"]);
    assert_all(
        &spoilt(f32::NAN, &[0, 1, 2]),
        &["the loss of all 3 ranks is not finite", "lower learning rate"],
    );
}

/// Returns the errors of runs of models in two parts, on pairs of ranks. `change` modifies the parts before the run, and `does` in passes.
fn errors_in_parts(
    ranks: usize,
    change: impl Fn(usize, &mut Line) + Sync,
    does: impl Fn(usize, usize, &mut Line) + Sync,
) -> Vec<String> {
    unisono::threads(ranks, |mut comm| {
        let (rank, mut line) = (comm.rank(), Line::new());
        if rank % 2 == 0 {
            line.parameters.iter_mut().for_each(|parameter| parameter.name.insert_str(0, "first."));
        }
        change(rank, &mut line);
        let others = comm.split(Some(rank / 2), 0).unwrap();
        let odd = Odd::new(line, others, |pass, line: &mut Line| does(rank, pass, line));
        let settings = run_settings(1, OutOfData::Error);
        let trainer = Trainer::new(&mut comm, odd, stream(rank, &[10; 4]), settings, None);
        trainer.and_then(|trainer| trainer.run(|_| ())).unwrap_err().to_string()
    })
}

fn ranks_of_parts_are_named_by_their_numbers_in_the_run() {
    let spoils = |rank, pass, line: &mut Line| {
        if rank == 1 && pass == 2 {
            line.values[UNUSED][0] = 1e30;
        }
    };
    let found = errors_in_parts(2, |_, _| (), spoils);
    assert_all(&found, &["the largest value of unused is 1e30 on rank 1 in step 2"]);

    let lacks = |rank, line: &mut Line| {
        if rank == 3 {
            line.parameters.remove(BIAS);
            line.values.remove(BIAS);
        }
    };
    let found = errors_in_parts(4, lacks, |_, _, _| ());
    let numbers = "rank 1 lacks bias [1] f32, which rank 0 has; these are numbers among ranks [1, 3], which hold the same part";
    assert_all(&found[1..2], &["rank 1's differs from rank 0's", numbers]);
}

fn a_rank_that_is_slow_is_named() {
    let settings = RunSettings {
        straggler_every: Some(4),
        verify_replicas_every: None,
        ..run_settings(1, OutOfData::Error)
    };
    let told = run(&settings, |rank, _, _| {
        std::thread::sleep(Duration::from_millis(if rank == 1 { 150 } else { 20 }));
    });
    let steps: Vec<_> = told[0].1.iter().map(|report| (report.step, report.steps)).collect();
    assert_eq!(steps, [(4, 4), (8, 4)]);
    for (ended, reports) in &told {
        assert!(ended.is_ok(), "{ended:?}");
        assert_eq!(*reports, told[0].1, "all ranks know the same");
    }
    for report in &told[0].1 {
        let slowest = report.slowest.as_ref().expect("rank 1 stands out");
        assert_eq!(slowest.rank, 1);
        assert!(!slowest.host.is_empty());
        assert!(slowest.busy_s >= 4.0 * 0.15 && slowest.others_busy_s >= 4.0 * 0.02, "{report:?}");
        // The others waited 130 ms a step for it, or less if a busy machine delayed them too.
        assert!(slowest.lateness_s > 0.04 && slowest.lateness_s <= slowest.busy_s, "{report:?}");
        assert_eq!(report.ranks[1].lateness_s, slowest.lateness_s);
    }
}

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = tests![
        differing_models_are_reported_with_parameter_names,
        model_with_two_parameters_of_the_same_name_is_refused,
        differing_replicas_are_reported_with_rank_and_parameter,
        ranks_whose_loss_is_not_finite_are_named,
        ranks_of_parts_are_named_by_their_numbers_in_the_run,
    ];
    tests.push(Test::new("a_rank_that_is_slow_is_named", a_rank_that_is_slow_is_named).timed());
    tests
}
