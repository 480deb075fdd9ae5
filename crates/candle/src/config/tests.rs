//! Defaults and checks of settings.

use std::collections::HashMap;

use candle_core::{Device, Tensor};

use super::*;
use crate::network::{Dropout, Parameters};
use unisono_train::optimizer::Sgd;

#[test]
fn learning_rate_depends_on_the_global_batch_and_not_on_the_ranks() {
    let settings = Config::new(Source::Digits, ModelKind::Mlp);
    assert_eq!(settings.scaled_rate(256), 2.0 * settings.scaled_rate(128));
    let settings = Config { optimizer: NamedRule::new(AdamW::default()), ..settings };
    assert_eq!(settings.scaled_rate(512), 2.0 * settings.scaled_rate(128));
}

#[test]
fn invalid_settings_are_refused() {
    let usual = || Config::new(Source::Digits, ModelKind::Mlp);
    let pipeline = || Config { strategy: Some(Strategy::Pipeline), ..usual() };
    let factor =
        |step_factor| Config { schedule: ScheduleKind::Step, step_epochs: 1, step_factor, ..usual() };
    let constant = NamedRule::new(Sgd { momentum: 1.5, nesterov: false });
    for (settings, said) in [
        (Config { epochs: 0, ..usual() }, "--epochs is 0: it must be at least 1"),
        (Config { batch_size: 0, ..usual() }, "--batch-size is 0: it must be at least 1"),
        (Config { stages: Some(0), ..pipeline() }, "--stages is 0: it must be at least 1"),
        (Config { micro_batches: Some(0), ..pipeline() }, "--micro-batches is 0: it must be at least 1"),
        (
            Config { order: Order::Tree, shards: 1 << 17, ..usual() },
            "--shards is 131072: it must be at most 65536, because every step makes a pass for each shard",
        ),
        (
            Config { input_threads: Some(1025), ..usual() },
            "--input-threads is 1025: it must be at most 1024, because every rank starts so many threads",
        ),
        (Config { momentum: Some(2.0), ..usual() }, "--momentum is 2: it must be from 0 to 1"),
        (Config { optimizer: constant, ..usual() }, "the momentum is 1.5: it must be from 0 to 1"),
        (Config { ema: Some(1.0), ..usual() }, "--ema is 1: it must be from 0 to below 1"),
        (Config { weight_decay: 1e38, ..usual() }, "--weight-decay is 1e38: it must be from 0 to 1e6"),
        (Config { log_dir: Some("".into()), ..usual() }, "--log-dir is empty: expected a path"),
        (
            Config { learning_rate: f64::NAN, ..usual() },
            "--learning-rate is NaN: it must be above 0, and at most 1e6",
        ),
        (
            Config { learning_rate: 0.0, ..usual() },
            "--learning-rate is 0: it must be above 0, and at most 1e6",
        ),
        (Config { hidden: Some(vec![8, 0]), ..usual() }, "--hidden is 0: it must be at least 1"),
        (Config { warm_up: 1.5, ..usual() }, "--warm-up is 1.5: it must be from 0 to 1"),
        (factor(f64::NAN), "--step-factor is NaN: it must be from 0 to 1"),
        (
            Config { clip_norm: Some(-1e-300), ..usual() },
            "--clip-norm is -1e-300: it must be above 0, and at most 1e30",
        ),
        (Config { dropout: 1.0, ..usual() }, "--dropout is 1: it must be from 0 to below 1"),
        (Config { dropout: -0.1, ..usual() }, "--dropout is -0.1: it must be from 0 to below 1"),
        (Config { dropout: f64::NAN, ..usual() }, "--dropout is NaN: it must be from 0 to below 1"),
    ] {
        assert_eq!(settings.check().unwrap_err().to_string(), said);
    }
    assert!(factor(0.5).check().is_ok());
}

#[test]
fn constants_of_sgd_on_the_command_line_override_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let read = |text: &str, line: &str| {
        std::fs::write(file.path(), text).unwrap();
        let command = Config::options(clap::Command::new("train").no_binary_name(true));
        Config::over(Some(file.path()), &command.get_matches_from(line.split_whitespace()))
    };
    for (text, line, momentum, nesterov) in [
        ("momentum = 0.5", "--optimizer sgd:momentum=0.7", 0.7, false),
        ("momentum = 0.5", "--optimizer sgd:nesterov=true", 0.5, true),
        ("nesterov = true", "--optimizer sgd:nesterov=false", 0.9, false),
        ("optimizer = 'sgd:momentum=0.7,nesterov=true'", "--momentum 0.5 --nesterov=false", 0.5, false),
        ("nesterov = false", "--nesterov --optimizer sgd:nesterov=true", 0.9, true),
        // As written before the command line took precedence.
        ("optimizer = 'sgd:momentum=0.9,nesterov=true'\nmomentum = 0.5\nnesterov = false", "", 0.5, true),
    ] {
        let config = read(text, line).unwrap();
        let written = read(&config.to_toml().unwrap(), "").unwrap();
        for config in [config, written] {
            let rule = config.optimizer().rule;
            let sgd = (&*rule as &dyn std::any::Any).downcast_ref::<Sgd>();
            assert_eq!(sgd, Some(&Sgd { momentum, nesterov }), "{text} {line}");
        }
    }
    for line in
        ["--optimizer sgd:nesterov=true --nesterov=false", "--momentum 0.5 --optimizer sgd:momentum=0.7"]
    {
        let why = read("", line).unwrap_err().to_string();
        assert!(why.contains("has another value than the") && why.contains("of --optimizer sgd:"), "{why}");
    }
}

