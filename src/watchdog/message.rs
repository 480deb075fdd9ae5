//! Messages between the leaders of nodes.

use serde::{Deserialize, Serialize};
use unisono_collectives::Rank;

use crate::record::Doing;

/// The longest message: the state of a few thousand ranks of a node.
pub(super) const LONGEST: usize = 4 << 20;
/// The longest first message of an unknown connection: a [`Message::Hello`].
pub(super) const LONGEST_HELLO: usize = 96;
/// The length field before each message.
pub(super) const LENGTH: usize = size_of::<u32>();

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Message {
    /// The first message of a connection, from the connecting side.
    Hello { token: u64, rank: Rank },
    /// The answer to `Hello`.
    Welcome,
    /// Sent for the acknowledgement of the kernel at the other end, without which the link counts as cut.
    Heartbeat,
    /// A rank has failed, because of rank `first` as far as it knows, which may be itself.
    Failed { by: Rank, first: Rank, cause: String },
    /// A rank has left the world.
    Left { rank: Rank },
    /// The label of a quiet section on some other node.
    Quiet { label: Option<String> },
    /// What the ranks of a node are doing.
    Doing(Vec<Doing>),
    /// The connection is about to be closed without an error.
    Goodbye,
}

/// Invalid bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoMessage;

impl Message {
    /// Encodes the message in JSON, after its length.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let content = serde_json::to_vec(self).expect("a message has nothing that JSON has not");
        let mut bytes = (content.len() as u32).to_le_bytes().to_vec();
        bytes.extend(content);
        bytes
    }

    /// Removes the first complete message from the received bytes. Checks its length before the rest has arrived.
    pub(super) fn take_from(arrived: &mut Vec<u8>, longest: usize) -> Result<Option<Self>, NoMessage> {
        let Some((length, rest)) = arrived.split_first_chunk::<LENGTH>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > longest {
            return Err(NoMessage);
        }
        let Some(content) = rest.get(..length) else { return Ok(None) };
        let message = serde_json::from_slice(content).map_err(|_| NoMessage)?;
        arrived.drain(..LENGTH + length);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::StatusBoard;

    fn messages() -> Vec<Message> {
        let status = &StatusBoard::of_threads(2).unwrap()[0];
        vec![
            Message::Hello { token: u64::MAX, rank: 3 },
            Message::Welcome,
            Message::Heartbeat,
            Message::Failed { by: 1, first: 0, cause: "it said \"größer\"\n".into() },
            Message::Left { rank: 2 },
            Message::Quiet { label: None },
            Message::Quiet { label: Some("validation".into()) },
            Message::Doing(vec![status.doing(0), status.doing(1)]),
            Message::Goodbye,
        ]
    }

    #[test]
    fn messages_arrive_in_any_pieces() {
        let (messages, mut sent) = (messages(), Vec::new());
        messages.iter().for_each(|message| sent.extend(message.to_bytes()));
        for piece in [1, 7, sent.len()] {
            let (mut arrived, mut read) = (Vec::new(), Vec::new());
            for bytes in sent.chunks(piece) {
                arrived.extend(bytes);
                while let Some(message) = Message::take_from(&mut arrived, LONGEST).unwrap() {
                    read.push(message);
                }
            }
            assert_eq!(read, messages);
            assert!(arrived.is_empty());
        }
    }

    fn take_from(bytes: &[u8]) -> Result<Option<Message>, NoMessage> {
        Message::take_from(&mut bytes.to_vec(), LONGEST)
    }

    #[test]
    fn what_is_no_message_is_refused() {
        assert_eq!(take_from(b"GET / HTTP/1.1\r\n\r\n"), Err(NoMessage));
        let framed = |content: &[u8]| [&(content.len() as u32).to_le_bytes(), content].concat();
        for content in
            [&b""[..], b"{}", b"\"no-such\"", b"\"welcome\"x", b"{\"left\":{\"rank\":-1}}", b"\xff\xff"]
        {
            assert_eq!(take_from(&framed(content)), Err(NoMessage), "{content:?}");
        }
        assert_eq!(take_from(&framed(&b"[".repeat(1 << 20))), Err(NoMessage), "deep");
    }

    #[test]
    fn the_longest_hello_is_short_enough() {
        let hello = Message::Hello { token: u64::MAX, rank: Rank::MAX }.to_bytes();
        assert!(Message::take_from(&mut hello.clone(), LONGEST_HELLO).unwrap().is_some());
        assert_eq!(
            Message::take_from(&mut hello[..LENGTH].to_vec(), 8),
            Err(NoMessage),
            "seen by its length"
        );
    }

    #[test]
    fn a_changed_byte_does_no_harm() {
        for bytes in messages().iter().map(Message::to_bytes) {
            let places = (0..bytes.len()).flat_map(|place| [0, b'1', b'"', 0xff].map(|value| (place, value)));
            for (place, value) in places {
                let mut changed = bytes.clone();
                changed[place] = value;
                let _ = take_from(&changed);
            }
        }
    }
}
