//! The servers that a client has found, and the choice of the server for a request.

use std::iter;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tonic::transport::Channel;

use super::call::connect;
use super::handshake::Token;
use super::message::Servers;
use unisono_data::DataError;
use unisono_data::pipeline::lock;

/// The minimum and maximum pause of a failed server. The pause doubles each time.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// The minimum and maximum pause of an overloaded server.
const BREATHERS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

#[derive(Debug)]
pub(super) struct Pool {
    token: Token,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    servers: Vec<Known>,
    /// The number of requests for a server so far.
    picked: u64,
    /// The time of the last refusal of an overloaded server.
    refused: Option<Instant>,
}

#[derive(Debug)]
struct Known {
    address: String,
    channel: Channel,
    /// Set if the user named the server. Other servers were found.
    is_given: bool,
    /// The requests of this client in progress on the server.
    in_flight: usize,
    /// Consecutive failures or refusals.
    failures: u32,
    /// The end of the current pause.
    resumes: Option<Instant>,
    problem: Option<String>,
    /// The number that identifies the server under several addresses.
    instance: Option<u64>,
    /// The number of batches that it makes concurrently, if reported.
    threads: u64,
    /// The number of the request for which it was last chosen.
    last: u64,
}

/// The server for the next request, if any.
#[derive(Debug)]
pub(super) enum Next {
    Server(Lease),
    /// All eligible servers pause. The shortest pause ends after this time.
    Wait(Duration),
    /// No server is eligible.
    Nobody,
}

/// A server with a request in progress.
#[derive(Debug)]
pub(super) struct Lease {
    pool: Arc<Pool>,
    pub(super) address: String,
    pub(super) channel: Channel,
}

impl Pool {
    /// Returns the servers that a user names. Call it in a runtime.
    pub(super) fn new(addresses: &[String], token: Token) -> Result<Arc<Self>, DataError> {
        let pool = Self { token, state: Mutex::default() };
        for address in addresses {
            lock(&pool.state).add(address, true, &pool.token)?;
        }
        Ok(Arc::new(pool))
    }

    /// Returns the server with the fewest requests of this client, among those that do not pause and are not in `without`. Of several, returns the
    /// one whose last request is the oldest.
    pub(super) fn next(self: &Arc<Self>, without: &[String], now: Instant) -> Next {
        let mut state = lock(&self.state);
        state.picked += 1;
        let picked = state.picked;
        let eligible = state.distinct().filter(|server| !without.contains(&server.address));
        let (free, paused): (Vec<_>, Vec<_>) =
            eligible.partition(|server| server.resumes.is_none_or(|resumes| resumes <= now));
        if let Some(server) = free.into_iter().min_by_key(|server| (server.in_flight, server.last)) {
            server.last = picked;
            return Next::Server(self.lease(server));
        }
        let first = paused.iter().filter_map(|server| server.resumes).min();
        first.map_or(Next::Nobody, |resumes| Next::Wait(resumes.saturating_duration_since(now)))
    }

    pub(super) fn all(self: &Arc<Self>) -> Vec<Lease> {
        lock(&self.state).servers.iter_mut().map(|server| self.lease(server)).collect()
    }

    fn lease(self: &Arc<Self>, server: &mut Known) -> Lease {
        server.in_flight += 1;
        Lease { pool: Arc::clone(self), address: server.address.clone(), channel: server.channel.clone() }
    }

    /// Merges the lists of the servers that have answered: adds new servers, and removes failing ones that neither answered nor are listed. Call it
    /// in a runtime.
    pub(super) fn update(&self, lists: Vec<(String, Servers)>) {
        let mut state = lock(&self.state);
        for (address, list) in &lists {
            if let Some(server) = state.find(address) {
                (server.instance, server.threads) = (Some(list.instance), list.threads);
            }
        }
        let listed = lists.into_iter().flat_map(|(own, list)| iter::once(own).chain(list.addresses));
        let listed: Vec<_> = listed.collect();
        state
            .servers
            .retain(|server| server.is_given || server.failures == 0 || listed.contains(&server.address));
        for address in listed {
            if state.find(&address).is_none()
                && let Err(error) = state.add(&address, false, &self.token)
            {
                tracing::warn!("{error}");
            }
        }
    }

    /// Returns the number of batches that the servers without failures make concurrently, and one more for each of them.
    pub(super) fn threads(&self) -> usize {
        let mut state = lock(&self.state);
        let available = state.distinct().filter(|server| server.failures == 0);
        let threads = available.map(|server| server.threads as usize);
        threads.fold(0_usize, |sum, threads| sum.saturating_add(threads).saturating_add(1))
    }

    /// Returns when an overloaded server last refused any request. While all servers pause for this reason, they are not silent.
    pub(super) fn last_refusal(&self) -> Option<Instant> {
        lock(&self.state).refused
    }

    /// Formats each server with its last failure.
    pub(super) fn problems(&self) -> String {
        let described = |server: &Known| {
            let problem = server.problem.as_deref().unwrap_or("it has not failed");
            format!("`{}`: {problem}", server.address)
        };
        lock(&self.state).servers.iter().map(described).collect::<Vec<_>>().join("; ")
    }
}