#[test]
fn changed_option_is_named_with_its_former_value() {
    let images = |side: usize, channels: Option<usize>| {
        let kind = serde_json::json!({ "height": side, "width": side, "channels": channels, "classes": 2 });
        serde_json::json!({ "fingerprint": "f", "schema": {}, "kind": { "Images": kind } })
    };
    let table = |target: Option<&str>| {
        let target = target.map(|name| serde_json::json!({ "name": name }));
        serde_json::json!({ "schema": { "target": target }, "kind": { "Table": {} } })
    };
    let changed = |saved, own| identity::changed_option(&own, &saved);
    for (saved, own, said) in [
        (
            images(28, None),
            images(14, None),
            "saved with --image-size 28x28, and this run has --image-size 14x14",
        ),
        (images(28, None), images(28, Some(3)), "saved with --colour no, and this run has --colour yes"),
        (table(None), table(Some("a")), "saved with no --target, and this run has --target a"),
        (table(Some("a")), table(Some("b")), "saved with --target a, and this run has --target b"),
    ] {
        let why = changed(saved.clone(), own).expect("an option differs");
        assert!(why.contains(said), "{why}");
        assert_eq!(changed(saved.clone(), saved), None);
    }
}

#[test]
fn path_that_no_file_can_hold_is_refused() {
    use std::os::unix::ffi::OsStringExt as _;
    let log_dir = Some(std::ffi::OsString::from_vec(vec![0xff]).into());
    let why = Config { log_dir, ..Config::default() }.check().unwrap_err().to_string();
    assert!(why.starts_with("--log-dir is `") && why.contains("UTF-8"), "{why}");
}

#[test]
fn initial_values_need_no_count_of_dropout_steps() {
    let parameters = Parameters::new(7);
    parameters.add("weight", 2, 0.1).unwrap();
    Dropout::new(&parameters, 0.5).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let weight = Tensor::new(&[1.0_f32, 2.0], &Device::Cpu).unwrap();
    candle_core::safetensors::save(&HashMap::from([("weight", weight)]), file.path()).unwrap();
    let initial = Some(file.path().to_owned());
    let settings = Config { initial, ..Config::new(Source::Digits, ModelKind::Mlp) };
    settings.load_initial(0, &parameters).unwrap();
    parameters.add("bias", 2, 0.1).unwrap();
    let why = settings.load_initial(0, &parameters).unwrap_err().to_string();
    assert!(why.contains("has no values of these shapes: bias; expected"), "{why}");
}

#[test]
fn options_without_effect_are_refused() {
    let settings = Config::new(Source::Digits, ModelKind::Cnn);
    let refused = |settings: Config| settings.check().unwrap_err().to_string();
    assert!(
        refused(Config { hidden: Some(vec![8]), ..settings.clone() })
            .contains("--hidden has no effect without --model mlp, resnet or transformer")
    );
    assert!(
        refused(Config { dropout: 0.1, ..settings.clone() })
            .contains("--dropout has no effect without --model mlp")
    );
    let resnet = Config { order: Order::Tree, ..Config::new(Source::Digits, ModelKind::ResNet) };
    assert!(refused(resnet).contains("remove --order world-invariant"));
    let chosen = |settings: &Config, name: &str| {
        let checked =
            settings.check_choice(&name.parse().unwrap(), &Device::Cpu, Some("on the CPU: requested"));
        checked.map_err(|error| error.to_string())
    };
    for name in ["nccl", "rail+nccl"] {
        let why = chosen(&settings, name).unwrap_err();
        assert!(why.contains(name) && why.contains("on the CPU: requested"), "{why}");
    }
    assert!(chosen(&settings, "ring").is_ok());
    let invariant = Config { order: Order::Tree, ..settings };
    for name in ["ring", "tree:0-"] {
        assert!(chosen(&invariant, name).unwrap_err().contains("requires recursive-doubling"));
    }
    assert!(chosen(&invariant, "auto").is_ok() && chosen(&invariant, "recursive-doubling").is_ok());
}
