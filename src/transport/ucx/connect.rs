//! Connects ranks over UCX.

use std::collections::VecDeque;
use std::fmt::Display;
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::inbox::Lost;
use super::library::library;
use super::line::Line;
use super::worker::Worker;
use crate::transport::bootstrap::{Bootstrap, gather_results};
use crate::transport::link::{Connected, Link};

/// The time that a rank waits for the greetings of all others.
const CONNECT: Duration = Duration::from_secs(30);
const NAP: Duration = Duration::from_millis(1);

/// Connects this rank with all ranks that are `far`. All ranks of the world call it.
pub(in crate::transport) fn link(
    bootstrap: &mut dyn Bootstrap,
    far: impl Fn(Rank) -> bool,
) -> Connected<Box<dyn Link>> {
    let (own, ranks) = (bootstrap.rank(), bootstrap.ranks());
    let opened = library().and_then(|library| {
        let worker = Worker::new(library, (own, ranks));
        let opened = worker.and_then(|worker| Ok((worker.address()?, worker)));
        opened.map_err(|status| format!("UCX cannot be used: {status}"))
    });
    let of_own = |problem: String| format!("rank {own}: {problem}");
    let (address, worker) = match opened {
        Ok((address, worker)) => (Ok(address), Some(worker)),
        Err(problem) => (Err(of_own(problem)), None),
    };
    let addresses = match gather_results(bootstrap, &address)? {
        Ok(addresses) => addresses,
        Err(problem) => return Ok(Err(problem)),
    };
    let worker = worker.expect("all ranks have one");
    let far: Vec<_> = (0..ranks).filter(|&rank| rank != own && far(rank)).collect();
    let greeted = greet(&worker, &far, &addresses, || bootstrap.has_failed());
    let all = gather_results(bootstrap, &greeted.map_err(of_own))?;
    Ok(all.map(|_| Box::new(Line::new(worker, ranks)) as Box<dyn Link>))
}

/// Greets these ranks, and waits for their greetings, since UCX reports some errors only when a message is sent.
fn greet(
    worker: &Worker,
    far: &[Rank],
    addresses: &[Vec<u8>],
    has_failed: impl Fn() -> bool,
) -> Result<(), String> {
    let began = Instant::now();
    let cannot =
        |other: Rank, why: &dyn Display| format!("it cannot connect with rank {other} over UCX: {why}");
    let mut greetings = VecDeque::new();
    for &other in far {
        // SAFETY: the other rank got the address from its worker.
        let greeting = unsafe { worker.connect(other, &addresses[other]) };
        let greeting = greeting.map_err(|status| cannot(other, &Lost::Failed(status)))?;
        greetings.extend(greeting.map(|greeting| (other, greeting)));
    }
    loop {
        while let Some((other, greeting)) = greetings.front()
            && worker.is_done(greeting).map_err(|status| cannot(*other, &Lost::Failed(status)))?
        {
            greetings.pop_front();
        }
        if let Some((other, lost)) = far.iter().find_map(|&other| Some((other, worker.inbox.lost(other)?))) {
            return Err(cannot(other, &lost));
        }
        let missing = far.iter().find(|&&other| !worker.inbox.has_greeted(other));
        let Some(&other) = missing.or(greetings.front().map(|(other, _)| other)) else { return Ok(()) };
        if began.elapsed() > CONNECT || has_failed() {
            let silent = began.elapsed().as_secs();
            return Err(cannot(other, &format_args!("it was silent for {silent} s")));
        }
        if !worker.progress() {
            worker.wait(NAP);
        }
    }
}
