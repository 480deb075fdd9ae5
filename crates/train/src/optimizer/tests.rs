//! Compares with the definitions in `f64`, and bit for bit where that is guaranteed.

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

fn settings(kind: OptimizerKind) -> OptimizerSettings {
    OptimizerSettings { weight_decay: 0.125, ..OptimizerSettings::new(kind) }
}

/// The definitions, in `f64`, element by element.
struct Reference {
    settings: OptimizerSettings,
    values: Vec<f64>,
    moments: [Vec<f64>; 2],
    steps: i32,
}

impl Reference {
    fn new(settings: OptimizerSettings, values: &[f32]) -> Self {
        let values: Vec<_> = values.iter().copied().map(f64::from).collect();
        let zeros = vec![0.0; values.len()];
        Self { settings, values, moments: [zeros.clone(), zeros], steps: 0 }
    }

    fn step(&mut self, gradient: &[f32], scale: f32, rate: f32) {
        self.steps += 1;
        let OptimizerSettings { kind, momentum, nesterov, weight_decay, betas, epsilon } = self.settings;
        let [momentum, decay, epsilon] = [momentum, weight_decay, epsilon].map(f64::from);
        let (beta1, beta2) = (f64::from(betas.0), f64::from(betas.1));
        for (index, value) in self.values.iter_mut().enumerate() {
            let gradient = f64::from(scale) * f64::from(gradient[index]);
            let [first, second] = self.moments.each_mut().map(|moment| &mut moment[index]);
            let step = match kind {
                OptimizerKind::Sgd => {
                    let gradient = gradient + decay * *value;
                    *first = momentum * *first + gradient;
                    if nesterov { gradient + momentum * *first } else { *first }
                }
                OptimizerKind::AdamW => {
                    *first = beta1 * *first + (1.0 - beta1) * gradient;
                    *second = beta2 * *second + (1.0 - beta2) * gradient.powi(2);
                    let mean = *first / (1.0 - beta1.powi(self.steps));
                    let square = *second / (1.0 - beta2.powi(self.steps));
                    mean / (square.sqrt() + epsilon) + decay * *value
                }
            };
            *value -= f64::from(rate) * step;
        }
    }
}

#[test]
fn several_steps_are_those_of_the_definition() {
    let nesterov = OptimizerSettings { nesterov: true, ..settings(OptimizerKind::Sgd) };
    for settings in [settings(OptimizerKind::Sgd), nesterov, settings(OptimizerKind::AdamW)] {
        for count in COUNTS {
            let mut values = noise(count, 1);
            let mut reference = Reference::new(settings, &values);
            let mut optimizer = Optimizer::new(settings, [(3, false), (count, false)]).unwrap();
            for step in 0..20 {
                let (gradient, scale, rate) = (noise(count, 2 + step), 0.25, 0.01 * (1 + step) as f32);
                optimizer.begin_step();
                optimizer.update(1, &mut values, &gradient, scale, rate).unwrap();
                reference.step(&gradient, scale, rate);
            }
            for (value, reference) in values.iter().zip(&reference.values) {
                let error = (f64::from(*value) - reference).abs();
                assert!(error < 2e-6 * (1.0 + reference.abs()), "{settings:?}: {value}, not {reference}");
            }
        }
    }
}

#[test]
fn sgd_gathers_momentum_and_decays_weights_only() {
    let settings = OptimizerSettings { weight_decay: 0.5, ..settings(OptimizerKind::Sgd) };
    let mut sgd = Optimizer::new(settings, [(1, true), (1, false)]).unwrap();
    let (mut bias, mut weight) = ([1.0], [1.0]);
    sgd.begin_step();
    sgd.update(0, &mut bias, &[1.0], 1.0, 0.1).unwrap();
    sgd.update(1, &mut weight, &[1.0], 1.0, 0.1).unwrap();
    assert_eq!((bias, weight), ([0.9], [1.0 - 0.1 * 1.5]));
    sgd.begin_step();
    sgd.update(0, &mut bias, &[0.0], 1.0, 0.1).unwrap();
    assert_eq!(bias, [0.9 - 0.1 * 0.9]);
}

