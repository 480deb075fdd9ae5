//! Ranks on other hosts. Each host runs a part of the launch, which ssh starts. It ends when the connection ends.

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use super::ranks::{Machine, Place};
use super::{forward, print_message};
use crate::BAD_INPUT;
use crate::family::{Member, TO_END, code, heeded};
use crate::values::MOST_RANKS;

/// The exit code of ssh if there is no connection.
const NO_CONNECTION: u8 = 255;
/// Options that disable prompts, and detect a lost host within a minute.
const OPTIONS: [&str; 4] =
    ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=15", "ServerAliveCountMax=3"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) slots: Option<usize>,
}

/// Parses `HOST` or `HOST:SLOTS`.
pub(super) fn host(text: &str) -> Result<Host, String> {
    let text = text.trim();
    let (name, slots) = match text.rsplit_once(':') {
        // An IPv6 address contains colons, and is in brackets before slots.
        Some((name, slots)) if name.ends_with(']') || !name.contains(':') => {
            (name, Some(slots.parse().ok().filter(|slots| (1..=MOST_RANKS).contains(slots))))
        }
        _ => (text, None),
    };
    // ssh expects none.
    let name = name.replace(['[', ']'], "");
    let is_name = !name.is_empty() && !name.starts_with('-');
    match slots {
        Some(None) => Err(format!("expected HOST or HOST:SLOTS, with 1 to {MOST_RANKS} slots")),
        _ if !is_name => Err("expected HOST or HOST:SLOTS, such as node1:4".to_owned()),
        slots => Ok(Host { name, slots: slots.flatten() }),
    }
}

/// The part of a launch that a host runs. It is the first line of its launcher's standard input, because a command line would expose secrets to other
/// users.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) machine: Machine,
    pub(super) directory: PathBuf,
    pub(super) grace_s: u64,
}

/// The names of the hosts, each with its part of the ranks.
pub(super) type Hosts = Vec<(String, Part)>;

impl Place for Hosts {
    fn count(&self) -> usize {
        self.len()
    }

    fn start(&self, index: usize, _: bool) -> io::Result<Member> {
        let (host, part) = &self[index];
        let program = std::env::current_exe()?;
        let mut command = Command::new("ssh");
        command.args(OPTIONS.iter().flat_map(|option| ["-o", option])).arg("--").arg(host);
        // Quoted for the shell of the host.
        command.arg(format!("exec '{}' launch-part", program.display().to_string().replace('\'', "'\\''")));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut member = Member::start(command)?;
        member.forwards = forward::lines(&mut member.child, "", None);
        let mut input = member.child.stdin.take().expect("it is piped");
        let line = serde_json::to_string(part)? + "\n";
        // If ssh has ended, its exit code reports the cause.
        let _ = input.write_all(line.as_bytes());
        member.input = Some(input);
        Ok(member)
    }

    fn program(&self) -> String {
        "ssh".to_owned()
    }

    fn what(&self) -> &'static str {
        "hosts"
    }

    fn failure(&self, index: usize, _: u32, status: ExitStatus) -> Option<String> {
        let host = &self[index].0;
        // Otherwise the launcher on the host has reported the failure.
        is_lost(status).then(|| {
            format!(
                "cannot reach host `{host}`, or lost the connection: `ssh {host}` must work without a password"
            )
        })
    }

    fn code(&self, status: ExitStatus) -> u8 {
        if is_lost(status) { 1 } else { code(status) }
    }
}

fn is_lost(status: ExitStatus) -> bool {
    code(status) == NO_CONNECTION
}

/// Runs this host's part, which standard input describes. Ends with the connection.
pub(crate) fn run() -> io::Result<u8> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let Part { machine, directory, grace_s } = serde_json::from_str(&line)?;
    std::env::set_current_dir(&directory)
        .map_err(|error| io::Error::new(error.kind(), format!("`{}`: {error}", directory.display())))?;
    if let Err(error) = machine.prepare() {
        print_message(&error.to_string());
        return Ok(BAD_INPUT);
    }
    let mut signals = Signals::new(heeded())?;
    let (sender, received) = mpsc::channel();
    thread::spawn(move || {
        for byte in io::stdin().lock().bytes().map_while(Result::ok) {
            let _ = sender.send(i32::from(byte));
        }
        // The launcher or the connection has ended, so the ranks must end too.
        let _ = sender.send(SIGTERM);
        thread::sleep(TO_END);
        let _ = sender.send(SIGTERM);
    });
    let mut arrived = || signals.pending().chain(received.try_iter()).collect();
    let code = super::watch(&machine, None, &mut arrived, Duration::from_secs(grace_s))?;
    // ssh passes the code on, and a rank may have ended with the one of a lost connection.
    Ok(code.min(NO_CONNECTION - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_may_be_addresses_with_slots() {
        for (text, name, slots) in [
            ("node0", "node0", None),
            (" node1:4 ", "node1", Some(4)),
            ("me@10.0.0.1:1024", "me@10.0.0.1", Some(1024)),
            ("fd00::1", "fd00::1", None),
            ("[fd00::1]", "fd00::1", None),
            ("me@[fd00::1]:4", "me@fd00::1", Some(4)),
        ] {
            assert_eq!(host(text), Ok(Host { name: name.to_owned(), slots }), "{text}");
        }
        for text in
            ["", " ", ":4", "-x", "a:0", "a:1025", "a:18446744073709551615", "a:x", "[]:1", "[fd00::1]:"]
        {
            assert!(host(text).is_err(), "{text}");
        }
    }
}
