//! The service of a server for one client, on a thread of its own.

use unisono::{Error, Rank};

use super::dispatcher::Dispatcher;
use super::message::{Kind, Link, Message};
use super::shard::Shard;

/// Serves a client until it leaves. Only the coordinator has a dispatcher, which knows the client by its rank.
///
/// # Errors
/// The client is lost.
pub(super) fn attend(
    mut link: Link,
    shard: &Shard,
    dispatcher: Option<(&Dispatcher, Rank)>,
) -> Result<(), Error> {
    let mut visit = shard.visit(&link)?;
    let mut missed = 0;
    loop {
        let heard = link.hear()?;
        match (heard.kind, dispatcher) {
            (Kind::Pull, _) => shard.give(&mut link, &mut visit)?,
            (Kind::Push, _) => missed = shard.take(&mut link, &mut visit, &heard)?,
            (Kind::Trained, Some((dispatcher, worker))) => dispatcher.trained(worker, &heard, missed),
            (Kind::Evaluated, Some((dispatcher, worker))) => dispatcher.evaluated(worker, &heard),
            (Kind::Ask, Some((dispatcher, worker))) => {
                let next = dispatcher.next(worker, heard.asks_to_stop != 0);
                link.tell(next)?;
            }
            (Kind::Read, _) => shard.read().iter().try_for_each(|held| held.send(&mut link))?,
            (Kind::Restore, _) => {
                let mut held = shard.read();
                held.iter_mut().try_for_each(|held| held.receive(&mut link))?;
                shard.restore(&held);
                link.tell(Message::new(Kind::Done))?;
            }
            (Kind::Leave, _) => return Ok(()),
            (kind, _) => unreachable!("a client of this server sends no {kind:?}"),
        }
    }
}
