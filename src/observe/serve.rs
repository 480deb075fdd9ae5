//! A responder for HTTP requests of a Prometheus server.
//!
//! One thread handles one connection at a time, with bounds on the size and the duration of a request: it serves one scraper every
//! few seconds.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// The largest request, and the time for a request and its response.
const MOST_BYTES: usize = 8 << 10;
const DEADLINE: Duration = Duration::from_secs(2);

/// Responds to requests for ever. `metrics` returns the text.
pub(super) fn serve(listener: &TcpListener, metrics: impl Fn() -> String) -> ! {
    loop {
        match listener.accept() {
            // A scraper that fails tries again.
            Ok((stream, _)) => drop(answer(stream, &metrics)),
            // Too many open files, for example.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn answer(mut stream: TcpStream, metrics: impl Fn() -> String) -> io::Result<()> {
    let (mut request, mut part, end) = (Vec::new(), [0; 1024], Instant::now() + DEADLINE);
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() > MOST_BYTES {
            return Ok(());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => return Ok(()),
            read => request.extend_from_slice(&part[..read]),
        }
    }
    let line = request.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let (status, body) = match line {
        _ if line.starts_with(b"GET /metrics ") => ("200 OK", metrics()),
        _ if line.starts_with(b"GET ") => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", String::new()),
    };
    stream.set_write_timeout(Some(DEADLINE))?;
    let length = body.len();
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let header = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(&[header.as_bytes(), body.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the response to a request.
    fn response(request: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.write_all(request).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let accepted = listener.accept().unwrap().0;
        // A request that is too long is cut off. Its unread bytes reset the connection.
        let _ = answer(accepted, || "up 1\n".to_owned());
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text
    }

    #[test]
    fn metrics_path_is_served_and_other_requests_get_an_error() {
        let text = response(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nup 1\n"), "{text}");
        assert!(text.contains("Content-Length: 5\r\n"), "{text}");
        assert!(response(b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(response(b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    }

    #[test]
    fn truncated_and_oversized_requests_get_no_response() {
        assert_eq!(response(b"GET /metrics HTTP/1.1\r\n"), "");
        assert_eq!(response(&vec![b'x'; 4 * MOST_BYTES]), "");
    }

    #[test]
    fn silent_client_is_disconnected_at_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let began = Instant::now();
        assert!(answer(listener.accept().unwrap().0, String::new).is_err());
        assert!(began.elapsed() >= DEADLINE && began.elapsed() < 10 * DEADLINE, "{:?}", began.elapsed());
    }
}
