//! The secret that a server and its clients share.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use subtle::ConstantTimeEq;
use tonic::metadata::{Ascii, MetadataValue};

use crate::error::DataError;

/// The shortest token, in bytes: none that is shorter is hard to guess.
const SHORTEST: usize = 16;

/// The secret that every call carries.
#[derive(Clone)]
pub struct Token(MetadataValue<Ascii>);

impl Token {
    /// Reads a token: one line of printable characters in a file that nobody else may read.
    ///
    /// # Errors
    ///
    /// If the file is unreadable or readable by others, or its content is too short or not printable.
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let unreadable = |error| DataError::Read { path: path.into(), error };
        let refused = |problem: String| DataError::Token { path: path.into(), problem };
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
        let bearer = [b"Bearer ", token].concat();
        let mut value = MetadataValue::try_from(bearer.as_slice()).expect("printable characters");
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// The value of the header `authorization`.
    pub(super) fn header(&self) -> MetadataValue<Ascii> {
        self.0.clone()
    }

    /// Whether a header holds this token. Takes as long for a token that is nearly right as for any other.
    pub(super) fn is(&self, header: Option<&[u8]>) -> bool {
        header.is_some_and(|header| self.0.as_bytes().ct_eq(header).into())
    }
}

/// Does not show it.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;
    use crate::testing::TestDirectory;

    /// The token in a file with this content and mode, or why it is refused.
    fn read(content: &[u8], mode: u32) -> Result<Token, String> {
        let directory = TestDirectory::new();
        let path = directory.file("token", content);
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        Token::read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_is_a_line_that_nobody_else_may_read() {
        let token = read(b"0123456789abcdef\n", 0o600).unwrap();
        assert!(token.is(Some(b"Bearer 0123456789abcdef")));
        for wrong in [&b"Bearer 0123456789abcdeg"[..], b"0123456789abcdef", b"Bearer 0123456789abcdef0", b""]
        {
            assert!(!token.is(Some(wrong)));
        }
        assert!(!token.is(None));
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
