//! Strangers.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use super::*;

pub(in crate::transport) mod simulation;

const DEADLINE: Duration = Duration::from_secs(20);

#[test]
fn only_who_knows_the_secret_is_let_in() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let hello = |secret: u64| connect::Hello::of([secret, 2], 1, 0);
    let knocks = |says: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(says).unwrap();
        stream
    };
    let accepted = std::thread::spawn(move || connect::accept(&[listener], vec![(1, hello(1))]));
    let _silent = knocks(b"");
    for says in
        [bytemuck::bytes_of(&hello(3)), b"GET / HTTP/1.1\r\nHost: somebody-who-has-lost-the-way\r\n\r\n"]
    {
        let mut stranger = knocks(says);
        assert_eq!(stranger.read(&mut [0]).unwrap_or(0), 0, "it is hung up on");
    }
    let mut known = knocks(bytemuck::bytes_of(&hello(1)));
    assert_eq!(known.read(&mut [0]).unwrap(), 1, "it is welcome");
    let [(1, Ok(_))] = &accepted.join().unwrap()[..] else { panic!("rank 1 is let in, and nobody else") };
    assert!(TcpStream::connect(address).is_err(), "nobody else is let in");
}
