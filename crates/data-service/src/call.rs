//! Calls of a server's methods, waits for servers, and the threads for both.

use std::error::Error;
use std::iter;
use std::ops::Deref;
use std::panic::resume_unwind;
use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::handshake::{self, HandshakeError, Token};
use super::message::{
    BatchAnswer, BatchRequest, DescribeRequest, Description, JoinRequest, Servers, ServersRequest,
};
use unisono_data::{DataError, Options, with_causes};

/// A request, with its method and its answer.
pub(super) trait Method: Message + Default + 'static {
    const PATH: &'static str;
    const DEADLINE: Duration = Duration::from_secs(10);
    type Answer: Message + Default + 'static;
}

impl Method for DescribeRequest {
    const PATH: &'static str = "/unisono.data.v1.Data/Describe";
    type Answer = Description;
}

impl Method for ServersRequest {
    const PATH: &'static str = "/unisono.data.v1.Data/Servers";
    type Answer = Servers;
}

impl Method for JoinRequest {
    const PATH: &'static str = "/unisono.data.v1.Data/Join";
    type Answer = ();
}

/// The deadline includes the time in a queue. The loss of a server is detected by its connection, long before.
impl Method for BatchRequest {
    const PATH: &'static str = "/unisono.data.v1.Data/Batch";
    const DEADLINE: Duration = Duration::from_secs(60);
    type Answer = BatchAnswer;
}

/// The timeout after which a silent server is an error.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// The maximum size of a batch in bytes.
pub(super) const MOST_ANSWER_BYTES: usize = 1 << 30;
/// The maximum size of any other message in bytes, such as the names of all classes, or a request for some million samples.
pub(super) const MOST_OTHER_BYTES: usize = 64 << 20;

/// The flow-control window of a connection in bytes: large batches should not wait for acknowledgements.
pub(super) const WINDOW: u32 = 8 << 20;
/// The interval of keep-alive probes on a silent connection, and the timeout for their acknowledgement.
pub(super) const TRIES_SILENCE: Duration = Duration::from_secs(5);

/// Returns a connection to a server that has the token. It is made on first use, and again after it was lost. Call it in a runtime.
pub(super) fn connect(address: &str, token: &Token) -> Result<Channel, DataError> {
    let refused = |error| DataError::Server { address: address.to_owned(), problem: with_causes(&error) };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(refused)?;
    let (address, token) = (address.to_owned(), token.clone());
    let connected = move |_: Uri| {
        let (address, token) = (address.clone(), token.clone());
        async move {
            let mut stream = TcpStream::connect(&address).await?;
            stream.set_nodelay(true)?;
            handshake::connect(&mut stream, &token).await?;
            Ok::<_, HandshakeError>(TokioIo::new(stream))
        }
    };
    Ok(endpoint
        .connect_timeout(Duration::from_secs(3))
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .http2_keep_alive_interval(TRIES_SILENCE)
        .keep_alive_timeout(TRIES_SILENCE)
        .connect_with_connector_lazy(service_fn(connected)))
}

/// Sends a request to a server, for an answer of at most this many bytes.
pub(super) async fn call<M: Method>(
    channel: &Channel,
    message: M,
    most_bytes: usize,
) -> Result<M::Answer, Status> {
    let mut client = Grpc::new(channel.clone()).max_decoding_message_size(most_bytes);
    let asked = async {
        client.ready().await.map_err(|error| Status::unavailable(with_causes(&error)))?;
        client.unary(Request::new(message), PathAndQuery::from_static(M::PATH), ProstCodec::default()).await
    };
    // The request has no timeout of its own: tonic would report that one, at the same moment, as a cancellation.
    match timeout(M::DEADLINE, asked).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) if is_refused(&status) => {
            Err(Status::unauthenticated(HandshakeError::OtherToken.to_string()))
        }
        Ok(Err(status)) => Err(status),
        Err(_) => Err(Status::deadline_exceeded(format!("no answer for {} s", M::DEADLINE.as_secs()))),
    }
}

fn is_refused(status: &Status) -> bool {
    let mut causes = iter::successors(status.source(), |cause| (**cause).source());
    causes.any(|cause| matches!(cause.downcast_ref(), Some(HandshakeError::OtherToken)))
}

pub(super) fn problem(status: &Status) -> String {
    match status.source() {
        Some(source) => with_causes(source),
        None => status.message().to_owned(),
    }
}

/// The time after which a wait is reported.
const SILENT: Duration = Duration::from_secs(1);
/// The interval at which a wait polls for a request to stop.
const POLL: Duration = Duration::from_millis(50);

/// Waits for a future. Reports once what is `awaited`, and returns [`DataError::Stopped`] on a request to stop.
pub(super) async fn until<T>(
    options: &Options,
    future: impl Future<Output = Result<T, DataError>>,
    awaited: impl Fn() -> String,
) -> Result<T, DataError> {
    let (mut future, began, mut is_told) = (pin!(future), Instant::now(), false);
    loop {
        if let Ok(done) = timeout(POLL, future.as_mut()).await {
            return done;
        }
        if options.stop.is_asked() {
            return Err(DataError::Stopped);
        }
        if !is_told && began.elapsed() > SILENT {
            is_told = true;
            options.cache.report(&awaited());
        }
    }
}

/// A runtime whose end waits neither for a name look-up in progress, which could block for long, nor for other work.
#[derive(Debug)]
pub(super) struct Background(Option<Runtime>);

impl Background {
    pub(super) fn start(builder: &mut Builder) -> Result<Self, DataError> {
        let runtime = builder.enable_all().build();
        runtime.map(|runtime| Self(Some(runtime))).map_err(|error| DataError::Thread { error })
    }

    /// Waits for a future, also on a thread of another runtime, which may not wait in a second one.
    pub(super) fn wait<F: Future<Output: Send> + Send>(&self, future: F) -> F::Output {
        if Handle::try_current().is_err() {
            return self.block_on(future);
        }
        let waiting = || self.block_on(future);
        thread::scope(|scope| scope.spawn(waiting).join()).unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Deref for Background {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        self.0.as_ref().expect("it is there until this is dropped")
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}