#[test]
fn nesterov_looks_ahead() {
    let settings = OptimizerSettings { nesterov: true, momentum: 0.5, ..settings(OptimizerKind::Sgd) };
    let mut sgd = Optimizer::new(settings, [(1, true)]).unwrap();
    let mut value = [0.0];
    // Velocities 1 and 0.5; steps 1 + 0.5 * 1 and 0 + 0.5 * 0.5.
    for (gradient, expected) in [(2.0, -1.5), (0.0, -1.75)] {
        sgd.begin_step();
        sgd.update(0, &mut value, &[gradient], 0.5, 1.0).unwrap();
        assert_eq!(value, [expected]);
    }
}

#[test]
fn the_first_step_of_adamw_is_the_rate_whatever_the_gradient() {
    let settings = OptimizerSettings { weight_decay: 0.1, ..settings(OptimizerKind::AdamW) };
    let mut adamw = Optimizer::new(settings, [(1, true), (1, false)]).unwrap();
    let (mut bias, mut weight) = ([1.0_f32], [1.0_f32]);
    adamw.begin_step();
    adamw.update(0, &mut bias, &[1e-3], 1.0, 0.01).unwrap();
    adamw.update(1, &mut weight, &[-50.0], 1.0, 0.01).unwrap();
    assert!((bias[0] - 0.99).abs() < 1e-5);
    assert!((weight[0] - (1.0 + 0.01 - 0.001)).abs() < 1e-5);
}

#[test]
fn the_means_of_adamw_are_unbiased_at_every_step() {
    // With a constant gradient both means equal it, so every step is the rate.
    let mut adamw = Optimizer::new(OptimizerSettings::new(OptimizerKind::AdamW), [(1, false)]).unwrap();
    for step in 1..=3000 {
        let mut value = [0.0_f32];
        adamw.begin_step();
        adamw.update(0, &mut value, &[0.5], 1.0, 1.0).unwrap();
        assert!((value[0] + 1.0).abs() < 1e-4, "step {step}: {value:?}");
    }
}

#[test]
fn a_restored_optimizer_goes_on_bit_for_bit() {
    for kind in OptimizerKind::ALL {
        let counts = [(257, false), (0, true), (33, true)];
        let mut one = Optimizer::new(settings(kind), counts).unwrap();
        let mut values = counts.map(|(count, _)| noise(count, 7));
        let step = |optimizer: &mut Optimizer, values: &mut [Vec<f32>; 3]| {
            optimizer.begin_step();
            for (index, values) in values.iter_mut().enumerate() {
                let gradient = noise(values.len(), optimizer.steps());
                optimizer.update(index, values, &gradient, 0.3, 0.1).unwrap();
            }
        };
        (0..3).for_each(|_| step(&mut one, &mut values));

        let mut other = Optimizer::new(settings(kind), counts).unwrap();
        let mut state: Vec<_> = one.state().collect();
        state.reverse();
        other.restore(one.steps(), state).unwrap();
        let mut restored = values.clone();
        for _ in 0..3 {
            step(&mut one, &mut values);
            step(&mut other, &mut restored);
        }
        let bits = |values: &[Vec<f32>; 3]| values.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(&values), bits(&restored), "{kind}");
        assert!(one.state().eq(other.state()));
    }
}

