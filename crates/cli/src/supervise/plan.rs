//! The command line under supervision.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

#[cfg(feature = "candle")]
use unisono_candle::Config;

#[cfg(feature = "candle")]
const CONFIG: &str = "--config";
const DIRECTORY: &str = "--checkpoint-dir";
const RESUME: &str = "--resume";
const OVERWRITE: &str = "--overwrite";

/// A command, and its checkpoint directory if it is `unisono train` and names one.
#[derive(Debug)]
pub(super) struct Plan {
    words: Vec<OsString>,
    directory: Option<PathBuf>,
    file: InFile,
    /// The checkpoint of another run in the directory, if the command is allowed to delete it.
    overwritten: Option<Saved>,
}

/// The options in the configuration file of a training run. Options of the command line override them.
#[derive(Debug, Default)]
struct InFile {
    directory: Option<PathBuf>,
    resume: bool,
    overwrite: bool,
}

type Saved = (String, Option<SystemTime>);

impl Plan {
    pub(super) fn new(words: &[OsString]) -> Self {
        let mut plan =
            Self { words: words.to_vec(), directory: None, file: InFile::default(), overwritten: None };
        if trains(words) {
            plan.file = InFile::read(words);
            let named = value(words, DIRECTORY).map(PathBuf::from);
            plan.directory = named.or_else(|| plan.file.directory.clone());
            plan.overwritten = plan.saved().filter(|_| plan.overwrites());
        }
        plan
    }

    fn resumes(&self) -> bool {
        self.words.iter().find_map(|word| switch(word, RESUME)).unwrap_or(self.file.resume)
    }

    fn overwrites(&self) -> bool {
        self.words.iter().find_map(|word| switch(word, OVERWRITE)).unwrap_or(self.file.overwrite)
    }

    pub(super) fn program(&self) -> &OsStr {
        &self.words[0]
    }

    /// Returns the command without standard input. Typed input would reach one run but not the next.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).stdin(Stdio::null());
        command
    }

    /// Returns the error if a restart would resume from another run's checkpoint.
    pub(super) fn refusal(&self) -> Option<String> {
        let (directory, newest) = (self.directory.as_ref()?.display(), self.newest()?);
        (!self.resumes() && !self.overwrites()).then(|| {
            format!(
                "{directory} contains {newest}, and the command does not resume from it: add {RESUME}, choose another \
                 directory, or delete it with {OVERWRITE}"
            )
        })
    }

    /// Adds the option to resume from checkpoints, if the command names their directory and does not resume already.
    pub(super) fn resume(&mut self) {
        if self.overwritten.is_some() && self.overwritten == self.saved() {
            // The command failed before it deleted the other run's checkpoints.
            return;
        }
        if self.saves() && !self.resumes() {
            self.words.retain(|word| switch(word, OVERWRITE).or(switch(word, RESUME)).is_none());
            super::print_message("adding --resume to the command");
            self.words.push(RESUME.into());
            if self.file.overwrite {
                self.words.push(format!("{OVERWRITE}=false").into());
            }
        }
    }

    /// Returns the name of the newest checkpoint of this run.
    pub(super) fn newest_of_run(&self) -> Option<String> {
        self.saved().filter(|saved| self.overwritten.as_ref() != Some(saved)).map(|(name, _)| name)
    }

    fn saved(&self) -> Option<Saved> {
        let name = self.newest()?;
        let changed = fs::metadata(self.directory.as_ref()?.join(&name)).and_then(|found| found.modified());
        Some((name, changed.ok()))
    }

    /// Returns the name of the newest checkpoint. All names have the same length, so the newest is the greatest.
    pub(super) fn newest(&self) -> Option<String> {
        let entries = fs::read_dir(self.directory.as_ref()?).ok()?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter(|name| name.starts_with("step-")).max()
    }

    /// Returns whether the command saves checkpoints, from which a restart resumes.
    pub(super) fn saves(&self) -> bool {
        self.directory.is_some()
    }

    /// Describes where the next run starts.
    pub(super) fn from(&self) -> String {
        match (&self.directory, self.newest()) {
            (None, _) => format!("unchanged, since it is not unisono train with {DIRECTORY}"),
            (Some(_), None) => "from the beginning, since there is no checkpoint".to_owned(),
            (Some(_), Some(name)) => format!("from {name}"),
        }
    }
}

impl InFile {
    /// Reads the file that the command line names. A launcher may have an option of the same name for files in another format.
    #[cfg(feature = "candle")]
    fn read(words: &[OsString]) -> Self {
        let config = value(words, CONFIG).and_then(|file| Config::read(file.as_ref()).ok());
        config.map_or_else(Self::default, |config| Self {
            directory: config.checkpoint_dir,
            resume: config.resume,
            overwrite: config.overwrite,
        })
    }

    #[cfg(not(feature = "candle"))]
    fn read(_: &[OsString]) -> Self {
        Self::default()
    }
}

/// Returns whether a command is `unisono train`, or `scripts/train`. Another program may not have the options of checkpoints, or others of their
/// names.
fn trains(words: &[OsString]) -> bool {
    let is = |word: &OsString, program: &str| Path::new(word).ends_with(program);
    words.windows(2).any(|pair| is(&pair[0], "unisono") && pair[1] == "train")
        || words.iter().any(|word| is(word, "scripts/train"))
}

