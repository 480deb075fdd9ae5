//! The command line under supervision.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::SystemTime;

const DIRECTORY: &str = "--checkpoint-dir";
const RESUME: &str = "--resume";
const OVERWRITE: &str = "--overwrite";

/// A command, and its checkpoint directory if it names one.
#[derive(Debug)]
pub(super) struct Plan {
    words: Vec<OsString>,
    directory: Option<PathBuf>,
    /// The checkpoint of another run in the directory, if the command is allowed to delete it.
    overwritten: Option<Saved>,
}

/// A checkpoint's name and modification time.
type Saved = (String, Option<SystemTime>);

impl Plan {
    pub(super) fn new(words: &[OsString]) -> Self {
        let mut plan = Self { words: words.to_vec(), directory: directory(words), overwritten: None };
        plan.overwritten = plan.saved().filter(|_| plan.has(OVERWRITE));
        plan
    }

    fn has(&self, option: &str) -> bool {
        self.words.iter().any(|word| word == option)
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
        (!self.has(RESUME) && !self.has(OVERWRITE)).then(|| {
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
        if self.directory.is_some() && !self.has(RESUME) {
            self.words.retain(|word| word != OVERWRITE);
            super::print_message("adding --resume to the command");
            self.words.push(RESUME.into());
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

    /// Describes where the next run starts.
    pub(super) fn from(&self) -> String {
        match (&self.directory, self.newest()) {
            (None, _) => format!("unchanged, since it has no {DIRECTORY}"),
            (Some(_), None) => "from the beginning, since there is no checkpoint".to_owned(),
            (Some(_), Some(name)) => format!("from {name}"),
        }
    }
}

fn directory(words: &[OsString]) -> Option<PathBuf> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == DIRECTORY {
            return words.next().map(PathBuf::from);
        }
        let value = word.to_str().and_then(|word| word.strip_prefix(DIRECTORY)?.strip_prefix('='));
        if let Some(value) = value {
            return Some(value.into());
        }
    }
    None
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
        for line in ["mpirun train --checkpoint-dir D", "train --checkpoint-dir=D --epochs 2"] {
            let mut plan = plan(line);
            assert_eq!(plan.directory.as_deref(), Some("D".as_ref()), "{line}");
            plan.resume();
            plan.resume();
            assert_eq!(arguments(&plan).iter().filter(|word| *word == RESUME).count(), 1, "{line}");
        }
        let mut other = plan("some program --checkpoint-directory D");
        other.resume();
        assert_eq!(arguments(&other), ["program", "--checkpoint-directory", "D"]);
    }

    #[test]
    fn overwrite_applies_once_before_the_run_resumes() {
        let directory = tempfile::tempdir().unwrap();
        let checkpoint = |step: u32| directory.path().join(format!("step-000000000{step}"));
        fs::create_dir(checkpoint(7)).unwrap();
        let mut plan = plan(&format!("train --overwrite --checkpoint-dir {}", directory.path().display()));
        assert_eq!((plan.refusal(), plan.newest_of_run()), (None, None));
        plan.resume();
        assert!(plan.has(OVERWRITE) && !plan.has(RESUME), "they are still there: {plan:?}");
        fs::remove_dir(checkpoint(7)).unwrap();
        fs::create_dir(checkpoint(2)).unwrap();
        assert_eq!(plan.newest_of_run().as_deref(), Some("step-0000000002"));
        plan.resume();
        assert!(plan.has(RESUME) && !plan.has(OVERWRITE), "{plan:?}");
    }

    #[test]
    fn newest_checkpoint_is_found_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let plan = plan(&format!("train --checkpoint-dir {}", directory.path().display()));
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
