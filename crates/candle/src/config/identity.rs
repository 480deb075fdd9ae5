//! Describes a run in its checkpoints, and checks whether a checkpoint belongs to this run.

use serde::Deserialize as _;
use serde_json::{Value, json};

use super::Config;
use unisono_data::{Dataset, OnBadSample, Schema, Source};
use unisono_train::optimizer::NamedRule;
use unisono_train::rate::ScheduleKind;
use unisono_train::{Resumed, TrainError};

/// The entries about data, which are compared separately.
const DATA: [&str; 3] = ["data", "schema", "fingerprint"];
/// The entries whose names do not remind of their options, with the options for messages. The name of an entry in an object follows the object's.
const OPTIONS: [(&str, &str); 10] = [
    ("augmentation", "--augment"),
    ("damaged samples", "--on-bad-sample"),
    ("local steps", "--local-steps, --outer"),
    ("norm to clip to", "--clip-norm"),
    ("optimizer average", "--ema"),
    ("optimizer rule", "--optimizer, --momentum, --nesterov"),
    ("optimizer weight decay", "--weight-decay"),
    ("parts of a step", "--order, --shards"),
    ("schedule step epochs", "--step-epochs"),
    ("schedule step factor", "--step-factor"),
];

impl Config {
    /// Returns the entries about a built-in model and its data. They determine the model, and must be equal to resume a run.
    pub(super) fn description(&self, dataset: &Dataset, fingerprint: Option<u64>) -> Value {
        json!({
            "data": self.data.to_string(),
            "kind": dataset.kind,
            "schema": dataset.schema,
            "fingerprint": fingerprint.map(|hash| format!("{hash:016x}")),
            "model": self.model.name(),
            "hidden": self.hidden,
            // Older checkpoints have no entry for dropout.
            "dropout": (self.dropout != 0.0).then_some(self.dropout),
            "context": self.context,
            "augmentation": self.augmentation_identity(),
            "damaged samples": (self.on_bad_sample != OnBadSample::Error).then(|| self.on_bad_sample.to_string()),
        })
    }

    /// Adds the entries that must be equal to resume a run of any model.
    pub(super) fn with_run(&self, mut entries: Value) -> Value {
        let base = Self { ema: None, ..self.clone() }.optimizer().rule;
        let of_run = json!({
            "seed": self.seed,
            // Written as texts, because not every JSON reader keeps all digits of an `f64`.
            "optimizer": {
                "rule": NamedRule(base).to_string(),
                "average": self.ema.map(|decay| decay.to_string()),
                "weight decay": self.weight_decay.to_string(),
            },
            "learning rate": self.learning_rate,
            "schedule": self.schedule_identity(),
            "warm-up": self.warm_up,
            "epochs": self.epochs,
            "norm to clip to": self.clip_norm,
            "wire format": self.wires()[0].to_string(),
            "uncompressed steps": (self.uncompressed_steps != 0).then_some(self.uncompressed_steps),
            "parts of a step": self.world_invariant(),
            "local steps": self.local_steps().map(|local| local.to_string()),
        });
        if let (Value::Object(entries), Value::Object(of_run)) = (&mut entries, of_run) {
            entries.extend(of_run);
        }
        entries
    }

    /// Returns the image transforms, or whether they are the default ones.
    fn augmentation_identity(&self) -> Value {
        match self.augmentation().to_string() {
            none if none.is_empty() => false.into(),
            usual if usual == self.data.usual_augmentation().to_string() => true.into(),
            others => others.into(),
        }
    }

    fn schedule_identity(&self) -> Value {
        match self.schedule {
            ScheduleKind::Step => {
                json!({ "step": { "epochs": self.step_epochs, "factor": self.step_factor } })
            }
            kind => kind.name().into(),
        }
    }

    /// Returns the entries that older checkpoints store as text.
    fn former_description(&self) -> Value {
        let schedule = match self.schedule {
            ScheduleKind::Step => {
                format!("Step {{ epochs: {}, factor: {:?} }}", self.step_epochs, self.step_factor)
            }
            kind => format!("{kind:?}"),
        };
        json!({ "optimizer": self.optimizer().describe(), "schedule": schedule })
    }

