//! Ctrl-C.

use std::process::{Child, Stdio};
use std::time::Instant;

use super::*;
use unisono_testing::suite::Test;
use unisono_testing::tests;

/// A run that is killed if the test ends before it does.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        // It may be over.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn a_person_who_interrupts_threads_keeps_what_was_made() {
    let directory = tempfile::tempdir().unwrap();
    let (kept, said) = (directory.path().join("kept"), directory.path().join("said"));
    let mut command = Command::new(UNISONO);
    command.args([
        "train",
        "--threads",
        "2",
        "--epochs",
        "1000",
        "--checkpoint-every",
        "5",
        "--format",
        "json",
    ]);
    command.arg("--checkpoint-dir").arg(&kept).stdin(Stdio::null());
    command.stdout(fs::File::create(&said).unwrap()).stderr(Stdio::null());
    let mut run = Guarded(command.spawn().unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    let wait = || {
        assert!(Instant::now() < deadline, "it takes more than a minute");
        std::thread::sleep(Duration::from_millis(10));
    };
    while !names_in(&kept).iter().any(|name| name.starts_with("step-")) {
        wait();
    }
    assert!(Command::new("kill").args(["-INT", &run.0.id().to_string()]).status().unwrap().success());
    let status = loop {
        match run.0.try_wait().unwrap() {
            Some(status) => break status,
            None => wait(),
        }
    };
    let said = fs::read_to_string(said).unwrap();
    assert_eq!(status.code(), Some(75), "{said}");
    let last: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!((&last["event"], &last["stopped"]["is_saved"]), (&"stopped".into(), &true.into()), "{last}");
    let newest = format!("step-{:010}", last["stopped"]["step"].as_u64().unwrap());
    assert_eq!(names_in(&kept).last(), Some(&newest));
}

pub(crate) fn tests() -> Vec<Test> {
    tests![a_person_who_interrupts_threads_keeps_what_was_made,]
}
