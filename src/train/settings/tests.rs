//! What settings make of themselves.

use super::*;

#[test]
fn the_rate_follows_the_global_batch_and_not_the_ranks() {
    let settings = Settings::new(Source::Digits, ModelKind::Mlp);
    assert_eq!(settings.scaled_rate(256), 2.0 * settings.scaled_rate(128));
    let settings = Settings { optimizer: OptimizerSettings::new(OptimizerKind::AdamW), ..settings };
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
    assert!(refused(Settings { warm_up: 1.5, ..settings }).contains("from 0 to 1"));
}
