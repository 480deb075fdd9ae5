//! A server of batches.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::random;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tower::service_fn;

use super::answers::Answers;
use super::call::{Background, TRIES_SILENCE, WINDOW};
use super::handshake::{Token, admit, listen};
use super::membership::{Members, Membership, Notice};
use super::message::{Description, JoinRequest, VERSION};
use super::methods::{Counts, Served, answer};
use unisono_data::pipeline::lock;
use unisono_data::{DataError, Dataset, Options, Service, Source};

/// The maximum number of waiting requests per thread that makes batches. Further requests are refused, and the client retries on another server.
const QUEUED_PER_THREAD: usize = 16;
/// The time that a stopping server waits for its clients to receive their answers.
const GRACE: Duration = Duration::from_secs(5);

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// The address to listen on, as `HOST:PORT`; port 0 selects any free port.
    pub listen: String,
    /// The secret that clients must have.
    pub token: Token,
    /// The number of batches that are made concurrently.
    pub threads: usize,
    /// The memory for batches that other clients may request again, in bytes.
    pub cache_bytes: usize,
    /// A server of the same data set to join, which reports this one to its clients.
    pub join: Option<String>,
    /// The address at which clients reach this server; by default, the address to listen on.
    pub advertise: Option<String>,
}

/// A server that makes batches for clients on other machines. It has no state of ranks or epochs: a request contains everything that determines a
/// batch, so servers may join and leave.
///
/// Dropping it ends it at once. [`stop`](Self::stop) completes the requests in progress.
pub struct Server {
    runtime: Background,
    served: Arc<Served>,
    address: SocketAddr,
    stopping: Arc<Notify>,
    serving: tokio::task::JoinHandle<Result<(), tonic::transport::Error>>,
    notice: Notice,
}

impl Server {
    /// Serves a data set that was loaded from `source` with these options.
    ///
    /// # Errors
    /// If the number of threads is 0, the data set has no fingerprint, the address cannot be listened on, or the server to join serves other data or
    /// does not answer for a minute. [`DataError::Stopped`] on a request to stop the wait for that server.
    pub fn start(
        dataset: Dataset,
        (source, options): (&Source, &Options),
        settings: ServerSettings,
    ) -> Result<Self, DataError> {
        let mut named = settings.join.iter().chain(&settings.advertise);
        if let Some(wrong) = named.find(|address| !Service::is_address(address)) {
            return Err(Service::refused(wrong));
        }
        if settings.threads == 0 {
            return Err(DataError::other("a data server has 0 threads: expected at least 1"));
        }
        let description = describe(&dataset, (source, options), settings.threads)?;
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(2).max_blocking_threads(settings.threads).thread_name("data server");
        let runtime = Background::start(&mut builder)?;
        let (listener, address) = runtime.wait(listen(&settings.listen))?;
        let served = Arc::new(Served {
            dataset,
            identity: description.identity(),
            description,
            answers: Answers::new(settings.cache_bytes),
            members: Members::default(),
            joined: settings.join.clone(),
            instance: random(),
            workers: Arc::new(Semaphore::new(settings.threads)),
            queue: Semaphore::new(QUEUED_PER_THREAD * settings.threads),
            counts: Mutex::default(),
        });
        let stopping = Arc::new(Notify::new());
        let serving = runtime.spawn(serve(
            listener,
            settings.token.clone(),
            Arc::clone(&served),
            Arc::clone(&stopping),
        ));
        let notice = Notice::default();
        if let Some(other) = settings.join {
            let address = settings.advertise.unwrap_or_else(|| address.to_string());
            let request = JoinRequest { description: Some(served.description.clone()), address };
            let membership = Membership { other, token: settings.token, request };
            let channel = runtime.wait(membership.begin(options))?;
            runtime.spawn(membership.keep(channel, Arc::clone(&notice)));
        }
        Ok(Self { runtime, served, address, stopping, serving, notice })
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of training samples and of held-out samples.
    pub fn samples(&self) -> (usize, usize) {
        (self.served.dataset.train.len(), self.served.dataset.test.len())
    }

    /// Returns the counters of the server's work.
    pub fn counts(&self) -> Counts {
        *lock(&self.served.counts)
    }

    /// Returns the latest problem of the server that this one has joined, unless it was returned before.
    pub fn take_notice(&self) -> Option<String> {
        lock(&self.notice).take()
    }

    /// Returns whether it serves requests, which it does until it is stopped.
    pub fn is_serving(&self) -> bool {
        !self.serving.is_finished()
    }

    /// Accepts no more connections, and ends after all requests in progress are answered, or after some seconds.
    pub fn stop(mut self) -> Counts {
        self.stopping.notify_one();
        // A client may keep its connection open, so a timeout is not an error.
        let _ = self.runtime.wait(async { tokio::time::timeout(GRACE, &mut self.serving).await });
        self.counts()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

fn describe(
    dataset: &Dataset,
    (source, options): (&Source, &Options),
    threads: usize,
) -> Result<Description, DataError> {
    // The location of a server's data, and its stop handle, do not affect a batch.
    let Options { cache, in_memory_bytes, stop, .. } = Options::default();
    let of_batches = Options { cache, in_memory_bytes, stop, ..options.clone() };
    Ok(Description {
        version: VERSION.to_owned(),
        source: source.to_string(),
        options: format!("{of_batches:?}"),
        fingerprint: dataset.fingerprint()?,
        kind: serde_json::to_string(&dataset.kind).expect("it is plain data"),
        schema: serde_json::to_string(&dataset.schema).expect("it is plain data"),
        train: dataset.train.len() as u64,
        test: dataset.test.len() as u64,
        threads: threads as u64,
    })
}

async fn serve(
    listener: TcpListener,
    token: Token,
    served: Arc<Served>,
    stopping: Arc<Notify>,
) -> Result<(), tonic::transport::Error> {
    let (admitted, connections) = mpsc::channel(1);
    let admitting = tokio::spawn(admit(listener, token, admitted));
    let methods = service_fn(move |request| answer(Arc::clone(&served), request));
    tonic::transport::Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .http2_keepalive_interval(Some(TRIES_SILENCE))
        .http2_keepalive_timeout(Some(TRIES_SILENCE))
        .serve_with_incoming_shutdown(methods, ReceiverStream::new(connections), async move {
            stopping.notified().await;
            admitting.abort();
        })
        .await
}
