//! A client of data servers.

use std::collections::HashSet;
use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use prost::Message;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use super::call::{Background, MOST_ANSWER_BYTES, MOST_OTHER_BYTES, Method, call, problem, until};
use super::handshake::Token;
use super::message::{BatchRequest, DescribeRequest, Description, ServersRequest, Shape, VERSION};
use super::pool::{Lease, Next, Pool};
use unisono_data::pipeline::part;
use unisono_data::{
    Cache, DataError, Dataset, Kind, Normalization, Options, Pass, Schema, Service, Split, Threads, Values,
};

/// The interval at which the servers are queried for other servers.
const REFRESHED: Duration = Duration::from_secs(2);
/// The factor by which the timeout is longer for overloaded servers.
const OVERLOADED: u32 = 10;
/// A wait for a batch is reported after the timeout divided by this: 5 s of a minute.
const TOLD_AFTER: u32 = 12;

#[derive(Debug)]
struct Client {
    runtime: Background,
    pool: Arc<Pool>,
    shape: Shape,
    normalization: Option<Normalization>,
    /// The [identity](Description::identity) of the data set.
    identity: u64,
    patience: Duration,
    /// Receives reports on waits.
    cache: Cache,
    /// Set once the current wait for servers has been reported.
    is_told: AtomicBool,
    /// Set once a wait for busy servers has been reported.
    is_told_busy: AtomicBool,
}

/// Queries the servers for their data set. At least one must answer, and all that answer must serve the same data set.
pub(super) fn connect(
    service: &Service,
    patience: Duration,
    options: &Options,
) -> Result<Dataset, DataError> {
    let Some(token_file) = &service.token_file else {
        return Err(DataError::other(format!(
            "the data servers `{service}` ask for a token: name the file that holds it (--data-token-file)"
        )));
    };
    let token = Token::read(token_file)?;
    let runtime =
        Background::start(Builder::new_multi_thread().worker_threads(1).thread_name("data client"))?;
    let pool = {
        let _here = runtime.enter();
        Pool::new(&service.servers, token)?
    };
    let described = until(options, describe(&pool, patience), || waits(&pool, patience));
    let (address, description) = runtime.wait(described)?;
    let unreadable = |error| server_error(&address, format!("its description cannot be read: {error}"));
    let kind: Kind = serde_json::from_str(&description.kind).map_err(unreadable)?;
    let schema: Schema = serde_json::from_str(&description.schema).map_err(unreadable)?;
    let identity = description.identity();
    runtime.spawn(refresh(Arc::downgrade(&pool), identity));
    let client = Arc::new(Client {
        runtime,
        pool,
        shape: Shape::of(&kind, &schema),
        normalization: schema.normalization.clone(),
        identity,
        patience,
        cache: options.cache.clone(),
        is_told: AtomicBool::default(),
        is_told_busy: AtomicBool::default(),
    });
    let [train, test] =
        [(false, description.train), (true, description.test)].map(|(is_held_out, samples)| {
            Arc::new(Served { client: Arc::clone(&client), is_held_out, samples: samples as usize })
        });
    Ok(Dataset { kind, train, test, schema })
}

