//! Defaults and checks of settings.

use candle_core::Device;

use super::*;

#[test]
fn the_rate_follows_the_global_batch_and_not_the_ranks() {
    let settings = Settings::new(Source::Digits, ModelKind::Mlp);
    assert_eq!(settings.scaled_rate(256), 2.0 * settings.scaled_rate(128));
    let settings = Settings { optimizer: OptimizerSettings::new(AdamW::default()), ..settings };
    assert_eq!(settings.scaled_rate(512), 2.0 * settings.scaled_rate(128));
}

#[test]
fn senseless_settings_are_refused() {
    let settings = Settings::new(Source::Digits, ModelKind::Mlp);
    let refused = |settings: Settings| settings.check().unwrap_err().to_string();
    assert!(refused(Settings { epochs: 0, ..settings.clone() }).contains("epochs is 0"));
    assert!(refused(Settings { batch_size: 0, ..settings.clone() }).contains("batch size is 0"));
    assert!(refused(Settings { learning_rate: f64::NAN, ..settings.clone() }).contains("NaN"));
    assert!(refused(Settings { hidden: Some(vec![8, 0]), ..settings.clone() }).contains("hidden layer is 0"));
    assert!(refused(Settings { warm_up: 1.5, ..settings.clone() }).contains("from 0 to 1"));
    let constants = |rule: Sgd| Settings { optimizer: OptimizerSettings::new(rule), ..settings.clone() };
    assert_eq!(
        refused(constants(Sgd { momentum: 1.5, nesterov: false })),
        "the momentum is 1.5: it must be from 0 to 1"
    );
    let factor = |factor| Settings { schedule: Falling::Step { epochs: 1, factor }, ..settings.clone() };
    assert!(refused(factor(f64::NAN)).contains("factor of the step schedule is NaN: it must be from 0 to 1"));
    assert_eq!(
        refused(Settings { learning_rate: 0.0, ..settings.clone() }),
        "the learning rate is 0: it must be above 0, and at most 1e6"
    );
    assert_eq!(
        refused(Settings { clip_norm: Some(-1e-300), ..settings.clone() }),
        "the norm to clip to is -1e-300: it must be above 0, and at most 1e30"
    );
    for (dropout, text) in [(1.0, "1"), (-0.1, "-0.1"), (f64::NAN, "NaN")] {
        let why = refused(Settings { dropout, ..settings.clone() });
        assert_eq!(why, format!("the dropout is {text}: it must be from 0 to below 1"));
    }
    assert!(factor(0.5).check().is_ok());
}

#[test]
fn what_would_have_no_effect_is_refused() {
    let settings = Settings::new(Source::Digits, ModelKind::Cnn);
    let refused = |settings: Settings| settings.check().unwrap_err().to_string();
    assert!(refused(Settings { hidden: Some(vec![8]), ..settings.clone() }).contains("layers of the cnn"));
    assert!(refused(Settings { dropout: 0.1, ..settings.clone() }).contains("the cnn drops no values"));
    let resnet = Settings { world_invariant: Some(8), ..Settings::new(Source::Digits, ModelKind::ResNet) };
    assert!(refused(resnet).contains("remove --order world-invariant"));
    let chosen = |settings: &Settings, name: &str| {
        let checked =
            settings.check_choice(&name.parse().unwrap(), &Device::Cpu, Some("on the CPU: requested"));
        checked.map_err(|error| error.to_string())
    };
    for name in ["nccl", "rail+nccl"] {
        let why = chosen(&settings, name).unwrap_err();
        assert!(why.contains(name) && why.contains("on the CPU: requested"), "{why}");
    }
    assert!(chosen(&settings, "ring").is_ok());
    let invariant = Settings { world_invariant: Some(8), ..settings };
    for name in ["ring", "tree:0-"] {
        assert!(chosen(&invariant, name).unwrap_err().contains("requires recursive-doubling"));
    }
    assert!(chosen(&invariant, "auto").is_ok() && chosen(&invariant, "recursive-doubling").is_ok());
}
