//! Values of metrics on any number of ranks, refused metrics, and names.

use super::*;

const CLASSES: usize = 3;
/// The second target is predicted correctly, the first is ranked second, the third last.
const VALUES: [f32; 9] = [3.0, 2.0, 1.0, 0.0, 5.0, 0.0, 1.0, 2.0, 0.0];
const TARGETS: [u32; 3] = [1, 1, 2];

/// The lowest output of any target, negated to make it a maximum.
#[derive(Debug)]
struct Worst;

impl Metric for Worst {
    fn name(&self) -> String {
        "worst".to_owned()
    }

    fn figures(&self, _: usize) -> usize {
        1
    }

    fn reduction(&self) -> Reduction {
        Reduction::Max
    }

    fn measure(&self, outputs: &Outputs<'_>, figures: &mut [f64]) {
        outputs.rows().for_each(|(row, target)| figures[0] = figures[0].max(-f64::from(row[target])));
    }

    fn value(&self, figures: &[f64]) -> f64 {
        -figures[0]
    }
}

fn metrics() -> Metrics {
    vec![Arc::new(TopK(1)), Arc::new(TopK(2)), Arc::new(F1), Arc::new(Worst)]
}

/// Returns the values on this many ranks. Each target is a batch.
fn values(ranks: usize) -> Measured {
    let measured = unisono::threads(ranks, |mut comm| {
        let metrics = metrics();
        let mut measuring = Measuring::new(&metrics);
        for batch in comm.own_part(3) {
            let values = &VALUES[batch * CLASSES..][..CLASSES];
            measuring.add(batch, &Outputs { values, classes: CLASSES, targets: &TARGETS[batch..=batch] });
        }
        measuring.values(&mut comm, 3).unwrap()
    });
    assert!(measured.iter().all(|own| *own == measured[0]));
    measured[0].clone()
}

#[test]
fn values_are_correct_and_the_same_on_any_number_of_ranks() {
    let alone = values(1);
    assert_eq!((alone["top-1"], alone["top-2"], alone["worst"]), (1.0 / 3.0, 2.0 / 3.0, 0.0));
    // Class 0 is predicted once and never correctly. Class 1 is predicted correctly once, of two predictions and two targets.
    assert!((alone["f1"] - (0.0 + 0.5 + 0.0) / 3.0).abs() < 1e-12, "{alone:?}");
    for ranks in [2, 3, 5] {
        assert_eq!(values(ranks), alone, "{ranks} ranks");
    }
}

#[test]
fn model_without_outputs_is_refused() {
    let refused =
        unisono::threads(2, |mut comm| Measuring::new(&metrics()).values(&mut comm, 3).unwrap_err());
    assert!(refused.iter().all(|error| error.to_string().contains("shows no outputs")));
}

#[test]
fn outputs_with_different_numbers_of_classes_are_refused() {
    for (ranks, batches) in [(1, [0, 0]), (1, [0, 1]), (2, [0, 1])] {
        let refused = unisono::threads(ranks, |mut comm| {
            let metrics = metrics();
            let mut measuring = Measuring::new(&metrics);
            for output in comm.own_part(2) {
                let outputs = [(&VALUES[..3], 3, &[2]), (&VALUES[..4], 4, &[3])];
                let (values, classes, targets) = outputs[output];
                measuring.add(batches[output], &Outputs { values, classes, targets });
            }
            measuring.values(&mut comm, 2).unwrap_err().to_string()
        });
        assert!(refused.iter().all(|why| why.contains("with 3 classes, and others with 4")), "{refused:?}");
    }
}

#[test]
fn metrics_of_classes_are_refused_for_a_regression() {
    let refused = unisono::threads(2, |mut comm| {
        let (metrics, target) = (metrics(), 2.5_f32.to_bits());
        let mut measuring = Measuring::new(&metrics);
        measuring.add(comm.rank(), &Outputs { values: &[2.0], classes: 1, targets: &[target] });
        measuring.values(&mut comm, 2).unwrap_err().to_string()
    });
    assert!(refused.iter().all(|why| why.contains("top-1 says nothing")), "{refused:?}");
}

#[test]
fn nan_outputs_count_as_wrong() {
    let values = [f32::NAN, 0.0, f32::NAN, f32::NAN, 0.0, f32::NAN];
    let outputs = Outputs { values: &values, classes: 2, targets: &[0, 1, 0] };
    let mut figures = [0.0; 2];
    TopK(1).measure(&outputs, &mut figures);
    assert_eq!(figures, [0.0, 3.0]);
    let mut figures = [0.0; 6];
    F1.measure(&outputs, &mut figures);
    assert_eq!(F1.value(&figures), 0.0);
}

#[test]
fn duplicate_and_meaningless_metrics_are_refused() {
    let refused = |metrics: Metrics, classes| check(&metrics, classes).unwrap_err().to_string();
    let twice: Metrics = vec![Arc::new(F1), Arc::new(TopK(2)), Arc::new(F1)];
    assert!(refused(twice, None).contains("f1 is asked for twice"));
    assert!(refused(vec![Arc::new(TopK(3))], Some(3)).contains("top-3 says nothing: one of 3 guesses"));
    assert!(check(&metrics()[..3], Some(3)).is_ok());
}

#[test]
fn metric_names_round_trip_through_text() {
    for name in ["top-5", "f1", "r2", "mae"] {
        assert_eq!(name.parse::<Named>().unwrap().0.name(), name);
    }
    for nonsense in ["", "top-", "top-0", "f2", "top5"] {
        assert!(
            nonsense
                .parse::<Named>()
                .unwrap_err()
                .to_string()
                .contains("top-5, f1, r2 or mae; K is at least 1")
        );
    }
}

#[test]
fn metrics_match_the_errors_of_the_rows() {
    // The errors are 1, -1 and 2; the targets have the mean 2, and a sum of squared distances of 2.
    let targets = [1.0_f32, 2.0, 3.0].map(f32::to_bits);
    let outputs = Outputs { values: &[2.0, 1.0, 5.0], classes: 1, targets: &targets };
    let value = |metric: Regression| {
        let mut figures = vec![0.0; metric.figures(1)];
        metric.measure(&outputs, &mut figures);
        metric.value(&figures)
    };
    assert_eq!([Regression::R2, Regression::Mae].map(value), [1.0 - 6.0 / 2.0, 4.0 / 3.0]);
    assert!(Regression::R2.refuses(3).is_some_and(|why| why.contains("one of 3 classes")));
    assert_eq!(Regression::R2.refuses(1), None);
}