impl Client {
    /// Sends a request to one server after the other until one has made the batch.
    async fn ask(
        &self,
        request: BatchRequest,
        samples: usize,
        most_bytes: usize,
    ) -> Result<(Values, Vec<u32>), DataError> {
        let began = Instant::now();
        let (mut seen, mut busy_since) = (began, None::<Instant>);
        // Servers with damaged files, and the last error of such a server.
        let (mut damaged, mut damage) = (Vec::new(), None);
        // Servers that have failed to make this batch. The others are tried even after the patience has ended.
        let mut failed = HashSet::<String>::new();
        loop {
            // Other requests may have been refused, while this one found only servers that pause.
            seen = self.pool.last_refusal().map_or(seen, |refused| refused.max(seen));
            let is_over = seen.elapsed() >= self.patience || began.elapsed() >= OVERLOADED * self.patience;
            let server = match self.pool.next(&damaged, Instant::now()) {
                Next::Server(server) if !is_over || !failed.contains(&server.address) => server,
                Next::Wait(pause) if !is_over => {
                    self.report_wait(seen, busy_since);
                    tokio::time::sleep(pause.max(Duration::from_millis(1))).await;
                    continue;
                }
                _ => {
                    let (missed, waited) = match seen.elapsed() >= self.patience {
                        true => ("answered", seen.elapsed()),
                        false => ("made this batch", began.elapsed()),
                    };
                    return Err(damage.unwrap_or_else(|| gone(&self.pool, missed, waited)));
                }
            };
            let failure = match call(&server.channel, request.clone(), most_bytes).await {
                Ok(answer) => match answer.values(samples, self.shape) {
                    Ok(values) => {
                        server.answered();
                        self.is_told.store(false, Ordering::Relaxed);
                        return Ok(values);
                    }
                    Err(problem) => problem,
                },
                Err(status) => match status.code() {
                    Code::ResourceExhausted => {
                        busy_since = busy_since.or_else(|| Some(Instant::now()));
                        server.refused(problem(&status));
                        continue;
                    }
                    // The files of another machine may be intact.
                    Code::DataLoss => {
                        server.answered();
                        damaged.push(server.address.clone());
                        damage = Some(server_error(&server.address, problem(&status)));
                        continue;
                    }
                    // The other servers were not asked meanwhile.
                    Code::DeadlineExceeded if !failed.contains(&server.address) => {
                        seen = Instant::now();
                        problem(&status)
                    }
                    Code::InvalidArgument => return Err(server_error(&server.address, problem(&status))),
                    _ => problem(&status),
                },
            };
            busy_since = None;
            failed.insert(server.address.clone());
            server.failed(failure);
        }
    }

    /// Reports a long wait: for silent servers once until one of them answers, for busy ones once.
    fn report_wait(&self, seen: Instant, busy_since: Option<Instant>) {
        let told_after = self.patience / TOLD_AFTER;
        if seen.elapsed() > told_after && !self.is_told.swap(true, Ordering::Relaxed) {
            self.cache.report(&waits(&self.pool, self.patience));
        }
        let is_long = busy_since.is_some_and(|since| since.elapsed() > told_after);
        if is_long && !self.is_told_busy.swap(true, Ordering::Relaxed) {
            let (most, problems) = ((OVERLOADED * self.patience).as_secs(), self.pool.problems());
            let text = format!("all data servers are busy: waiting for one, up to {most} s; {problems}");
            self.cache.report(&text);
        }
    }
}

/// The training samples or the held-out samples of the servers.
#[derive(Debug)]
struct Served {
    client: Arc<Client>,
    is_held_out: bool,
    samples: usize,
}

impl Split for Served {
    fn len(&self) -> usize {
        self.samples
    }

    fn hash(&self, hasher: &mut dyn Hasher) -> Result<(), DataError> {
        hasher.write(&self.client.identity.to_le_bytes());
        Ok(())
    }

    fn context(&self) -> Option<usize> {
        self.client.shape.context
    }

    fn normalization(&self) -> Option<&Normalization> {
        self.client.normalization.as_ref()
    }

    /// Returns enough threads to keep all servers busy: one batch for each of their threads, and one in transit for each server.
    fn threads(&self, asked: Threads) -> Threads {
        /// Each request blocks a thread.
        const MOST: usize = 64;
        match asked {
            Threads::Auto => Threads::Fixed(self.client.pool.threads().clamp(2, MOST)),
            asked => asked,
        }
    }

