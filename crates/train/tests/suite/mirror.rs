//! The mirrored step and the trainer.

use unisono::DType;
use unisono_compress::Compression;
use unisono_train::{
    BucketBytes, BucketSettings, Fill, Gradients, LossSums, Mirror, OptimizerSettings, Order, Overlap, Share,
    Shares, TrainError, Wire,
};

pub(crate) mod across;
pub(crate) mod callback;
pub(crate) mod compressed;
pub(crate) mod diverges;
pub(crate) mod line;
pub(crate) mod local;
pub(crate) mod ranks;
pub(crate) mod sharded;
pub(crate) mod stop;
pub(crate) mod trainer;

use line::{BIAS, COUNTER, Line, UNUSED, WEIGHT, points, sgd};
use unisono_testing::suite::Test;
use unisono_testing::tests;

/// Returns the values of rank 0's replica after `steps` steps over 60 points, and the norm of the last report.
fn trained(
    ranks: usize,
    buckets: &BucketSettings,
    clip_norm: Option<f64>,
    passes: impl Fn(Shares) -> Shares + Sync,
) -> Vec<Vec<f32>> {
    let results = unisono::threads(ranks, |mut comm| -> Result<_, TrainError> {
        let rank = comm.rank();
        let mut mirror = Mirror::new(&mut comm, Line::new(), sgd(), buckets, clip_norm)?;
        let all = points(60);
        for step in 0..20 {
            let size = 60 - step % 3;
            let shares =
                passes(Shares { rank, ranks, global_batch: 60, micro_batch: 60, fixed_passes: None });
            let batches: Vec<_> = shares
                .passes(size)
                .into_iter()
                .map(|pass| (!pass.is_empty()).then(|| all[pass].to_vec()))
                .collect();
            let share = Share::of(&batches);
            let report = mirror.step(&mut comm, share, 0.05, |_| true)?;
            assert_eq!(report.sums.tally.targets, size as f64);
            let expected: &[&str] = if step == 0 && !batches.is_empty() { &["unused"] } else { &[] };
            assert_eq!(report.without_gradient, expected, "named once");
        }
        Ok(mirror.replica().values.clone())
    });
    let mut results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "all ranks hold the same");
    results.swap_remove(0)
}

/// Returns the largest difference between values.
fn apart(one: &[Vec<f32>], other: &[Vec<f32>]) -> f32 {
    let pairs = one.iter().flatten().zip(other.iter().flatten());
    pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
}

fn mean_is_weighted_for_any_shares_and_passes() {
    let alone = trained(1, &BucketSettings::default(), None, |shares| shares);
    assert_ne!(alone[WEIGHT], Line::new().values[WEIGHT]);
    assert_eq!(alone[COUNTER], [7.0; 2], "what is not trained stays");
    for (ranks, micro_batch) in [(1, 7), (2, 60), (3, 11), (7, 4)] {
        let settings = BucketSettings::default();
        let together = trained(ranks, &settings, None, |shares| Shares { micro_batch, ..shares });
        assert!(apart(&alone, &together) < 1e-5, "{ranks} ranks: {alone:?} {together:?}");
    }
}

fn bucket_size_and_overlap_do_not_change_the_bits() {
    let usual = trained(3, &BucketSettings::default(), None, |shares| shares);
    for overlap in [Overlap::Beside, Overlap::InTurn] {
        for bytes in [1, 64, 1 << 20] {
            let settings = BucketSettings {
                overlap,
                first_bucket_bytes: bytes,
                bucket_bytes: BucketBytes::Fixed(bytes),
                ..BucketSettings::default()
            };
            assert_eq!(trained(3, &settings, None, |shares| shares), usual, "{overlap} {bytes}");
        }
    }
}

fn tree_order_has_the_same_bits_on_any_number_of_ranks() {
    let settings = BucketSettings { order: Order::Tree, ..BucketSettings::default() };
    let fixed = |shares: Shares| Shares { fixed_passes: Some(8), ..shares };
    let alone = trained(1, &settings, None, fixed);
    for ranks in [2, 4, 8] {
        for overlap in [Overlap::Beside, Overlap::InTurn] {
            let settings = BucketSettings { overlap, ..settings.clone() };
            assert_eq!(trained(ranks, &settings, None, fixed), alone, "{ranks} ranks, {overlap}");
        }
    }
    let free = trained(4, &BucketSettings::default(), None, |shares| shares);
    assert!(apart(&free, &alone) < 1e-5);
    let refused = unisono::threads(3, |mut comm| {
        Mirror::new(&mut comm, Line::new(), sgd(), &settings, None).unwrap_err().to_string()
    });
    assert!(refused.iter().all(|message| message.contains("there are 3")), "{refused:?}");
}

fn half_precision_wire_formats_are_close_to_f32() {
    let usual = trained(2, &BucketSettings::default(), None, |shares| shares);
    for (wire, most) in [(Wire::Bf16, 2e-2), (Wire::F16, 2e-3)] {
        let settings = BucketSettings { wire, f16_scale: 1.0 / 32.0, ..BucketSettings::default() };
        let found = trained(2, &settings, None, |shares| shares);
        assert_ne!(found, usual, "{wire} rounds");
        assert!(apart(&usual, &found) < most, "{wire}: {usual:?} {found:?}");
    }
}

