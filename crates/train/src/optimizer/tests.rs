//! Compares optimizers with their definitions in `f64`, and bit for bit where that is guaranteed.

use std::convert::Infallible;

use super::adamw::{Adam, AdamStep};
use super::passes::Largest;
use super::sgd::SgdStep;
use super::*;

const COUNTS: [usize; 7] = [0, 1, 7, 16, 33, 257, 1009];

/// Pseudo-random numbers around zero.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut random = move || {
        // A linear congruential generator; its upper bits are good enough here.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| random()).collect()
}

fn named(text: &str) -> Arc<dyn UpdateRule> {
    text.parse::<NamedRule>().unwrap().0
}

/// Returns all optimizers of the catalogue and their variants, with weight decay.
fn all() -> Vec<OptimizerSettings> {
    let forms = ["sgd:nesterov=true", "adamw:amsgrad=true"];
    let mut rules: Vec<_> = names().chain(forms).map(named).collect();
    rules.push(Arc::new(Averaged::new(rules[0].clone(), 0.75)));
    rules.into_iter().map(|rule| OptimizerSettings { weight_decay: 0.125, ..rule.into() }).collect()
}

/// The reference run of an optimizer. `tests/reference/optimizers.py` computed it with PyTorch, or by the formulas of a paper.
#[derive(serde::Deserialize)]
struct Reference {
    optimizer: String,
    rate: f32,
    weight_decay: f32,
    values: Vec<f32>,
    gradients: Vec<Vec<f32>>,
    expected: Vec<f64>,
}

#[test]
fn steps_match_pytorch_and_the_papers() {
    let text = include_str!("../../tests/reference/optimizers.json");
    let references: Vec<Reference> = serde_json::from_str(text).unwrap();
    for name in names() {
        assert!(references.iter().any(|run| run.optimizer.starts_with(name)), "{name} has no reference");
    }
    for Reference { optimizer: name, rate, weight_decay, mut values, gradients, expected } in references {
        let rule = named(&name);
        let settings = OptimizerSettings { weight_decay, ..rule.into() };
        // The factors of the other parameter do not apply.
        let counts = [(3, Factors { decay: 0.0, rate: 0.0 }), (values.len(), Factors::default())];
        let mut optimizer = Optimizer::new(settings, counts).unwrap();
        for gradient in gradients {
            // The gradient is the sum over four samples with this mean. The product is exact.
            let sum: Vec<_> = gradient.iter().map(|value| 4.0 * value).collect();
            optimizer.begin_step();
            optimizer.update(1, &mut values, &sum, 0.25, rate).unwrap();
        }
        for (value, expected) in values.iter().zip(&expected) {
            let error = (f64::from(*value) - expected).abs();
            assert!(error < 2e-6 * (1.0 + expected.abs()), "{name}: {value}, not {expected}");
        }
    }
}

#[test]
fn factors_scale_the_learning_rate_and_weight_decay_of_a_parameter() {
    for settings in all() {
        let after = |factors, rate, weight_decay| {
            let settings = OptimizerSettings { weight_decay, ..settings.clone() };
            let mut optimizer = Optimizer::new(settings, [(33, factors)]).unwrap();
            let mut values = noise(33, 1);
            optimizer.begin_step();
            optimizer.update(0, &mut values, &noise(33, 2), 1.0, rate).unwrap();
            values
        };
        let halved = after(Factors { decay: 0.5, rate: 0.25 }, 0.5, 0.25);
        assert_eq!(halved, after(Factors::default(), 0.125, 0.125), "{settings:?}");
        assert_ne!(halved, after(Factors::default(), 0.125, 0.25), "{settings:?}");
        assert_eq!(after(Factors::NO_DECAY, 0.5, 0.25), after(Factors::default(), 0.5, 0.0));
    }
}

