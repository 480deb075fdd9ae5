//! The addresses of a name, by the system's resolver, which has no deadline.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Instant;

use super::peer::NAP;
use crate::while_waiting;

/// The addresses of a name, or the reason why it has none.
pub(crate) type Resolved = io::Result<Vec<SocketAddr>>;

/// Returns the addresses of `host:port`. The resolver runs on a thread, if the system provides one, and is waited for until the deadline.
///
/// # Errors
/// The cause of the program's callback.
pub(crate) fn look_up(address: &str, deadline: Instant) -> Result<Resolved, String> {
    let ((answers, answer), name) = (channel::<Resolved>(), address.to_owned());
    let resolve = move || drop(answers.send(name.to_socket_addrs().map(Iterator::collect)));
    match Builder::new().name("resolver".into()).spawn(resolve) {
        Ok(_) => answered(&answer, deadline),
        Err(_) => Ok(address.to_socket_addrs().map(Iterator::collect)),
    }
}

fn answered(answer: &Receiver<Resolved>, deadline: Instant) -> Result<Resolved, String> {
    loop {
        match answer.recv_timeout(NAP) {
            Ok(resolved) => return Ok(resolved),
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => while_waiting::run()?,
            Err(_) => {
                return Ok(Err(io::Error::new(ErrorKind::TimedOut, "the name server does not answer")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn wait_for_a_silent_name_server_has_a_deadline_and_can_be_interrupted() {
        let (_silent, answer) = channel();
        let error = answered(&answer, Instant::now()).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let later = || answered(&answer, Instant::now() + Duration::from_secs(20));
        let interrupted = while_waiting::while_waiting(|| Err("interrupted".to_owned()), later);
        assert_eq!(interrupted.unwrap_err(), "interrupted");
    }
}
