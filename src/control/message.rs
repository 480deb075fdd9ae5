//! Messages of the control protocol, and their frames: a length, followed by JSON.

use serde::{Deserialize, Serialize};
use unisono_collectives::Rank;

use crate::record::Doing;

/// The longest message: the state of a few thousand ranks of a node.
pub(crate) const LONGEST: usize = 4 << 20;
/// The longest message of a connection that has not identified itself.
pub(crate) const LONGEST_HELLO: usize = 256;
/// The length before each message.
pub(crate) const PREFIX: usize = size_of::<u32>();

/// A random number that is used once.
pub(crate) type Nonce = [u64; 2];
/// The first half of a keyed hash.
pub(crate) type Proof = [u64; 2];
/// The number of an attempt to agree: a round, and the rank that proposes.
pub(crate) type Ballot = (u64, Rank);

/// The identity that a connecting process claims, and the purpose of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    /// The purpose of the connection, or the number of ranks of the world that `from` expects.
    pub(crate) tag: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Message {
    /// The first message of a connection, from the side that connects.
    Hello { version: u32, nonce: Nonce },
    /// The reply to `Hello`, which proves nothing yet.
    Challenge { nonce: Nonce },
    /// The reply to `Challenge`: the identity of the connecting process, and the proof that it has the secret.
    Prove { claim: Claim, proof: Proof },
    /// The reply to `Prove`: the proof of the accepting side.
    Accept { proof: Proof },
    /// The reply to `Accept`: the connecting side uses the connection.
    Confirm,
    /// The sender is about to close the connection, for this reason.
    Refuse { why: String },
    /// An empty message. The other side receives it, and its kernel acknowledges it.
    Keepalive,
    /// Rank `by` has failed. It attributes the failure to rank `first`, which may be itself.
    Failed { by: Rank, first: Rank, cause: String },
    /// A rank has left the world.
    Left { rank: Rank },
    /// The label of a quiet section on some other node.
    Quiet { label: Option<String> },
    /// The activity of the ranks of a node.
    Doing(Vec<Doing>),
    /// A step of the agreement on a view, by its number.
    Vote { number: u64, vote: Vote },
    /// The bytes of a member in a round of an all-gather among the members of a view.
    Gather { number: u64, round: u64, bytes: Vec<u8> },
    /// The sender has completed the [last all-gather](super::Endpoint::finish) of a view.
    Finished { number: u64 },
    /// The connection is about to be closed without an error.
    Goodbye,
}

/// A step of the agreement on a view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Vote {
    /// The sender takes part. It has detected that the processes of `dead` have ended, and cannot reach those of `lost`.
    Ready { dead: Vec<Rank>, lost: Vec<Rank> },
    /// Requests a promise to ignore ballots below this one.
    Prepare { ballot: Ballot },
    /// A promise, with the value that the sender has acknowledged before.
    Promise { ballot: Ballot, acknowledged: Option<(Ballot, Vec<Rank>)> },
    /// Requests the acknowledgement of these members. The processes of `dead` have ended.
    Propose { ballot: Ballot, members: Vec<Rank>, dead: Vec<Rank> },
    /// The acknowledgement of the members that this ballot proposes.
    Acknowledge { ballot: Ballot },
    /// All remaining members have acknowledged these.
    Commit { members: Vec<Rank> },
    /// The sender continues without the receiver, and ignores its messages from now on.
    Exclude,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl Message {
    /// Encodes the message in JSON, after its length.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        framed(&serde_json::to_vec(self).expect("JSON can represent every message"))
    }

    /// Decodes a message without its length.
    pub(crate) fn of_frame(content: &[u8]) -> Result<Self, Malformed> {
        serde_json::from_slice(content).map_err(|_| Malformed)
    }
}

/// Prefixes the bytes of a message with their number, as [`Frames`] expects them.
pub(crate) fn framed(content: &[u8]) -> Vec<u8> {
    [&(content.len() as u32).to_le_bytes(), content].concat()
}

/// Received bytes, from the start of a message.
#[derive(Debug, Default)]
pub(crate) struct Frames(Vec<u8>);