#[test]
fn averages_start_at_the_first_step_and_follow_the_parameter() {
    let average = Averaged::new(Arc::new(Sgd { momentum: 0.0, nesterov: false }), 0.75);
    let mut optimizer = Optimizer::new(OptimizerSettings::new(average), [(1, Factors::default())]).unwrap();
    let mut value = [5.0];
    for (expected_value, expected_average) in [(4.0, 4.0), (3.0, 3.75), (2.0, 3.3125)] {
        optimizer.begin_step();
        optimizer.update(0, &mut value, &[1.0], 1.0, 1.0).unwrap();
        let averages = optimizer.state().find(|(name, ..)| *name == "average").unwrap().2;
        assert_eq!((value[0], averages[0]), (expected_value, expected_average));
    }
}

#[test]
fn checkpoints_of_sgd_and_adamw_keep_their_descriptions() {
    let sgd = OptimizerSettings { weight_decay: 5e-4, ..OptimizerSettings::new(Sgd::default()) };
    let adamw = OptimizerSettings { weight_decay: 0.1, ..OptimizerSettings::new(AdamW::default()) };
    assert_eq!(
        sgd.describe(),
        "OptimizerSettings { kind: Sgd, momentum: 0.9, nesterov: false, weight_decay: 0.0005, \
         betas: (0.9, 0.999), epsilon: 1e-8 }"
    );
    assert_eq!(
        adamw.describe(),
        "OptimizerSettings { kind: AdamW, momentum: 0.9, nesterov: false, weight_decay: 0.1, \
         betas: (0.9, 0.999), epsilon: 1e-8 }"
    );
    let descriptions: std::collections::BTreeSet<_> = all().iter().map(OptimizerSettings::describe).collect();
    assert_eq!(descriptions.len(), all().len());
}

#[test]
fn catalogue_errors_name_the_invalid_constant() {
    for name in names() {
        assert_eq!(named(name).name(), name);
    }
    let refused = |text: &str| text.parse::<NamedRule>().unwrap_err().to_string();
    assert_eq!(refused("adam"), "`adam` is no optimizer: expected sgd, adamw, lion, lamb");
    assert!(refused("lion:epsilon=1e-8").contains("unknown field `epsilon`, expected `beta1` or `beta2`"));
    assert!(refused("adamw:beta2").ends_with("`beta2` is no CONSTANT=VALUE"));
    assert!(refused("adamw:beta2=nan").ends_with("the beta2 is `nan`: expected a number, true or false"));
    assert!(refused("adamw:beta2=0.9,beta2=0.99").ends_with("the beta2 is given twice"));
    assert!(refused("sgd:nesterov=1").contains("invalid type: integer `1`, expected a boolean"));
    assert!(refused("lamb:beta1=1").ends_with("the beta1 is 1: it must be from 0 to below 1"));
}

#[test]
fn means_of_adamw_are_unbiased_at_every_step() {
    // With a constant gradient both means equal it, so every step equals the learning rate.
    let mut adamw =
        Optimizer::new(OptimizerSettings::new(AdamW::default()), [(1, Factors::default())]).unwrap();
    for step in 1..=3000 {
        let mut value = [0.0_f32];
        adamw.begin_step();
        adamw.update(0, &mut value, &[0.5], 1.0, 1.0).unwrap();
        assert!((value[0] + 1.0).abs() < 1e-4, "step {step}: {value:?}");
    }
}

#[test]
fn restored_optimizer_continues_bit_for_bit() {
    for settings in all() {
        let counts = [(257, Factors::default()), (0, Factors::NO_DECAY), (33, Factors::NO_DECAY)];
        let mut one = Optimizer::new(settings.clone(), counts).unwrap();
        let mut values = counts.map(|(count, _)| noise(count, 7));
        let step = |optimizer: &mut Optimizer, values: &mut [Vec<f32>; 3]| {
            optimizer.begin_step();
            for (index, values) in values.iter_mut().enumerate() {
                let gradient = noise(values.len(), optimizer.steps());
                optimizer.update(index, values, &gradient, 0.3, 0.1).unwrap();
            }
        };
        (0..3).for_each(|_| step(&mut one, &mut values));

        let mut other = Optimizer::new(settings.clone(), counts).unwrap();
        let mut state = one.state();
        let Ok(()) = other.restore(one.steps(), &mut |name, index, elements| {
            let (expected_name, expected_index, saved) = state.next().unwrap();
            assert_eq!((name, index), (expected_name, expected_index));
            elements.copy_from_slice(saved);
            Ok::<_, Infallible>(())
        });
        assert!(state.next().is_none());
        drop(state);
        let mut restored = values.clone();
        for _ in 0..3 {
            step(&mut one, &mut values);
            step(&mut other, &mut restored);
        }
        let bits = |values: &[Vec<f32>; 3]| values.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(&values), bits(&restored), "{settings:?}");
        assert!(one.state().eq(other.state()));
    }
}

