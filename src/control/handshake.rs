//! The handshake of every connection: both sides prove that they have the secret of the job, and the connecting side states its
//! identity.
//!
//! ```text
//! connects:  Hello { nonce }                    accepts:  Challenge { nonce }
//!            Prove { claim, proof }                       Accept { proof } | Refuse { why }
//!            Confirm
//! ```
//!
//! A proof is an HMAC-SHA-256 of both nonces and the claim under the secret, with a label for each side. So a proof is useless in
//! another connection and in the other direction. The accepting side sends only a random number until the other side is
//! authenticated. It uses the connection only after `Confirm`, which states that the other side uses it too. Otherwise a stopped
//! process could later accept a connection that the other side has abandoned, and mistake its end for the death of a process.
//! Messages are not encrypted.

use std::fmt;

use hmac::{Hmac, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::message::{Claim, Message, Nonce, Proof};

const VERSION: u32 = 5;

/// The result of a message of the handshake.
#[derive(Debug, PartialEq)]
pub(crate) enum Reply {
    Send(Message),
    /// Both sides are authenticated, for this claim. Send the message, if any.
    Done(Claim, Option<Message>),
    /// The accepting side refuses the claim, for this reason.
    Refused(String),
    WrongSecret,
    /// The other side uses another protocol, or another version of this one.
    Malformed,
}

/// A secret, which `Debug` does not print.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hidden<T>(pub(crate) T);

impl<T> fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

#[derive(Debug)]
pub(crate) struct Handshake {
    secret: Hidden<Box<[u8]>>,
    state: State,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Connects: has sent `Hello`.
    Greeted { claim: Claim, own: Nonce },
    /// Connects: has sent `Prove`.
    Proved { claim: Claim, nonces: [Nonce; 2] },
    /// Accepts: waits for `Hello`.
    Accepting { own: Nonce },
    /// Accepts: has sent `Challenge`.
    Challenged { nonces: [Nonce; 2] },
    /// Accepts: has sent `Accept`.
    Accepted { claim: Claim },
    /// Has succeeded or failed.
    Ended,
}

impl Handshake {
    /// Returns the side that connects, and its first message. The nonce must be random.
    pub(crate) fn connect(secret: &[u8], claim: Claim, nonce: Nonce) -> (Self, Message) {
        let state = State::Greeted { claim, own: nonce };
        (Self { secret: Hidden(secret.into()), state }, Message::Hello { version: VERSION, nonce })
    }

    /// Returns the side that accepts. The nonce must be random.
    pub(crate) fn accept(secret: &[u8], nonce: Nonce) -> Self {
        Self { secret: Hidden(secret.into()), state: State::Accepting { own: nonce } }
    }

    /// Handles a message of the other side. `admit` returns the reason if it refuses a claim, whose proof is valid.
    pub(crate) fn handle(
        &mut self,
        message: Message,
        admit: impl FnOnce(Claim) -> Result<(), String>,
    ) -> Reply {
        let state = std::mem::replace(&mut self.state, State::Ended);
        let (state, step) = match (state, message) {
            (State::Accepting { own }, Message::Hello { version: VERSION, nonce }) => {
                let challenge = Reply::Send(Message::Challenge { nonce: own });
                (State::Challenged { nonces: [nonce, own] }, challenge)
            }
            (State::Greeted { claim, own }, Message::Challenge { nonce }) => {
                let nonces = [own, nonce];
                let proof = self.proof("connects", nonces, claim);
                (State::Proved { claim, nonces }, Reply::Send(Message::Prove { claim, proof }))
            }
            (State::Challenged { nonces }, Message::Prove { claim, proof }) => {
                if !self.is_proof("connects", nonces, claim, proof) {
                    return Reply::WrongSecret;
                }
                if let Err(why) = admit(claim) {
                    return Reply::Refused(why);
                }
                let proof = self.proof("accepts", nonces, claim);
                (State::Accepted { claim }, Reply::Send(Message::Accept { proof }))
            }
            (State::Proved { claim, nonces }, Message::Accept { proof }) => {
                let is_valid = self.is_proof("accepts", nonces, claim, proof);
                let done = Reply::Done(claim, Some(Message::Confirm));
                (State::Ended, if is_valid { done } else { Reply::WrongSecret })
            }
            (State::Accepted { claim }, Message::Confirm) => (State::Ended, Reply::Done(claim, None)),
            (State::Greeted { .. } | State::Proved { .. }, Message::Refuse { why }) => {
                (State::Ended, Reply::Refused(why))
            }
            _ => (State::Ended, Reply::Malformed),
        };
        self.state = state;
        step
    }

    /// Returns whether the other side may already use the connection.
    pub(crate) fn has_accepted(&self) -> bool {
        matches!(self.state, State::Accepted { .. })
    }

    fn hash(&self, side: &str, nonces: [Nonce; 2], claim: Claim) -> Hmac<Sha256> {
        let mut hash = Hmac::<Sha256>::new_from_slice(&self.secret.0).expect("a key may have any length");
        hash.update(side.as_bytes());
        let words = [claim.from as u64, claim.to as u64, claim.tag];
        nonces.as_flattened().iter().chain(&words).for_each(|word| hash.update(&word.to_le_bytes()));
        hash
    }

    fn proof(&self, side: &str, nonces: [Nonce; 2], claim: Claim) -> Proof {
        let hash = self.hash(side, nonces, claim).finalize().into_bytes();
        let word = |at: usize| u64::from_le_bytes(hash[at..at + 8].try_into().expect("8 bytes"));
        [word(0), word(8)]
    }

    /// Compares in a time that does not depend on the proof.
    fn is_proof(&self, side: &str, nonces: [Nonce; 2], claim: Claim, proof: Proof) -> bool {
        let bytes: Vec<u8> = proof.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.hash(side, nonces, claim).verify_truncated_left(&bytes).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: Claim = Claim { from: 1, to: 0, tag: 4 };

    fn handle(side: &mut Handshake, message: Message) -> Reply {
        side.handle(message, |_| Ok(()))
    }

    fn sent(step: Reply) -> Message {
        match step {
            Reply::Send(message) => message,
            other => panic!("{other:?} sends nothing"),
        }
    }

    /// Returns both sides up to the proof of the side that connects.
    fn until_proof(of_connect: &[u8], of_accept: &[u8]) -> (Handshake, Handshake, Message) {
        let (mut connects, hello) = Handshake::connect(of_connect, CLAIM, [1, 2]);
        let mut accepts = Handshake::accept(of_accept, [3, 4]);
        let challenge = sent(handle(&mut accepts, hello));
        let prove = sent(handle(&mut connects, challenge));
        (connects, accepts, prove)
    }

    #[test]
    fn both_sides_authenticate_with_the_same_secret() {
        let (mut connects, mut accepts, prove) = until_proof(b"secret", b"secret");
        let mut claimed = None;
        let accept = sent(accepts.handle(prove, |claim| {
            claimed = Some(claim);
            Ok(())
        }));
        assert_eq!(claimed, Some(CLAIM));
        assert!(accepts.has_accepted());
        assert_eq!(handle(&mut connects, accept), Reply::Done(CLAIM, Some(Message::Confirm)));
        assert_eq!(handle(&mut accepts, Message::Confirm), Reply::Done(CLAIM, None));
    }

    #[test]
    fn refused_claim_ends_the_handshake() {
        let (_, mut accepts, prove) = until_proof(b"secret", b"secret");
        let refuse = |_| Err("it is not expected".to_owned());
        assert_eq!(accepts.handle(prove, refuse), Reply::Refused("it is not expected".to_owned()));
        assert!(!accepts.has_accepted());
        assert_eq!(handle(&mut accepts, Message::Confirm), Reply::Malformed);
    }

    #[test]
    fn secret_is_not_printed() {
        let (connects, accepts, _) = until_proof(&[222, 221], &[222, 221]);
        let printed = format!("{connects:?} {accepts:?}");
        assert!(!printed.contains("222") && printed.contains("secret: …"), "{printed}");
    }

    #[test]
    fn wrong_secret_is_detected_by_the_other_side() {
        let (_, mut accepts, prove) = until_proof(b"guess", b"secret");
        assert_eq!(handle(&mut accepts, prove), Reply::WrongSecret);
        // An impostor that accepts without a check.
        let (mut connects, ..) = until_proof(b"secret", b"secret");
        let (_, mut impostor, prove) = until_proof(b"guess", b"guess");
        let accept = sent(handle(&mut impostor, prove));
        assert_eq!(handle(&mut connects, accept), Reply::WrongSecret);
    }

    #[test]
    fn changed_claim_replay_and_reflection_are_rejected() {
        let (_, mut accepts, prove) = until_proof(b"secret", b"secret");
        let Message::Prove { proof, .. } = prove else { unreachable!() };
        let changed = Message::Prove { claim: Claim { from: 2, ..CLAIM }, proof };
        assert_eq!(handle(&mut accepts, changed), Reply::WrongSecret);
        let mut another = Handshake::accept(b"secret", [5, 6]);
        let (_, hello) = Handshake::connect(b"secret", CLAIM, [1, 2]);
        sent(handle(&mut another, hello));
        assert_eq!(handle(&mut another, Message::Prove { claim: CLAIM, proof }), Reply::WrongSecret);
        let (mut connects, _, _) = until_proof(b"secret", b"secret");
        assert_eq!(handle(&mut connects, Message::Accept { proof }), Reply::WrongSecret);
    }

    #[test]
    fn out_of_order_message_ends_the_handshake() {
        let mut accepts = Handshake::accept(b"secret", [3, 4]);
        assert_eq!(handle(&mut accepts, Message::Goodbye), Reply::Malformed);
        let (_, hello) = Handshake::connect(b"secret", CLAIM, [1, 2]);
        assert_eq!(handle(&mut accepts, hello), Reply::Malformed, "it has ended");
        let old = Message::Hello { version: VERSION - 1, nonce: [0; 2] };
        assert_eq!(handle(&mut Handshake::accept(b"secret", [3, 4]), old), Reply::Malformed);
    }
}
