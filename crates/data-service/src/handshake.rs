//! The token, the handshake of a connection, and the socket of a server that admits connections after it. Both sides prove that they have the token,
//! without sending it.
//!
//! The server sends a greeting and a nonce. The client answers with the greeting, its own nonce, and a [proof](Token::proof). The server accepts the
//! proof and sends its own, or refuses it.

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use hmac::{Hmac, Mac};
use rand::random;
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use unisono_data::DataError;

/// The minimum length of a token in bytes: shorter ones are easy to guess.
const SHORTEST: usize = 16;

/// A shared secret, by which a server and its clients authenticate each other. It is never sent.
#[derive(Clone)]
pub struct Token(Hmac<Sha256>);

type Nonce = [u8; 32];
type Proof = [u8; 32];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

impl Token {
    /// Reads a token: one line of printable characters in a file that no other user may read.
    ///
    /// # Errors
    /// If the file is unreadable or readable by others, or its content is too short or not printable.
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let unreadable = |error| DataError::Read { path: path.into(), error };
        let refused =
            |problem: String| DataError::other(format!("token file `{}`: {problem}", path.display()));
        let mode = fs::metadata(path).map_err(unreadable)?.permissions().mode();
        if mode & 0o077 != 0 {
            let problem = format!("others may read it (mode {:03o}): run `chmod 600` on it", mode & 0o777);
            return Err(refused(problem));
        }
        let text = fs::read(path).map_err(unreadable)?;
        let token = text.trim_ascii();
        if token.len() < SHORTEST {
            let problem = format!(
                "it has {} bytes: expected at least {SHORTEST}, such as those of `head -c 32 /dev/urandom | base64`",
                token.len()
            );
            return Err(refused(problem));
        }
        if !token.iter().all(u8::is_ascii_graphic) {
            return Err(refused("expected one line of printable ASCII characters without spaces".to_owned()));
        }
        Ok(Self(Hmac::new_from_slice(token).expect("a key may have any length")))
    }

    /// Returns the proof of one side of a connection. It depends on the nonces of both sides, so it cannot be replayed, and on the side, so it cannot
    /// be reflected.
    fn proof(&self, side: Side, nonces: [&Nonce; 2]) -> Proof {
        self.keyed(side, nonces).finalize().into_bytes().into()
    }

    /// Returns whether a proof is valid, in constant time.
    fn is_proven(&self, proof: &Proof, side: Side, nonces: [&Nonce; 2]) -> bool {
        self.keyed(side, nonces).verify(proof.into()).is_ok()
    }

    fn keyed(&self, side: Side, nonces: [&Nonce; 2]) -> Hmac<Sha256> {
        let mut keyed = self.0.clone();
        keyed.update(match side {
            Side::Client => b"client",
            Side::Server => b"server",
        });
        nonces.iter().for_each(|nonce| keyed.update(*nonce));
        keyed
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The first bytes of both sides. They end with the version of the handshake.
const GREETING: [u8; 16] = *b"unisono data v1\n";
/// The server's answer, before its proof.
const ACCEPTED: u8 = 1;
const REFUSED: u8 = 0;

#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("the token is not that of the server")]
    OtherToken,
    #[error("it is no data server of this version of the handshake")]
    NoServer,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Performs the server's side. Returns whether the client has the token.
async fn accept(stream: &mut TcpStream, token: &Token) -> io::Result<bool> {
    let own: Nonce = random();
    stream.write_all(&[&GREETING[..], &own].concat()).await?;
    let (mut greeting, mut theirs, mut proof) = (GREETING, Nonce::default(), Proof::default());
    stream.read_exact(&mut greeting).await?;
    if greeting != GREETING {
        return Ok(false);
    }
    stream.read_exact(&mut theirs).await?;
    stream.read_exact(&mut proof).await?;
    let nonces = [&own, &theirs];
    if !token.is_proven(&proof, Side::Client, nonces) {
        stream.write_all(&[REFUSED]).await?;
        return Ok(false);
    }
    stream.write_all(&[&[ACCEPTED][..], &token.proof(Side::Server, nonces)].concat()).await?;
    Ok(true)
}

pub(super) async fn connect(stream: &mut TcpStream, token: &Token) -> Result<(), HandshakeError> {
    let (mut greeting, mut theirs, own): (_, _, Nonce) = (GREETING, Nonce::default(), random());
    stream.read_exact(&mut greeting).await?;
    if greeting != GREETING {
        return Err(HandshakeError::NoServer);
    }
    stream.read_exact(&mut theirs).await?;
    let nonces = [&theirs, &own];
    stream.write_all(&[&GREETING[..], &own, &token.proof(Side::Client, nonces)].concat()).await?;
    if stream.read_u8().await? != ACCEPTED {
        return Err(HandshakeError::OtherToken);
    }
    let mut proof = Proof::default();
    stream.read_exact(&mut proof).await?;
    if token.is_proven(&proof, Side::Server, nonces) { Ok(()) } else { Err(HandshakeError::OtherToken) }
}

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
            let accepted = timeout(HANDSHAKE_TIMEOUT, accept(&mut stream, &token)).await;
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

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;
    use tempfile::TempDir;

    /// Reads a file with this content and mode. Returns its token, or the error.
    fn read(content: &[u8], mode: u32) -> Result<Token, String> {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("token");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        Token::read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_is_a_line_that_no_other_user_may_read() {
        let token = read(b"0123456789abcdef\n", 0o600).unwrap();
        let (nonces, others) = ([&[1; 32], &[2; 32]], [&[2; 32], &[1; 32]]);
        let proof = token.proof(Side::Client, nonces);
        assert!(read(b"0123456789abcdef", 0o600).unwrap().is_proven(&proof, Side::Client, nonces));
        assert!(
            !token.is_proven(&proof, Side::Server, nonces) && !token.is_proven(&proof, Side::Client, others)
        );
        for wrong in [&b"0123456789abcdeg"[..], b"0123456789abcdef0"] {
            assert!(!read(wrong, 0o600).unwrap().is_proven(&proof, Side::Client, nonces));
        }
        assert_eq!(format!("{token:?}"), "Token(…)");
        for (content, mode, why) in [
            (&b"0123456789abcdef"[..], 0o640, "others may read it (mode 640): run `chmod 600` on it"),
            (b"0123456789abcdef", 0o604, "others may read it (mode 604)"),
            (b"0123456789abcde\n\n", 0o600, "it has 15 bytes: expected at least 16, such as those of `head"),
            (b"", 0o600, "it has 0 bytes: expected at least 16"),
            (b"0123456789abcdef\n0123456789abcdef", 0o600, "expected one line of printable ASCII characters"),
            (&[200; 32], 0o600, "expected one line of printable ASCII characters"),
        ] {
            let refused = read(content, mode).unwrap_err();
            assert!(refused.starts_with("token file `") && refused.contains(why), "{refused}");
        }
        let missing = Token::read(Path::new("no/such/file")).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read `no/such/file`: "), "{missing}");
    }
}