#[test]
fn error_while_state_is_restored_keeps_the_number_of_steps() {
    let counts = [(2, Factors::default()), (1, Factors::NO_DECAY)];
    let mut sgd = Optimizer::new(OptimizerSettings::new(Sgd::default()), counts).unwrap();
    let restored = sgd.restore(9, &mut |name, index, elements| {
        elements.fill(1.0);
        if index == 0 { Ok(()) } else { Err((name, index, elements.len())) }
    });
    assert_eq!((restored, sgd.steps()), (Err(("velocity", 1, 1)), 0));
}

#[test]
fn passes_give_the_same_bits_at_every_simd_level() {
    let adam = Adam::new([0.9, 0.999], 1e-8, 3);
    let step = StepInfo { number: 3, scale: 0.3, rate: 0.01, decay: 0.1 };
    for count in COUNTS {
        let gradient = &noise(count, 1)[..];
        let results = Level::available().map(|level| {
            let mut arrays: [_; 4] = std::array::from_fn(|seed| noise(count, 2 + seed as u64));
            let [values, first, second, most] = &mut arrays;
            second.iter_mut().for_each(|square| *square = square.abs());
            let velocity = &mut first[..];
            let mut largest =
                vec![level.run(SgdStep::<false> { values, gradient, velocity, momentum: 0.7, step })];
            largest.push(level.run(SgdStep::<true> { values, gradient, velocity, momentum: 0.7, step }));
            let (mean, square) = (velocity, second);
            largest.push(level.run(AdamStep::<false> { values, gradient, mean, square, most, adam, step }));
            largest.push(level.run(AdamStep::<true> { values, gradient, mean, square, most, adam, step }));
            largest.push(level.run(Largest(&[values, gradient])));
            let bits = arrays.map(|array| array.into_iter().map(f32::to_bits).collect());
            (bits, level.run(SquareSum(gradient)).to_bits(), largest.into_iter().map(f32::to_bits).collect())
        });
        let results: Vec<([Vec<u32>; 4], u64, Vec<u32>)> = results.collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{count} elements");
    }
}

#[test]
fn sum_of_squares_does_not_depend_on_the_alignment_of_the_slice() {
    for count in COUNTS {
        let elements = noise(count + 5, 3);
        let slice = &elements[5..];
        let plain: f64 = slice.iter().map(|&x| f64::from(x).powi(2)).sum();
        assert!((square_sum(slice) - plain).abs() <= 1e-13 * plain);
        let elsewhere = noise(count + 5, 3).split_off(5);
        assert_eq!(square_sum(slice).to_bits(), square_sum(&elsewhere).to_bits());
    }
    assert_eq!(square_sum(&[f32::MAX, f32::MAX]), 2.0 * f64::from(f32::MAX).powi(2));
    assert!(square_sum(&[1.0, f32::NAN]).is_nan());
}

#[test]
fn only_norms_above_the_maximum_are_clipped() {
    assert_eq!([0.0, 2.0, 8.0].map(|norm| clip_factor(norm, 2.0)), [1.0, 1.0, 0.25]);
    assert_eq!([f64::NAN, f64::INFINITY].map(|norm| clip_factor(norm, 2.0)), [1.0, 0.0]);
}

#[test]
fn update_has_the_same_bits_on_any_number_of_threads() {
    for settings in all() {
        let count = 3 * BLOCK + 5;
        let [one, several] = [1, 3].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut optimizer = Optimizer::new(settings.clone(), [(count, Factors::default())]).unwrap();
                let mut values = noise(count, 3);
                for step in 0..2 {
                    optimizer.begin_step();
                    optimizer.update(0, &mut values, &noise(count, step), 1.0, 0.1).unwrap();
                }
                let mut gradient = vec![0.0; count];
                gradient[2 * BLOCK] = f32::NAN;
                optimizer.begin_step();
                assert!(optimizer.update(0, &mut values.clone(), &gradient, 1.0, 0.1).is_err());
                values
            })
        });
        assert!(
            one.iter().zip(&several).all(|(one, other)| one.to_bits() == other.to_bits()),
            "{settings:?}"
        );
    }
}