    pub(super) fn compare(
        &self,
        own: &Value,
        global_batch: usize,
        resumed: &Resumed,
    ) -> Result<(), TrainError> {
        let saved = &resumed.progress.description;
        let other_run = |why| {
            Err(TrainError::OtherRun {
                checkpoint: format!("the checkpoint of step {}", resumed.progress.step),
                why,
            })
        };
        let fields = own.as_object().into_iter().flatten().filter(|(name, _)| !DATA.contains(&name.as_str()));
        let mut pairs: Vec<_> =
            fields.map(|(name, own)| (name.as_str(), own.clone(), saved[name].clone())).collect();
        pairs.push(("global batch", global_batch.into(), resumed.progress.global_batch.into()));
        let theirs = saved["data"].as_str().and_then(|name| name.parse().ok());
        let is_same = |source: Source| source.is_same(&self.data);
        if own["data"] != saved["data"] && !theirs.is_some_and(is_same) {
            pairs.insert(0, ("data", own["data"].clone(), saved["data"].clone()));
        } else {
            // Generated samples depend on the seed, which is compared below.
            let is_by_seed = matches!(self.data, Source::Digits) && own["seed"] != saved["seed"];
            let changed_data = || if is_by_seed { None } else { self.changed_data(own, saved) };
            if let Some(why) = changed_option(own, saved).or_else(changed_data) {
                return other_run(why);
            }
        }
        let former = self.former_description();
        let mut pairs = pairs.into_iter().filter(|(name, _, saved)| former.get(*name) != Some(saved));
        let Some((name, own, saved)) = pairs.find_map(|(name, own, saved)| difference(name, &own, &saved))
        else {
            return Ok(());
        };
        let options = OPTIONS.iter().find(|(entry, _)| *entry == name);
        let options = options.map_or_else(String::new, |(_, options)| format!(" ({options})"));
        other_run(format!(
            "its {name} is {saved}, and this run's is {own}{options}: use the same, or train without --resume"
        ))
    }

    /// Describes a change of the data at the same location. Older checkpoints that lack this entry are not checked.
    fn changed_data(&self, own: &Value, saved: &Value) -> Option<String> {
        let schema = |description: &Value| Schema::deserialize(&description["schema"]).ok();
        let renamed = schema(saved).zip(schema(own)).and_then(|(theirs, own)| theirs.difference(&own));
        let hash = |description: &Value| description["fingerprint"].as_str().map(str::to_owned);
        let is_other = hash(saved).zip(hash(own)).is_some_and(|(theirs, own)| theirs != own);
        let what = renamed
            .or_else(|| is_other.then(|| "the samples are not those that it was trained on".to_owned()))?;
        let source = &self.data;
        Some(format!(
            "{source} has changed since: {what}; bring back what was there, or train without --resume"
        ))
    }
}

/// Returns the name of the first entry that differs, and both values as texts. The entries of objects are compared one by one.
fn difference(name: &str, own: &Value, saved: &Value) -> Option<(String, String, String)> {
    if own == saved {
        return None;
    }
    let mut entries = own.as_object().filter(|_| saved.is_object()).into_iter().flatten();
    let inner = entries.find_map(|(entry, own)| difference(&format!("{name} {entry}"), own, &saved[entry]));
    let text = |value: &Value| if value.is_null() { "not set".to_owned() } else { value.to_string() };
    inner.or_else(|| Some((name.to_owned(), text(own), text(saved))))
}

/// Describes an option that makes other samples of the same files, with the value to restore. Older checkpoints that lack its entry are not checked.
pub(super) fn changed_option(own: &Value, saved: &Value) -> Option<String> {
    let target = |of: &Value| match of["schema"]["target"]["name"].as_str() {
        Some(column) => format!("--target {column}"),
        None => "no --target".to_owned(),
    };
    let side = |of: &Value, side: &str| of["kind"]["Images"][side].to_string();
    let size = |of: &Value| format!("--image-size {}x{}", side(of, "height"), side(of, "width"));
    // Greyscale images have no entry.
    let colour =
        |of: &Value| format!("--colour {}", if side(of, "channels") == "null" { "no" } else { "yes" });
    let changed = |option: &dyn Fn(&Value) -> String| {
        let (before, now) = (option(saved), option(own));
        (before != now).then_some((before, now))
    };
    let is_known = !saved["schema"].is_null();
    let has_same_files = own["fingerprint"] == saved["fingerprint"];
    let of_target = is_known.then(|| changed(&target)).flatten();
    let of_images = || has_same_files.then(|| changed(&size).or_else(|| changed(&colour))).flatten();
    let (before, now) = of_target.or_else(of_images)?;
    Some(format!(
        "it was saved with {before}, and this run has {now}: use the same, or train without --resume"
    ))
}
