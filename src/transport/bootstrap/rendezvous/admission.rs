//! Rank 0's side of the rendezvous, until all ranks are admitted.

use std::net::{SocketAddr, TcpListener};
use std::time::Instant;

use unisono_collectives::Rank;

use super::{Joining, LONGEST, WARN_AFTER, idle, lost, refuse};
use crate::control::Claim;
use crate::error::{Error, Result};
use crate::record::named;
use crate::system::print_line;
use crate::transport::bootstrap::arrivals::{Arrival, Arrivals};
use crate::transport::bootstrap::peer::Peer;

/// Admits the other ranks, and returns them in order.
///
/// # Errors
/// If ranks are missing after the deadline, have ended, or disagree about the world. Admitted ranks receive the reason.
pub(super) fn admit(listeners: Vec<TcpListener>, joining: Joining<'_>) -> Result<Vec<Peer>> {
    let admitted = (0..joining.world.1).map(|_| None).collect();
    let mut admission =
        Admission { joining, began: Instant::now(), reported: false, admitted, stranger: None };
    let admitted = Arrivals::new(listeners, joining.secret.0)
        .map_err(|error| Error::Launch(format!("rank 0 cannot listen: {error}")))
        .and_then(|mut arrivals| {
            while !admission.missing().is_empty() {
                admission.advance(&mut arrivals)?;
            }
            Ok(())
        });
    let mut peers: Vec<_> = admission.admitted.into_iter().flatten().collect();
    admitted.inspect_err(|problem| refuse(&mut peers, problem)).map(|()| peers)
}

/// The ranks that are admitted so far.
struct Admission<'a> {
    joining: Joining<'a>,
    began: Instant,
    reported: bool,
    admitted: Vec<Option<Peer>>,
    /// The latest connection that does not know the secret.
    stranger: Option<SocketAddr>,
}

impl Admission<'_> {
    fn missing(&self) -> Vec<Rank> {
        (1..self.admitted.len()).filter(|&rank| self.admitted[rank].is_none()).collect()
    }

    /// Waits for an event, and serves all connections.
    fn advance(&mut self, arrivals: &mut Arrivals) -> Result<()> {
        let (mut problem, admitted) = (Ok(()), &self.admitted);
        let is_admitted = |rank: Rank| admitted[rank].is_some();
        let admit =
            |claim| check(claim, admitted.len(), is_admitted).inspect_err(|why| problem = Err(why.clone()));
        let present: Vec<_> = admitted.iter().flatten().collect();
        for arrival in arrivals.advance(admitted.len(), &present, admit) {
            match arrival {
                Arrival::Member(claim, peer) => self.place(claim.from, peer)?,
                Arrival::Stranger(address) => address.into_iter().for_each(|address| self.report(address)),
            }
        }
        problem.map_err(Error::Launch)?;
        for (rank, peer) in self.admitted.iter_mut().enumerate() {
            if let Some(peer) = peer {
                // The messages stay in the buffer until the first round.
                peer.flush().and(peer.fill(LONGEST)).map_err(|error| lost(rank, &error))?;
            }
        }
        self.check_time()?;
        idle(0)
    }

    /// Admits a rank, unless another connection with its number was admitted at the same time.
    fn place(&mut self, rank: Rank, peer: Peer) -> Result<()> {
        self.admitted[rank].replace(peer).map_or(Ok(()), |_| Err(Error::Launch(twice(rank))))
    }

    /// Reports the first connection that does not know the secret.
    fn report(&mut self, address: SocketAddr) {
        if self.stranger.replace(address).is_none() {
            print_line(&format!(
                "rank 0 refuses a connection from {address}, which has another UNISONO_SECRET"
            ));
        }
    }

    /// Reports missing ranks, first on standard error and then as an error.
    fn check_time(&mut self) -> Result<()> {
        let (waited, missing) = (self.began.elapsed(), self.missing());
        if missing.is_empty() || waited <= WARN_AFTER.min(self.joining.timeout) {
            return Ok(());
        }
        let ranks = self.admitted.len();
        let refused = self.stranger.map_or_else(String::new, |address| {
            format!("; it refused {address}, which has another UNISONO_SECRET")
        });
        let message = format!(
            "rank 0 of {ranks} has waited {} s for {}: was each of the {ranks} processes started, with a RANK of its own, and the same \
             MASTER_ADDR and MASTER_PORT?{refused}",
            waited.as_secs(),
            named(&missing)
        );
        if waited > self.joining.timeout {
            return Err(Error::Launch(message));
        }
        if !std::mem::replace(&mut self.reported, true) {
            print_line(&message);
        }
        Ok(())
    }
}

/// Checks a claim by a process that knows the secret. The error is the reason to refuse it.
fn check(claim: Claim, ranks: usize, is_admitted: impl Fn(Rank) -> bool) -> Result<(), String> {
    let Claim { from: rank, tag: of, .. } = claim;
    if of != ranks as u64 {
        return Err(format!(
            "rank 0 is in a world of {ranks} ranks, but rank {rank} in one of {of}: WORLD_SIZE must be the same for all"
        ));
    }
    if rank == 0 || rank >= ranks || is_admitted(rank) { Err(twice(rank)) } else { Ok(()) }
}

fn twice(rank: Rank) -> String {
    format!("there are two ranks {rank}: each needs a RANK of its own")
}
