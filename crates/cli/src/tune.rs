//! `unisono tune`: measures the cost of messages and single passes on this machine.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use unisono::constants::{self, Measured, Off};
use unisono::size;
use unisono::tuning::{self, Reach, Section, Tuning};
use unisono::{Communicator, Error};

use super::Failure;
use super::replace::Replacement;
use super::world::World;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Tuning file to write; sections that this run does not measure are kept [default: the file of UNISONO_TUNING, or the cache of this user for the
    /// same number of ranks on this machine]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    world: World,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    args.world.run(|comm| on_rank(comm, args.out.as_deref()))
}

const NOWHERE: &str = "no run would load the constants: UNISONO_TUNING is `default`, nodes are declared, or there is no home \
                       directory; set --out";

fn on_rank(comm: &mut Communicator, out: Option<&Path>) -> Result<(), Failure> {
    let is_root = comm.rank() == 0;
    // Checks that the file can be written before measuring. All ranks need the result.
    let prepare = |comm: &mut Communicator| -> Result<_, Failure> {
        let next = || constants::file(comm).ok_or_else(|| Failure::BadInput(NOWHERE.to_owned()));
        let file = out.map_or_else(next, |out| Ok(out.to_owned()))?;
        let kept = kept(&file).map_err(Failure::BadInput)?;
        check_place(&file, out.is_none())?;
        Ok((file, kept))
    };
    let place = if is_root { prepare(comm) } else { Ok(<(PathBuf, Vec<_>)>::default()) };
    let mut refused = [u8::from(place.is_err())];
    comm.broadcast(&mut refused, 0)?;
    let (file, kept) = place?;
    if refused != [0] {
        return Err(Failure::ReportedElsewhere);
    }
    let known = Tuning::default().with(kept.iter().cloned());
    let measured = constants::measure(comm, &known).map_err(|error| match error {
        Error::Unsupported(_) => Failure::refusal(is_root, error),
        error => error.into(),
    })?;
    if !is_root {
        return Ok(());
    }
    for one in &measured {
        println!("{}", described(one));
        let older = kept.iter().find(|(reach, _)| *reach == one.reach).map(|(_, section)| section);
        for doubt in doubts(one, older) {
            println!("warning: [{}] {doubt}", one.reach.name());
        }
    }
    let mut written = Replacement::create(&file)?;
    write!(written, "{}", tuning::write(&merged(kept, &measured)))?;
    written.finish()?;
    if comm.is_oversubscribed() && comm.topology().nodes() == 1 {
        println!(
            "oversubscribed (more ranks than cores): only context switches were measured; to measure messages, run at most one rank per core"
        );
    }
    let used = match out {
        None => "the next run with the same number of ranks on this machine uses it".to_owned(),
        Some(out) => format!("set UNISONO_TUNING={} to use it", out.display()),
    };
    println!("written to {}; {used}", file.display());
    Ok(())
}

fn doubts(measured: &Measured, older: Option<&Section>) -> Vec<String> {
    let mut doubts = Vec::new();
    let [least_us, most_us] = measured.exchange_us;
    if !measured.is_steady() {
        doubts.push(format!(
            "unstable measurement: an exchange of 8 bytes took between {least_us:.2} and {most_us:.2} us; run tune again"
        ));
    }
    if measured.messages_off.is_none() {
        return doubts;
    }
    if let Some((size_bytes, times)) = older.and_then(|older| measured.disagreement(older)) {
        let (size, percent) = (size::text(size_bytes), 100.0 * times);
        doubts.push(format!(
            "the file differs: messages of {size} took {percent:.0} % of the time measured now ({}); one of the two was \
             measured under load, or with other ranks: run tune again",
            older.map_or("", |older| &older.measured)
        ));
    }
    doubts
}

fn described(measured: &Measured) -> String {
    let Measured { reach, section, messages_off, one_pass_off, .. } = measured;
    let off = |&Off { typical_percent, worst_percent, worst_at_bytes }: &Off| {
        let at = size::text(worst_at_bytes);
        format!("{typical_percent:.0} % off, at worst {worst_percent:.0} % at {at}")
    };
    let one_pass = one_pass_off.as_ref().map_or_else(String::new, |pass| format!("; one pass {}", off(pass)));
    let hand_over = section.hand_over_us.map(|us| format!("a context switch between ranks takes {us:.2} us"));
    let messages = messages_off
        .as_ref()
        .map(|messages| format!("{}: messages {}{one_pass}", section.measured, off(messages)));
    let measured: Vec<_> = messages.into_iter().chain(hand_over).collect();
    format!("[{}] {}", reach.name(), measured.join("; "))
}

/// Returns the existing sections of a file, or none if there is no file.
fn kept(file: &Path) -> Result<Vec<(Reach, Section)>, String> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|error| format!("cannot read `{}`: {error}", file.display()))?,
    };
    tuning::read(&text).map_err(|error| {
        format!("`{}`, {error}; it is not a tuning file, and stays unchanged", file.display())
    })
}

/// Checks that the file can be written. `makes_folder` is set for a file that this program has chosen.
fn check_place(file: &Path, makes_folder: bool) -> Result<(), Failure> {
    if let Some(folder) = file.parent().filter(|_| makes_folder) {
        let made = fs::create_dir_all(folder);
        made.map_err(|error| Failure::BadInput(format!("cannot write `{}`: {error}", file.display())))?;
    }
    Replacement::create(file).map(drop)
}

/// Returns all sections in canonical order. New measurements replace old ones.
fn merged(kept: Vec<(Reach, Section)>, measured: &[Measured]) -> Vec<(Reach, Section)> {
    let section = |reach: Reach| {
        let new = measured.iter().find(|one| one.reach == reach).map(|one| one.section.clone());
        let old = kept.iter().find(|(old, _)| *old == reach).map(|(_, section)| section.clone());
        Some((reach, new.or(old)?))
    };
    Reach::ALL.into_iter().filter_map(section).collect()
}
