//! The methods of a server.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::Semaphore;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::answers::Answers;
use super::call::{MOST_ANSWER_BYTES, MOST_OTHER_BYTES, Method};
use super::membership::{MOST_MEMBERS, Members, reached};
use super::message::{
    BatchAnswer, BatchRequest, DescribeRequest, Description, JoinRequest, Servers, ServersRequest, Shape,
};
use unisono_data::Dataset;
use unisono_data::pipeline::lock;

/// The numbers of batches made and served by a server, and of requests refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Batches made.
    pub made: u64,
    /// Batches served from the cache.
    pub cached: u64,
    /// Requests refused because the queue was full.
    pub refused: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { made, cached, refused } = self;
        write!(f, "served {} batches: {made} made, {cached} from the cache", made + cached)?;
        if *refused > 0 {
            write!(f, "; sent {refused} requests away, for its queue was full")?;
        }
        Ok(())
    }
}

/// The state of a server, shared by all requests.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) dataset: Dataset,
    pub(super) description: Description,
    pub(super) identity: u64,
    pub(super) answers: Answers,
    pub(super) members: Members,
    pub(super) joined: Option<String>,
    /// A random number that identifies this server.
    pub(super) instance: u64,
    /// One permit for each batch that may be in progress.
    pub(super) workers: Arc<Semaphore>,
    /// One permit for each request that may wait for a worker.
    pub(super) queue: Semaphore,
    pub(super) counts: Mutex<Counts>,
}

impl Served {
    fn check(&self, identity: u64) -> Result<(), Status> {
        if identity == self.identity {
            return Ok(());
        }
        Err(Status::failed_precondition(
            "it now serves other data, or with other options or another version, than when this run began",
        ))
    }

    /// Makes a batch on a separate thread, once a worker is free.
    async fn make(self: &Arc<Self>, request: BatchRequest) -> Result<BatchAnswer, Status> {
        let worker = match Arc::clone(&self.workers).try_acquire_owned() {
            Ok(worker) => worker,
            Err(_) => {
                let _place = self.queue.try_acquire().map_err(|_| {
                    lock(&self.counts).refused += 1;
                    Status::resource_exhausted("it is overloaded: its queue is full")
                })?;
                Arc::clone(&self.workers).acquire_owned().await.expect("it is never closed")
            }
        };
        let this = Arc::clone(self);
        let work = move || {
            let _worker = worker;
            let split = if request.is_held_out { &this.dataset.test } else { &this.dataset.train };
            let samples: Vec<_> = request.samples.iter().map(|&sample| sample as usize).collect();
            let (inputs, targets) = split
                .gather(&samples, request.pass())
                .map_err(|error| Status::data_loss(error.to_string()))?;
            // A client would reject the short batch, and retry it until no server is left.
            let (made, asked) = (targets.len() / split.context().unwrap_or(1), samples.len());
            if made < asked {
                return Err(Status::data_loss(format!(
                    "{} of {asked} samples are damaged and left out: expected all, as with `OnBadSample::Error`; repair their files",
                    asked - made
                )));
            }
            lock(&this.counts).made += 1;
            Ok(BatchAnswer::new(inputs, &targets))
        };
        let made = tokio::task::spawn_blocking(work).await;
        made.unwrap_or_else(|panic| Err(Status::internal(format!("a batch could not be made: {panic}"))))
    }

    /// Returns an error for a request that no batch could satisfy.
    fn check_samples(&self, request: &BatchRequest) -> Result<(), Status> {
        let split = if request.is_held_out { &self.dataset.test } else { &self.dataset.train };
        let (asked, there) = (request.samples.len(), split.len());
        if let Some(beyond) = request.samples.iter().find(|&&sample| sample >= there as u64) {
            return Err(Status::invalid_argument(format!("there is no sample {beyond}: there are {there}")));
        }
        if Shape::of(&self.dataset.kind, &self.dataset.schema).answer_bytes(asked) > MOST_ANSWER_BYTES {
            return Err(Status::invalid_argument(format!("a batch of {asked} samples is too large")));
        }
        Ok(())
    }
}

/// The methods, one per type of request.
impl Served {
    async fn describe(self: Arc<Self>, _: Request<DescribeRequest>) -> Answered<Description> {
        Ok(Response::new(self.description.clone()))
    }

    async fn servers(self: Arc<Self>, request: Request<ServersRequest>) -> Answered<Servers> {
        self.check(request.get_ref().identity)?;
        let mut addresses = self.members.addresses(Instant::now());
        addresses.extend(self.joined.clone());
        Ok(Response::new(Servers { instance: self.instance, addresses, threads: self.description.threads }))
    }

    async fn join(self: Arc<Self>, request: Request<JoinRequest>) -> Answered<()> {
        let from = request.remote_addr().map(|address| address.ip());
        let JoinRequest { description, address } = request.into_inner();
        let theirs = description
            .ok_or_else(|| Status::invalid_argument("a server that joins must describe its data"))?;
        if let Some((what, own, theirs)) = self.description.difference(&theirs) {
            let why =
                format!("it serves other data ({what}: {own}, against {theirs} of the server that joins)");
            return Err(Status::failed_precondition(why));
        }
        let address = reached(&address, from)
            .ok_or_else(|| Status::invalid_argument("a server that joins must have an address"))?;
        if !self.members.renew(address, Instant::now()) {
            let why = format!("it has {MOST_MEMBERS} members: expected fewer; join another server");
            return Err(Status::resource_exhausted(why));
        }
        Ok(Response::new(()))
    }

    async fn batch(self: Arc<Self>, request: Request<BatchRequest>) -> Answered<BatchAnswer> {
        let request = request.into_inner();
        self.check(request.identity)?;
        self.check_samples(&request)?;
        let make = || self.make(request.clone());
        let (answer, is_made) = self.answers.get(request.clone(), make).await?;
        if !is_made {
            lock(&self.counts).cached += 1;
        }
        Ok(Response::new(answer))
    }
}

type Answered<A> = Result<Response<A>, Status>;

pub(super) async fn answer(
    served: Arc<Served>,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Infallible> {
    Ok(match request.uri().path() {
        BatchRequest::PATH => unary(request, |asked| Arc::clone(&served).batch(asked)).await,
        DescribeRequest::PATH => unary(request, |asked| Arc::clone(&served).describe(asked)).await,
        JoinRequest::PATH => unary(request, |asked| Arc::clone(&served).join(asked)).await,
        ServersRequest::PATH => unary(request, |asked| Arc::clone(&served).servers(asked)).await,
        path => Status::unimplemented(format!("there is no method {path}")).into_http(),
    })
}

async fn unary<M: Method, F: Future<Output = Answered<M::Answer>>>(
    request: http::Request<Body>,
    answer: impl FnMut(Request<M>) -> F,
) -> http::Response<Body> {
    let mut grpc = Grpc::new(ProstCodec::default()).max_decoding_message_size(MOST_OTHER_BYTES);
    grpc.unary(service_fn(answer), request).await
}