/// Returns the value of an option: `OPTION VALUE` or `OPTION=VALUE`.
fn value<'a>(words: &'a [OsString], option: &str) -> Option<&'a OsStr> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == option {
            return words.next().map(OsString::as_os_str);
        }
        if let Some(value) = assigned(word, option) {
            return Some(value.as_ref());
        }
    }
    None
}

/// Returns the value of an option without a separate value, if this word is the option: `OPTION` or `OPTION=BOOL`.
fn switch(word: &OsStr, option: &str) -> Option<bool> {
    if word == option { Some(true) } else { assigned(word, option).map(|value| value == "true") }
}

/// Returns the value in `OPTION=VALUE`.
fn assigned<'a>(word: &'a OsStr, option: &str) -> Option<&'a str> {
    word.to_str()?.strip_prefix(option)?.strip_prefix('=')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(line: &str) -> Plan {
        Plan::new(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    fn arguments(plan: &Plan) -> Vec<String> {
        plan.command().get_args().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn resume_option_is_added_once() {
        for line in [
            "mpirun bin/unisono train --checkpoint-dir D",
            "unisono train --checkpoint-dir=D --epochs 2",
            "./scripts/train --checkpoint-dir D",
        ] {
            let mut plan = plan(line);
            assert_eq!(plan.directory.as_deref(), Some("D".as_ref()), "{line}");
            plan.resume();
            plan.resume();
            assert_eq!(arguments(&plan).iter().filter(|word| *word == RESUME).count(), 1, "{line}");
        }
        let mut other = plan("unisono train --checkpoint-directory D");
        other.resume();
        assert_eq!(arguments(&other), ["train", "--checkpoint-directory", "D"]);
        let mut resuming = plan("unisono train --checkpoint-dir D --resume=true");
        resuming.resume();
        assert_eq!(arguments(&resuming), ["train", "--checkpoint-dir", "D", "--resume=true"]);
        let mut explicit = plan("unisono train --checkpoint-dir D --resume=false --overwrite=true");
        explicit.resume();
        assert_eq!(arguments(&explicit), ["train", "--checkpoint-dir", "D", "--resume"]);
    }

    #[test]
    fn other_programs_are_restarted_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("step-7")).unwrap();
        for program in ["torchrun train.py", "python -m trainer train", "unisono launch -n 2 -- ./train"] {
            let mut plan = plan(&format!("{program} --checkpoint-dir {}", directory.path().display()));
            let before = arguments(&plan);
            assert_eq!(plan.refusal(), None, "{program}");
            plan.resume();
            assert_eq!(arguments(&plan), before, "{program}");
        }
    }

    #[cfg(feature = "candle")]
    #[test]
    fn options_of_the_configuration_file_count_unless_the_command_line_overrides_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run.toml");
        for (text, more, added) in [
            ("checkpoint-dir = \"D\"\noverwrite = true", "", &["--resume", "--overwrite=false"][..]),
            ("checkpoint-dir = \"D\"\noverwrite = true", " --overwrite", &["--resume", "--overwrite=false"]),
            ("checkpoint-dir = \"D\"", "", &["--resume"]),
            ("checkpoint-dir = \"D\"\nresume = true", "", &[]),
            ("checkpoint-dir = \"D\"\nresume = true", " --resume=false", &["--resume"]),
            ("no = configuration\ncheckpoint-dir = \"D\"", "", &[]),
        ] {
            fs::write(&file, text).unwrap();
            let mut plan = plan(&format!("unisono train --config {}{more}", file.display()));
            assert_eq!(plan.directory.is_some(), !text.starts_with("no"), "{text}");
            plan.resume();
            assert_eq!(arguments(&plan)[3..], *added, "{text}, {more}");
            let again = arguments(&plan);
            plan.resume();
            assert_eq!(arguments(&plan), again, "{text}, {more}");
        }
    }

    #[test]
    fn overwrite_applies_once_before_the_run_resumes() {
        let directory = tempfile::tempdir().unwrap();
        let checkpoint = |step: u32| directory.path().join(format!("step-000000000{step}"));
        fs::create_dir(checkpoint(7)).unwrap();
        let mut plan =
            plan(&format!("unisono train --overwrite --checkpoint-dir {}", directory.path().display()));
        assert_eq!((plan.refusal(), plan.newest_of_run()), (None, None));
        plan.resume();
        assert!(plan.overwrites() && !plan.resumes(), "they are still there: {plan:?}");
        fs::remove_dir(checkpoint(7)).unwrap();
        fs::create_dir(checkpoint(2)).unwrap();
        assert_eq!(plan.newest_of_run().as_deref(), Some("step-0000000002"));
        plan.resume();
        assert!(plan.resumes() && !plan.overwrites(), "{plan:?}");
    }

    #[test]
    fn newest_checkpoint_is_found_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let plan = plan(&format!("unisono train --checkpoint-dir {}", directory.path().display()));
        assert_eq!(plan.newest(), None);
        for name in ["step-0000000009", ".step-0000000011-1.partial", "step-0000000010", ".lock"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        assert_eq!(plan.newest().as_deref(), Some("step-0000000010"));
        assert_eq!(plan.from(), "from step-0000000010");
        let why = plan.refusal().unwrap();
        assert!(why.contains("step-0000000010") && why.contains("add --resume"), "{why}");
        let mut plan = plan;
        plan.resume();
        assert_eq!(plan.refusal(), None);
    }
}