#[test]
fn update_reports_a_parameter_that_is_not_finite_or_too_large() {
    for settings in all() {
        for at in [0, 31, 98] {
            let after = |gradient: f32| {
                let mut optimizer = Optimizer::new(settings.clone(), [(99, Factors::default())]).unwrap();
                let mut gradients = noise(99, 1);
                gradients[at] = gradient;
                optimizer.begin_step();
                optimizer.update(0, &mut noise(99, 2), &gradients, 1.0, 0.1)
            };
            assert_eq!(after(1e5), Ok(()), "{settings:?}");
            for gradient in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let Err(Exploded { largest }) = after(gradient) else { panic!("{settings:?}: {gradient}") };
                assert!(!largest.is_finite(), "{settings:?}: {largest}");
            }
            // Either the mean of squares overflows, so that its parameter would never change again, or the value is out of range.
            assert!(after(1e30).is_err(), "{settings:?}");
        }
    }
    assert_eq!(Exploded::check(&[-1.0, LARGEST_VALUE, 0.0]), Ok(()));
    assert_eq!(Exploded::check(&[-5e32, 3.0]), Err(Exploded { largest: 5e32 }));
    assert!(Exploded::check(&[f32::INFINITY, f32::NAN, 1.0]).unwrap_err().largest.is_nan());
    assert_eq!(Exploded::check(&[]), Ok(()));
}

#[test]
#[should_panic(expected = "parameter 0 has 2 elements, but is given 2 values and 3 of a gradient")]
fn gradient_of_another_size_panics() {
    let mut sgd = Optimizer::new(OptimizerSettings::new(Sgd::default()), [(2, Factors::default())]).unwrap();
    sgd.begin_step();
    sgd.update(0, &mut [0.0; 2], &[0.0; 3], 1.0, 0.1).unwrap();
}

#[test]
#[should_panic(expected = "before a step has begun")]
fn update_before_the_first_step_panics() {
    let mut adamw =
        Optimizer::new(OptimizerSettings::new(AdamW::default()), [(1, Factors::default())]).unwrap();
    adamw.update(0, &mut [0.0], &[0.0], 1.0, 0.1).unwrap();
}

#[test]
fn momentum_of_1_divides_a_step_into_equal_shares() {
    let rule = Sgd { momentum: 1.0, nesterov: false };
    let (per_share, scale) = rule.per_share(4).unwrap();
    assert_eq!((per_share.constants(), scale), (rule.constants(), 0.25));
}

#[test]
fn names_of_states_are_checked() {
    /// A rule with two states of these names.
    #[derive(Debug)]
    struct Odd([&'static str; 2]);
    impl UpdateRule for Odd {
        fn name(&self) -> &'static str {
            "odd"
        }
        fn state_names(&self) -> &[&'static str] {
            &self.0
        }
        fn update(&self, _: StepInfo, _: &mut [f32], _: &[f32], _: &mut [&mut [f32]]) -> f32 {
            0.0
        }
        fn describe(&self, _: f32) -> String {
            "odd".to_owned()
        }
    }
    let of = |names, ema: Option<f32>| {
        let rule: Arc<dyn UpdateRule> = Arc::new(Odd(names));
        match ema {
            Some(decay) => OptimizerSettings::new(Averaged::new(rule, decay)).check(),
            None => OptimizerSettings::from(rule).check(),
        }
    };
    assert_eq!((of(["a", "b"], None), of(["a", "b"], Some(0.5))), (Ok(()), Ok(())));
    let repeated = "two states of odd are called `a`: expected a different name for each";
    assert_eq!(of(["a", "a"], None).unwrap_err(), repeated);
    for ema in [None, Some(0.5)] {
        assert!(of(["a", "average"], ema).unwrap_err().contains("called `average`"));
    }
}