fn gradient_is_clipped_by_its_norm_over_all_ranks() {
    let norms = |ranks: usize, clip: Option<f64>| {
        let results = unisono::threads(ranks, |mut comm| {
            let optimizer = OptimizerSettings { weight_decay: 0.0, ..sgd() };
            let mut mirror =
                Mirror::new(&mut comm, Line::new(), optimizer, &BucketSettings::default(), clip).unwrap();
            let own = comm.own_part(60);
            let batch = [Some(points(60)[own].to_vec())];
            let share = Share::of(&batch);
            let before = mirror.replica().values.clone();
            let report = mirror.step(&mut comm, share, 1.0, |_| true).unwrap();
            let pairs = before.iter().flatten().zip(mirror.replica().values.iter().flatten());
            let moved = pairs.map(|(before, after)| f64::from(before - after).powi(2)).sum::<f64>().sqrt();
            (report.norm, moved)
        });
        results[0]
    };
    let (_, whole) = norms(1, None);
    for ranks in [1, 3] {
        let (norm, moved) = norms(ranks, Some(whole / 4.0));
        assert!((norm.unwrap() - whole).abs() < 1e-5 * whole);
        assert!((moved - whole / 4.0).abs() < 1e-5 * whole, "{moved} {whole}");
    }
}

fn buckets_work_in_a_custom_training_loop() {
    unisono::threads(2, |mut comm| {
        let parameters = Line::new().parameters;
        let (wire, overlap) = (Wire::Bf16, Overlap::Beside);
        let settings = BucketSettings { wire, overlap, ..BucketSettings::default() };
        let mut buckets = unisono_train::Buckets::new(&mut comm, &parameters, &settings).unwrap();
        for step in 0..3 {
            for number in 0..2 {
                let pass = unisono_train::Pass { number, of: 2, ..unisono_train::Pass::ONLY };
                let mut filling = buckets.fill(&mut comm, pass);
                filling.record_loss(LossSums { targets: 1.0, loss: 0.5, correct: 0.0 });
                filling.put(WEIGHT, &mut |gradient, fill| {
                    assert_eq!(fill, if number == 0 { Fill::Set } else { Fill::Add });
                    fill.write(gradient, &[1.0, 2.0, 4.0]);
                });
                assert_eq!(filling.end().unwrap(), [BIAS, UNUSED]);
            }
            if step != 1 {
                // A step may leave the sums unread.
                let expected = LossSums { targets: 4.0, loss: 2.0, correct: 0.0 };
                assert_eq!(buckets.sums().unwrap().tally, expected);
            }
            assert_eq!(buckets.gradient(WEIGHT).unwrap(), [4.0, 8.0, 16.0], "step {step}");
            assert_eq!(buckets.gradient(BIAS).unwrap(), [0.0]);
            buckets.land_all().unwrap();
        }
        assert_eq!(
            buckets.ran(&mut comm).method,
            comm.selection(&unisono::Call::all_reduce(DType::BF16, unisono::ReduceOp::Sum, 80)).method
        );
    });
}

fn invalid_settings_of_buckets_are_refused() {
    let usual = BucketSettings::default;
    let compressed = |compression| BucketSettings { wire: Wire::Compressed(compression), ..usual() };
    let scaled = |f16_scale| BucketSettings { wire: Wire::F16, f16_scale, ..usual() };
    for (settings, expected) in [
        (BucketSettings { order: Order::Tree, wire: Wire::Bf16, ..usual() }, "rounded to bf16"),
        (BucketSettings { order: Order::Tree, ..compressed(Compression::Int8) }, "rounded to int8"),
        (compressed(Compression::TopK { fraction: f64::NAN }), "`topk:NaN`"),
        (compressed(Compression::Threshold { least: 0.0 }), "`threshold:0`"),
        (compressed(Compression::PowerSgd { rank: 0 }), "`powersgd:0`"),
        (scaled(0.0), "the scale of f16 is `0`"),
        (scaled(f32::NAN), "the scale of f16 is `NaN`"),
        (scaled(3.0), "the scale of f16 is `3`"),
    ] {
        let refused = unisono::threads(2, |mut comm| {
            Mirror::new(&mut comm, Line::new(), sgd(), &settings, None).unwrap_err().to_string()
        });
        assert!(refused.iter().all(|why| why.contains(expected)), "{refused:?}");
    }
}

fn request_of_a_rank_reaches_all_if_no_parameter_is_trained() {
    let asked = unisono::threads(2, |mut comm| {
        let mut line = Line::new();
        line.parameters.iter_mut().for_each(|parameter| parameter.is_trained = false);
        let mut mirror = Mirror::new(&mut comm, line, sgd(), &BucketSettings::default(), None).unwrap();
        let batches = [None];
        let share = Share { asks_to_stop: comm.rank() == 1, ..Share::of(&batches) };
        mirror.step(&mut comm, share, 0.05, |_| true).unwrap().sums.ranks_to_stop
    });
    assert_eq!(asked, [1.0, 1.0]);
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        invalid_settings_of_buckets_are_refused,
        request_of_a_rank_reaches_all_if_no_parameter_is_trained,
        mean_is_weighted_for_any_shares_and_passes,
        bucket_size_and_overlap_do_not_change_the_bits,
        tree_order_has_the_same_bits_on_any_number_of_ranks,
        half_precision_wire_formats_are_close_to_f32,
        gradient_is_clipped_by_its_norm_over_all_ranks,
        buckets_work_in_a_custom_training_loop,
    ]
}
