//! The secret that a server and its clients share.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use unisono_data::DataError;

/// The minimum length of a token in bytes: shorter ones are easy to guess.
const SHORTEST: usize = 16;

/// A shared secret, by which a server and its clients authenticate each other. It is never sent.
#[derive(Clone)]
pub struct Token(Hmac<Sha256>);

/// A random number that is used once.
pub(super) type Nonce = [u8; 32];
/// A proof that a side has the token.
pub(super) type Proof = [u8; 32];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

impl Token {
    /// Reads a token: one line of printable characters in a file that no other user may read.
    ///
    /// # Errors
    ///
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
    pub(super) fn proof(&self, side: Side, nonces: [&Nonce; 2]) -> Proof {
        self.keyed(side, nonces).finalize().into_bytes().into()
    }

    /// Returns whether a proof is valid, in constant time.
    pub(super) fn is_proven(&self, proof: &Proof, side: Side, nonces: [&Nonce; 2]) -> bool {
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

/// Hides the secret.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
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
