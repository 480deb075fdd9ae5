//! Servers that join another server, which reports them to its clients.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tonic::transport::Channel;
use tonic::{Code, Status};

use super::call::{MOST_OTHER_BYTES, PATIENCE, call, connect, problem, until};
use super::handshake::Token;
use super::message::JoinRequest;
use unisono_data::pipeline::lock;
use unisono_data::{DataError, Options, Service};

/// The interval at which a server renews its membership.
const RENEWAL: Duration = Duration::from_secs(3);
/// The time after which a membership without renewal expires.
const LAPSES: Duration = Duration::from_secs(10);
/// The maximum number of members, since their list must fit into one message.
pub(super) const MOST_MEMBERS: usize = 10_000;

/// The servers that have joined, and the time of their last renewal.
#[derive(Debug, Default)]
pub(super) struct Members(Mutex<Vec<(String, Instant)>>);

impl Members {
    /// Adds a server, or renews its membership. Returns false if there are too many members to add another one.
    pub(super) fn renew(&self, address: String, now: Instant) -> bool {
        let mut members = lock(&self.0);
        members.retain(|(known, renewed)| *known != address && now.duration_since(*renewed) < LAPSES);
        let has_room = members.len() < MOST_MEMBERS;
        if has_room {
            members.push((address, now));
        }
        has_room
    }

    pub(super) fn addresses(&self, now: Instant) -> Vec<String> {
        let is_there = |(_, renewed): &&(String, Instant)| now.duration_since(*renewed) < LAPSES;
        lock(&self.0).iter().filter(is_there).map(|(address, _)| address.clone()).collect()
    }
}

/// Returns the address of a server that announces `address` from the host `from`: the same address, unless its host is unspecified (`0.0.0.0`).
pub(super) fn reached(address: &str, from: Option<IpAddr>) -> Option<String> {
    let from = from?.to_canonical();
    let reached = match address.parse::<SocketAddr>() {
        Ok(own) if own.ip().is_unspecified() => SocketAddr::new(from, own.port()).to_string(),
        _ => address.to_owned(),
    };
    Some(reached).filter(|reached| Service::is_address(reached))
}

/// The latest problem of the joined server, until it is read.
pub(super) type Notice = Arc<Mutex<Option<String>>>;

/// The membership of this server in the server `other`, which reports it to its clients.
pub(super) struct Membership {
    pub(super) other: String,
    pub(super) token: Token,
    pub(super) request: JoinRequest,
}

impl Membership {
    pub(super) async fn begin(&self, options: &Options) -> Result<Channel, DataError> {
        let joined = async {
            let channel = connect(&self.other, &self.token)?;
            let began = Instant::now();
            while let Err(status) = self.renew(&channel).await {
                let is_final = matches!(
                    status.code(),
                    Code::FailedPrecondition | Code::Unauthenticated | Code::InvalidArgument
                );
                if is_final || began.elapsed() > PATIENCE {
                    let problem = format!("cannot join it: {}", problem(&status));
                    return Err(DataError::Server { address: self.other.clone(), problem });
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Ok(channel)
        };
        let limit = PATIENCE.as_secs();
        let awaited = || format!("waiting for the data server `{}` to join it, up to {limit} s", self.other);
        until(options, joined, awaited).await
    }

    async fn renew(&self, channel: &Channel) -> Result<(), Status> {
        call(channel, self.request.clone(), MOST_OTHER_BYTES).await
    }

    /// Renews the membership indefinitely, since the other server may recover.
    pub(super) async fn keep(self, channel: Channel, notice: Notice) {
        let mut was_well = true;
        loop {
            tokio::time::sleep(RENEWAL).await;
            let renewed = self.renew(&channel).await;
            if let (Err(status), true) = (&renewed, was_well) {
                let message =
                    format!("data server `{}`, which this one has joined: {}", self.other, problem(status));
                *lock(&notice) = Some(message);
            }
            was_well = renewed.is_ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_membership_without_renewal_expires() {
        let (members, start) = (Members::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        members.renew("a:1".into(), at(0));
        members.renew("b:1".into(), at(1));
        members.renew("a:1".into(), at(8));
        assert_eq!(members.addresses(at(8)), ["b:1", "a:1"]);
        assert_eq!(members.addresses(at(12)), ["a:1"]);
        assert!(members.addresses(at(18)).is_empty());
        members.renew("c:1".into(), at(30));
        assert_eq!(lock(&members.0).len(), 1);
    }

    #[test]
    fn members_beyond_the_limit_are_refused_until_another_one_expires() {
        let (members, start) = (Members::default(), Instant::now());
        lock(&members.0).extend((0..MOST_MEMBERS).map(|number| (format!("a:{number}"), start)));
        assert!(!members.renew("b:1".into(), start));
        assert!(members.renew("a:7".into(), start), "a member remains one");
        assert_eq!(members.addresses(start).len(), MOST_MEMBERS);
        assert!(members.renew("b:1".into(), start + LAPSES));
    }

    #[test]
    fn an_unspecified_host_is_replaced_by_the_sender() {
        let from = |text: &str| Some(text.parse().unwrap());
        assert_eq!(reached("host:7", from("10.0.0.1")).unwrap(), "host:7");
        assert_eq!(reached("0.0.0.0:7", from("10.0.0.1")).unwrap(), "10.0.0.1:7");
        assert_eq!(reached("[::]:7", from("fe80::1")).unwrap(), "[fe80::1]:7");
        assert_eq!(reached("[::]:7", from("::ffff:10.0.0.1")).unwrap(), "10.0.0.1:7");
        assert_eq!(reached("nowhere", from("10.0.0.1")), None);
    }
}
