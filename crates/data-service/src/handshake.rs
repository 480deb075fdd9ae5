//! The handshake of a connection. Both sides prove that they have the token, without sending it.
//!
//! The server sends a greeting and a nonce. The client answers with the greeting, its own nonce, and a [proof](Token::proof). The server accepts the
//! proof and sends its own, or refuses it.

use std::io;

use rand::random;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::token::{Nonce, Proof, Side, Token};

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
pub(super) async fn accept(stream: &mut TcpStream, token: &Token) -> io::Result<bool> {
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

/// Performs the client's side.
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