    fn gather(&self, samples: &[usize], pass: Pass) -> Result<(Values, Vec<u32>), DataError> {
        if let Some(beyond) = samples.iter().find(|&&sample| sample >= self.samples) {
            panic!("there is no sample {beyond}: there are {}", self.samples);
        }
        let client = &self.client;
        let request = BatchRequest::new(client.identity, self.is_held_out, samples, pass);
        let bytes = client.shape.answer_bytes(samples.len());
        if bytes > MOST_ANSWER_BYTES || request.encoded_len() > MOST_OTHER_BYTES {
            let problem = format!(
                "a batch of {} samples takes a request of {} bytes and an answer of {bytes}: expected at most {MOST_OTHER_BYTES} and \
                 {MOST_ANSWER_BYTES}; choose a smaller batch",
                samples.len(),
                request.encoded_len()
            );
            return Err(DataError::other(problem));
        }
        part("servers", || client.runtime.wait(client.ask(request, samples.len(), bytes)))
    }
}

fn server_error(address: &str, problem: String) -> DataError {
    DataError::Server { address: address.to_owned(), problem }
}

fn waits(pool: &Pool, patience: Duration) -> String {
    format!("waiting for a data server, up to {} s; {}", patience.as_secs(), pool.problems())
}

fn gone(pool: &Pool, missed: &str, waited: Duration) -> DataError {
    DataError::other(format!("no data server has {missed} for {} s; {}", waited.as_secs(), pool.problems()))
}

async fn ask_all<M: Method + Clone>(pool: &Arc<Pool>, message: M) -> Vec<(Lease, Result<M::Answer, Status>)> {
    let mut asked = JoinSet::new();
    for server in pool.all() {
        let message = message.clone();
        asked.spawn(async move {
            let answer = call(&server.channel, message, MOST_OTHER_BYTES).await;
            (server, answer)
        });
    }
    let answers = asked.join_all().await;
    for (server, answer) in &answers {
        match answer {
            Ok(_) => server.answered(),
            Err(status) => server.failed(problem(status)),
        }
    }
    answers
}

/// Returns the data set of the servers, and the address of one of them.
async fn describe(pool: &Arc<Pool>, patience: Duration) -> Result<(String, Description), DataError> {
    let began = Instant::now();
    loop {
        let mut first: Option<(String, Description)> = None;
        for (server, answer) in ask_all(pool, DescribeRequest {}).await {
            match answer {
                Ok(description) => {
                    check(&server.address, &description, first.as_ref())?;
                    server.has_threads(description.threads);
                    first.get_or_insert((server.address.clone(), description));
                }
                Err(status) if status.code() == Code::Unauthenticated => {
                    return Err(server_error(&server.address, problem(&status)));
                }
                Err(_) => {}
            }
        }
        match first {
            Some(first) => return Ok(first),
            None if began.elapsed() >= patience => return Err(gone(pool, "answered", began.elapsed())),
            None => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Returns an error for a server of another version, or with other data than the first.
fn check(address: &str, found: &Description, first: Option<&(String, Description)>) -> Result<(), DataError> {
    let refused = |problem| Err(server_error(address, problem));
    if found.version != VERSION {
        return refused(format!(
            "it is of version {}, and this program of version {VERSION}: use the same",
            found.version
        ));
    }
    if let Some((other, description)) = first
        && let Some((what, its, others)) = found.difference(description)
    {
        return refused(format!(
            "it serves other data than `{other}` ({what}: {its} of {}, against {others} of {}); start both with the same data \
             and options",
            found.source, description.source
        ));
    }
    Ok(())
}

/// Queries the servers periodically, to find servers that join or recover.
async fn refresh(pool: Weak<Pool>, identity: u64) {
    loop {
        tokio::time::sleep(REFRESHED).await;
        let Some(pool) = pool.upgrade() else { return };
        let answers = ask_all(&pool, ServersRequest { identity }).await;
        let lists =
            answers.into_iter().filter_map(|(server, answer)| Some((server.address.clone(), answer.ok()?)));
        pool.update(lists.collect());
    }
}