impl State {
    /// Returns the servers to use. Of several addresses of the same server, this is the one with the fewest failures, the first of these.
    fn distinct(&mut self) -> impl Iterator<Item = &mut Known> {
        let known = || self.servers.iter().enumerate();
        let is_better = |(at, server): (usize, &Known), (other_at, other): (usize, &Known)| {
            server.instance == other.instance && (server.failures, at) < (other.failures, other_at)
        };
        let is_used =
            |own: (usize, &Known)| own.1.instance.is_none() || !known().any(|other| is_better(other, own));
        let are_used: Vec<_> = known().map(is_used).collect();
        self.servers.iter_mut().zip(are_used).filter_map(|(server, is_used)| is_used.then_some(server))
    }

    fn find(&mut self, address: &str) -> Option<&mut Known> {
        self.servers.iter_mut().find(|server| server.address == address)
    }

    fn add(&mut self, address: &str, is_given: bool, token: &Token) -> Result<(), DataError> {
        if self.find(address).is_none() {
            let channel = connect(address, token)?;
            self.servers.push(Known {
                address: address.to_owned(),
                channel,
                is_given,
                in_flight: 0,
                failures: 0,
                resumes: None,
                problem: None,
                instance: None,
                threads: 0,
                last: 0,
            });
        }
        Ok(())
    }
}

impl Lease {
    /// Records an answer, which ends the pause.
    pub(super) fn answered(&self) {
        self.update(|server| (server.failures, server.resumes) = (0, None));
    }

    pub(super) fn has_threads(&self, threads: u64) {
        self.update(|server| server.threads = threads);
    }

    /// Records a missing or invalid answer. The server pauses.
    pub(super) fn failed(&self, problem: String) {
        tracing::warn!("data server `{}`: {problem}", self.address);
        self.pause(problem, PAUSES);
    }

    /// Records a refusal by an overloaded server. The server pauses briefly.
    pub(super) fn refused(&self, problem: String) {
        lock(&self.pool.state).refused = Some(Instant::now());
        self.pause(problem, BREATHERS);
    }

    fn pause(&self, problem: String, (shortest, longest): (Duration, Duration)) {
        self.update(|server| {
            let pause = longest.min(shortest * (1 << server.failures.min(16)));
            server.failures = server.failures.saturating_add(1);
            server.resumes = Some(Instant::now() + pause);
            server.problem = Some(problem);
        });
    }

    fn update(&self, change: impl FnOnce(&mut Known)) {
        if let Some(server) = lock(&self.pool.state).find(&self.address) {
            change(server);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.update(|server| server.in_flight = server.in_flight.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    fn pool(addresses: &[String]) -> Arc<Pool> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, "0123456789abcdef0123456789abcdef").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        Pool::new(addresses, Token::read(file.path()).unwrap()).unwrap()
    }

    #[test]
    fn a_server_that_answers_is_kept_though_it_is_busy_and_no_other_lists_it() {
        let runtime = runtime();
        let _here = runtime.enter();
        let [given, found] = ["127.0.0.1:1", "127.0.0.1:2"].map(str::to_owned);
        let pool = pool(std::slice::from_ref(&given));
        assert_eq!(pool.problems(), "`127.0.0.1:1`: it has not failed");
        let list = |instance, addresses| Servers { instance, addresses, threads: 1 };
        pool.update(vec![(given, list(1, vec![found.clone()]))]);
        pool.all()[1].refused("its queue is full".to_owned());
        pool.update(vec![(found, list(2, vec![]))]);
        assert_eq!(pool.all().len(), 2);
        pool.update(vec![]);
        assert_eq!(pool.all().len(), 1, "it neither answers nor is listed");
    }

    #[test]
    fn a_refusal_is_recorded_for_all_requests() {
        let runtime = runtime();
        let _here = runtime.enter();
        let (pool, began) = (pool(&["127.0.0.1:1".to_owned()]), Instant::now());
        pool.all()[0].failed("no answer".to_owned());
        assert_eq!(pool.last_refusal(), None);
        pool.all()[0].refused("its queue is full".to_owned());
        assert!(pool.last_refusal().is_some_and(|refused| refused >= began));
    }

    #[test]
    fn another_address_of_a_server_is_used_while_one_fails() {
        let runtime = runtime();
        let _here = runtime.enter();
        let addresses = ["127.0.0.1:1", "127.0.0.1:2"].map(str::to_owned);
        let pool = pool(&addresses);
        lock(&pool.state).servers.iter_mut().for_each(|server| server.instance = Some(7));
        let next = || match pool.next(&[], Instant::now()) {
            Next::Server(server) => server,
            other => panic!("{other:?}"),
        };
        for _ in 0..2 {
            assert_eq!(next().address, addresses[0]);
        }
        let first = next();
        first.failed("no answer".to_owned());
        for _ in 0..2 {
            assert_eq!(next().address, addresses[1]);
        }
        first.answered();
        assert_eq!(next().address, addresses[0]);
    }
}