#[test]
fn the_state_of_something_else_is_refused_and_changes_nothing() {
    let mut sgd = Optimizer::new(settings(OptimizerKind::Sgd), [(2, false), (1, true)]).unwrap();
    let (first, second) = (("velocity", 0, &[1.0, 2.0][..]), ("velocity", 1, &[3.0][..]));
    let mut refused = |state: &[(&str, usize, &[f32])]| {
        let error = sgd.restore(9, state.iter().copied()).unwrap_err().to_string();
        assert!(sgd.steps() == 0 && sgd.state().all(|(_, _, moment)| moment.iter().all(|&x| x == 0.0)));
        error
    };
    assert_eq!(
        refused(&[first, ("mean", 1, &[3.0])]),
        "sgd remembers no `mean` of parameter 1: it remembers velocity of 2 parameters; \
         is this the state of another optimizer or model?"
    );
    assert!(refused(&[first, second, ("velocity", 2, &[])]).contains("of parameter 2"));
    assert!(refused(&[first, ("velocity", 1, &[1.0, 2.0])]).contains("has 2 elements: expected 1"));
    assert!(refused(&[first, second, first]).contains("`velocity` of parameter 0 is given twice"));
    assert!(refused(&[first]).contains("`velocity` of parameter 1 is missing"));
    sgd.restore(9, [first, second]).unwrap();
    assert_eq!(sgd.steps(), 9);
}

#[test]
fn passes_give_the_same_bits_at_every_level() {
    let adam = Adam::new(&settings(OptimizerKind::AdamW), 3);
    for count in COUNTS {
        let gradient = noise(count, 1);
        let results = Level::available().map(|level| {
            let arrays: [_; 3] = std::array::from_fn(|seed| noise(count, 2 + seed as u64));
            let [mut values, mut first, mut second] = arrays;
            second.iter_mut().for_each(|square| *square = square.abs());
            let mut largest = 0;
            for pass in [level.compiled::<Sgd<false>>(), level.compiled::<Sgd<true>>()] {
                let step = SgdStep {
                    gradient: &gradient,
                    velocity: &mut first,
                    scale: 0.3,
                    momentum: 0.7,
                    decay: 0.1,
                    rate: 0.01,
                    largest: &mut largest,
                };
                pass(bytemuck::cast_slice_mut(&mut values), step);
            }
            let step = AdamStep {
                gradient: &gradient,
                mean: &mut first,
                square: &mut second,
                adam,
                scale: 0.3,
                decay: 0.1,
                rate: 0.01,
                largest: &mut largest,
            };
            level.compiled::<AdamW>()(bytemuck::cast_slice_mut(&mut values), step);
            let bits = [values, first, second].map(|array| array.into_iter().map(f32::to_bits).collect());
            (bits, square_sum_at(level, &gradient).to_bits(), largest)
        });
        let results: Vec<([Vec<u32>; 3], u64, u32)> = results.collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{count} elements");
    }
}

#[test]
fn the_sum_of_squares_is_right_and_the_same_wherever_the_slice_lies() {
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
fn only_what_is_too_long_is_clipped() {
    assert_eq!([0.0, 2.0, 8.0].map(|norm| clip_factor(norm, 2.0)), [1.0, 1.0, 0.25]);
    assert_eq!([f64::NAN, f64::INFINITY].map(|norm| clip_factor(norm, 2.0)), [1.0, 0.0]);
}

#[test]
fn an_update_reports_a_parameter_that_is_not_finite_or_too_large() {
    let nesterov = OptimizerSettings { nesterov: true, ..settings(OptimizerKind::Sgd) };
    for settings in [settings(OptimizerKind::Sgd), nesterov, settings(OptimizerKind::AdamW)] {
        for at in [0, 31, 98] {
            let after = |gradient: f32| {
                let mut optimizer = Optimizer::new(settings, [(99, false)]).unwrap();
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
            // The mean of squares overflows, and its parameter would never move again; or the value is out of range.
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
fn a_gradient_of_another_parameter_is_refused() {
    let mut sgd = Optimizer::new(settings(OptimizerKind::Sgd), [(2, false)]).unwrap();
    sgd.begin_step();
    sgd.update(0, &mut [0.0; 2], &[0.0; 3], 1.0, 0.1).unwrap();
}

#[test]
#[should_panic(expected = "before a step has begun")]
fn an_update_belongs_to_a_step() {
    let mut adamw = Optimizer::new(settings(OptimizerKind::AdamW), [(1, false)]).unwrap();
    adamw.update(0, &mut [0.0], &[0.0], 1.0, 0.1).unwrap();
}
