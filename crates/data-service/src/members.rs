//! The servers that have joined a server.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a server renews that it has joined.
pub(super) const RENEWAL: Duration = Duration::from_secs(3);
/// How long a server stays in the list without renewal.
const LAPSES: Duration = Duration::from_secs(10);
/// The most servers that are remembered: a list is a message.
const MOST: usize = 10_000;

/// The servers that have joined, and when each last said so.
#[derive(Debug, Default)]
pub(super) struct Members(Mutex<Vec<(String, Instant)>>);

impl Members {
    /// Takes a server into the list, or renews that it is there.
    pub(super) fn renew(&self, address: String, now: Instant) {
        let mut members = self.lock();
        members.retain(|(known, renewed)| *known != address && now.duration_since(*renewed) < LAPSES);
        if members.len() < MOST {
            members.push((address, now));
        }
    }

    /// The servers that have renewed of late.
    pub(super) fn addresses(&self, now: Instant) -> Vec<String> {
        let is_there = |(_, renewed): &&(String, Instant)| now.duration_since(*renewed) < LAPSES;
        self.lock().iter().filter(is_there).map(|(address, _)| address.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a server is reached that says it listens at `address`, and said so from the host `from`: the same unless its host is
/// unspecified (`0.0.0.0`).
pub(super) fn reached(address: &str, from: Option<IpAddr>) -> Option<String> {
    let (host, port) = address.rsplit_once(':')?;
    let is_unspecified = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>()
        .is_ok_and(|host| host.is_unspecified());
    match (is_unspecified, from?.to_canonical()) {
        (false, _) => Some(address.to_owned()),
        (true, IpAddr::V4(from)) => Some(format!("{from}:{port}")),
        (true, IpAddr::V6(from)) => Some(format!("[{from}]:{port}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_does_not_renew_leaves() {
        let (members, start) = (Members::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        members.renew("a:1".into(), at(0));
        members.renew("b:1".into(), at(1));
        members.renew("a:1".into(), at(8));
        assert_eq!(members.addresses(at(8)), ["b:1", "a:1"]);
        assert_eq!(members.addresses(at(12)), ["a:1"]);
        assert!(members.addresses(at(18)).is_empty());
        members.renew("c:1".into(), at(30));
        assert_eq!(members.lock().len(), 1);
    }

    #[test]
    fn an_unspecified_host_is_the_one_that_asks() {
        let from = |text: &str| Some(text.parse().unwrap());
        assert_eq!(reached("host:7", from("10.0.0.1")).unwrap(), "host:7");
        assert_eq!(reached("0.0.0.0:7", from("10.0.0.1")).unwrap(), "10.0.0.1:7");
        assert_eq!(reached("[::]:7", from("fe80::1")).unwrap(), "[fe80::1]:7");
        assert_eq!(reached("[::]:7", from("::ffff:10.0.0.1")).unwrap(), "10.0.0.1:7");
        assert_eq!(reached("nowhere", from("10.0.0.1")), None);
    }
}