impl Frames {
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Removes the first message, once it is complete.
    pub(crate) fn next(&mut self, longest: usize) -> Result<Option<Message>, Malformed> {
        self.next_frame(longest)?.map(|content| Message::of_frame(&content)).transpose()
    }

    /// Removes the bytes of the first message, once they are complete. Checks their number before the rest has arrived.
    pub(crate) fn next_frame(&mut self, longest: usize) -> Result<Option<Vec<u8>>, Malformed> {
        let Some((length, rest)) = self.0.split_first_chunk::<PREFIX>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > longest {
            return Err(Malformed);
        }
        let Some(content) = rest.get(..length).map(<[u8]>::to_vec) else { return Ok(None) };
        self.0.drain(..PREFIX + length);
        Ok(Some(content))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<Message> {
        let claim = Claim { from: usize::MAX, to: usize::MAX, tag: u64::MAX };
        let votes = [
            Vote::Ready { dead: vec![2], lost: vec![3] },
            Vote::Promise { ballot: (1, 2), acknowledged: Some(((0, 1), vec![0, 1])) },
            Vote::Propose { ballot: (1, 2), members: vec![0, 2], dead: vec![1] },
            Vote::Exclude,
        ];
        let mut messages = vec![
            Message::Hello { version: u32::MAX, nonce: [u64::MAX; 2] },
            Message::Challenge { nonce: [1; 2] },
            Message::Prove { claim, proof: [u64::MAX; 2] },
            Message::Accept { proof: [7; 2] },
            Message::Confirm,
            Message::Refuse { why: "there are two ranks 1".into() },
            Message::Keepalive,
            Message::Failed { by: 1, first: 0, cause: "it said \"größer\"\n".into() },
            Message::Left { rank: 2 },
            Message::Quiet { label: Some("validation".into()) },
            Message::Doing(Vec::new()),
            Message::Gather { number: 1, round: 2, bytes: vec![0, 255] },
            Message::Finished { number: 1 },
            Message::Goodbye,
        ];
        messages.extend(votes.map(|vote| Message::Vote { number: 1, vote }));
        messages
    }

    #[test]
    fn messages_are_decoded_from_fragments_of_any_size() {
        let (messages, mut sent) = (messages(), Vec::new());
        messages.iter().for_each(|message| sent.extend(message.to_bytes()));
        for piece in [1, 7, sent.len()] {
            let (mut frames, mut read) = (Frames::default(), Vec::new());
            for bytes in sent.chunks(piece) {
                frames.extend(bytes);
                while let Some(message) = frames.next(LONGEST).unwrap() {
                    read.push(message);
                }
            }
            assert_eq!(read, messages);
            assert_eq!(frames.len(), 0);
        }
    }

    fn next(bytes: &[u8], longest: usize) -> Result<Option<Message>, Malformed> {
        let mut frames = Frames::default();
        frames.extend(bytes);
        frames.next(longest)
    }

    #[test]
    fn invalid_bytes_are_rejected() {
        assert_eq!(next(b"GET / HTTP/1.1\r\n\r\n", LONGEST), Err(Malformed));
        for content in
            [&b""[..], b"{}", b"\"no-such\"", b"\"goodbye\"x", b"{\"left\":{\"rank\":-1}}", b"\xff\xff"]
        {
            assert_eq!(next(&framed(content), LONGEST), Err(Malformed), "{content:?}");
        }
        assert_eq!(next(&framed(&b"[".repeat(1 << 20)), LONGEST), Err(Malformed), "nested deeply");
    }

    #[test]
    fn handshake_messages_fit_the_length_limit() {
        for message in &messages()[..6] {
            let bytes = message.to_bytes();
            assert!(bytes.len() <= PREFIX + LONGEST_HELLO, "{message:?}: {} bytes", bytes.len());
            assert_eq!(next(&bytes[..PREFIX], 8), Err(Malformed), "the length alone is checked");
        }
    }

    #[test]
    fn corrupted_message_causes_no_panic() {
        for bytes in messages().iter().map(Message::to_bytes) {
            let places = (0..bytes.len()).flat_map(|place| [0, b'1', b'"', 0xff].map(|value| (place, value)));
            for (place, value) in places {
                let mut changed = bytes.clone();
                changed[place] = value;
                let _ = next(&changed, LONGEST);
            }
        }
    }
}
