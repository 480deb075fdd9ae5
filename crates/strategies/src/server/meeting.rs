//! The rendezvous of the two sides of a link.

use std::sync::mpsc::channel;
use std::thread;

use unisono::{Bootstrap, Communicator, Error, Rank, Result, Topology, Unisono};

use super::message::{CLIENT, Link, SERVER};

/// Returns a link between two ranks of a world, which both call it; the first one serves. What fails there fails
/// nothing else.
pub(super) fn link(comm: &mut Communicator, server: Rank, client: Rank) -> Result<Link> {
    let (place, other) = if comm.rank() == server { (SERVER, client) } else { (CLIENT, server) };
    let topology = comm.topology();
    let share_a_node = topology.node_of(server) == topology.node_of(client);
    let nodes: &[usize] = if share_a_node { &[2] } else { &[1, 1] };
    thread::scope(|scope| {
        let ((asks, asked), (answers, answered)) = (channel(), channel());
        let gone = || Error::Launch("the world that should connect two ranks is lost".to_owned());
        let over_world = move |own: &[u8]| {
            asks.send(own.to_vec()).map_err(|_| gone())?;
            answered.recv().map_err(|_| gone())?
        };
        let (bootstrap, nodes) = (Between { place, exchange: over_world }, Topology::from_node_sizes(nodes));
        let begun = scope.spawn(move || Unisono::builder().bootstrap(bootstrap).nodes(nodes).processes());
        // The set-up of the link asks, on its thread; the world is here.
        while let Ok(own) = asked.recv() {
            let answer = exchange(comm, other, own);
            if answers.send(answer).is_err() {
                break;
            }
        }
        let comm = begun.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(Link { comm })
    })
}

/// Returns the bytes of both sides, the server's first.
fn exchange(comm: &mut Communicator, other: Rank, own: Vec<u8>) -> Result<Vec<u8>> {
    let mut size = [0_u64];
    comm.exchange(&[own.len() as u64], other, &mut size, other)?;
    let mut theirs = vec![0; size[0] as usize];
    comm.exchange(&own, other, &mut theirs, other)?;
    Ok(theirs)
}

/// The bootstrap of two ranks.
struct Between<F> {
    place: Rank,
    exchange: F,
}

impl<F: FnMut(&[u8]) -> Result<Vec<u8>>> Bootstrap for Between<F> {
    fn rank(&self) -> Rank {
        self.place
    }

    fn ranks(&self) -> usize {
        2
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = vec![(self.exchange)(own)?];
        all.insert(self.place, own.to_vec());
        Ok(all)
    }
}
