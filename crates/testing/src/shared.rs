//! Results that several tests of a run need. Under nextest each test is a separate process. The first one that needs a result
//! computes it, and the others wait for it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::launch::target_and_profile;

/// Returns the folder of this name, which `fill` fills once per run of tests.
///
/// # Panics
/// If it cannot be created.
pub fn folder(name: &str, fill: impl FnOnce(&Path)) -> PathBuf {
    let all = target_and_profile().0.join("tmp/shared");
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let (process, run) = run();
    let folder = all.join(format!("{process}-{run}")).join(format!("{package}-{name}"));
    fs::create_dir_all(&folder).expect("the folder of builds is writable");
    remove_earlier(&all);
    let lock = File::create(folder.with_extension("lock")).expect("the folder of builds is writable");
    lock.lock().expect("files can be locked");
    let complete = folder.with_extension("complete");
    if !complete.exists() {
        fill(&folder);
        File::create(complete).expect("the folder of builds is writable");
    }
    folder
}

/// Returns the text of this name, which `make` computes once per run of tests.
pub fn text(name: &str, make: impl FnOnce() -> String) -> String {
    let file =
        folder(name, |folder| fs::write(folder.join("text"), make()).expect("there is room")).join("text");
    fs::read_to_string(file).expect("it was written")
}

/// Returns the process that runs the tests, nextest or this one, and its start time.
fn run() -> (u32, String) {
    let is_nextest = std::env::var_os("NEXTEST_RUN_ID").is_some();
    let process = if is_nextest { std::os::unix::process::parent_id() } else { std::process::id() };
    (process, started(process).expect("the process that runs the tests is running"))
}

/// Returns the start of a process in clock ticks since the machine started; none if there is no such process.
fn started(process: u32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    Some(status.rsplit_once(')')?.1.split_whitespace().nth(19)?.to_owned())
}

/// Removes the results of runs that have ended.
fn remove_earlier(all: &Path) {
    for entry in fs::read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let run = name.split_once('-').and_then(|(process, run)| Some((process.parse().ok()?, run)));
        if run.is_some_and(|(process, run)| started(process).as_deref() != Some(run)) {
            // Another test may remove it at the same time.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_is_computed_once() {
        let made = std::cell::Cell::new(0);
        let make = || {
            made.set(made.get() + 1);
            "a text".to_owned()
        };
        assert_eq!((text("of a test", make), text("of a test", make)), ("a text".into(), "a text".into()));
        assert_eq!(made.get(), 1);
    }
}
