//! The listening socket of a server, which admits connections after a [handshake].

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::handshake;
use super::token::Token;
use unisono_data::DataError;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// The maximum number of concurrent handshakes. Another one replaces the oldest.
const MOST_PENDING: usize = 256;
/// The pause after a connection could not be accepted, for example because too many files are open.
const NAP: Duration = Duration::from_millis(100);

pub(super) async fn listen(address: &str) -> Result<(TcpListener, SocketAddr), DataError> {
    let listener = TcpListener::bind(address).await;
    let listening = listener.and_then(|listener| listener.local_addr().map(|address| (listener, address)));
    listening.map_err(|error| DataError::Server {
        address: address.to_owned(),
        problem: format!("cannot listen there: {error}"),
    })
}

/// Forwards the connections of clients that have the token. Other connections are closed, and delay no client.
pub(super) async fn admit(
    listener: TcpListener,
    token: Token,
    admitted: mpsc::Sender<io::Result<TcpStream>>,
) {
    let mut pending = VecDeque::<AbortHandle>::new();
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            sleep(NAP).await;
            continue;
        };
        pending.retain(|handshake| !handshake.is_finished());
        if pending.len() == MOST_PENDING
            && let Some(oldest) = pending.pop_front()
        {
            oldest.abort();
        }
        let (token, admitted) = (token.clone(), admitted.clone());
        let handshake = tokio::spawn(async move {
            let accepted = timeout(HANDSHAKE_TIMEOUT, handshake::accept(&mut stream, &token)).await;
            if let Ok(Ok(true)) = accepted
                && stream.set_nodelay(true).is_ok()
            {
                // Without a receiver, the server has stopped.
                let _ = admitted.send(Ok(stream)).await;
            }
        });
        pending.push_back(handshake.abort_handle());
    }
}
