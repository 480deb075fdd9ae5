//! That a server has joined another.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tonic::transport::Channel;
use tonic::{Code, Status};

use super::call::{MOST_OTHER_BYTES, PATIENCE, call, connect, problem};
use super::members::RENEWAL;
use super::message::JoinRequest;
use super::methods::Served;
use super::token::Token;
use super::waiting::Waiting;
use unisono_data::DataError;

/// What is wrong with the server that was joined, until somebody takes notice.
pub(super) type Notice = Arc<Mutex<Option<String>>>;

/// A server, `own`, that has joined another, which tells its clients of it.
pub(super) struct Membership {
    other: String,
    own: String,
    token: Token,
    served: Arc<Served>,
}

impl Membership {
    pub(super) fn new(other: String, own: String, token: Token, served: Arc<Served>) -> Self {
        Self { other, own, token, served }
    }

    /// Joins for the first time.
    pub(super) async fn begin(&self, waiting: &Waiting) -> Result<Channel, DataError> {
        let told = || {
            format!("waiting for the data server `{}` to join it, up to {} s", self.other, PATIENCE.as_secs())
        };
        waiting.until(self.first(), told).await
    }

    async fn first(&self) -> Result<Channel, DataError> {
        let refused = |problem: String| DataError::Server { address: self.other.clone(), problem };
        let channel = connect(&self.other, &self.token).map_err(refused)?;
        let began = Instant::now();
        loop {
            match self.renew(&channel).await {
                Ok(()) => return Ok(channel),
                Err(status) => {
                    let is_final = matches!(
                        status.code(),
                        Code::FailedPrecondition | Code::Unauthenticated | Code::InvalidArgument
                    );
                    if is_final || began.elapsed() > PATIENCE {
                        return Err(refused(format!("cannot join it: {}", problem(&status))));
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    async fn renew(&self, channel: &Channel) -> Result<(), Status> {
        let description = Some(self.served.description.clone());
        let request = JoinRequest { description, address: self.own.clone() };
        call(channel, request, MOST_OTHER_BYTES).await.map(|_| ())
    }

    /// Renews it for ever: the other server may come back.
    pub(super) async fn keep(self, channel: Channel, notice: Notice) {
        let mut was_well = true;
        loop {
            tokio::time::sleep(RENEWAL).await;
            let renewed = self.renew(&channel).await;
            if let (Err(status), true) = (&renewed, was_well) {
                let told =
                    format!("data server `{}`, which this one has joined: {}", self.other, problem(status));
                *notice.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
            }
            was_well = renewed.is_ok();
        }
    }
}
