//! A reader of zlib streams that reports one that is cut off.

use std::io::{self, BufRead, ErrorKind, Read};

use flate2::{Decompress, FlushDecompress, Status};

/// The content of a zlib stream
#[derive(Debug)]
pub(super) struct ZlibReader<R> {
    packed: R,
    state: Decompress,
    has_ended: bool,
}

impl<R: BufRead> ZlibReader<R> {
    pub(super) fn new(packed: R) -> Self {
        Self { packed, state: Decompress::new(true), has_ended: false }
    }
}

impl<R: BufRead> Read for ZlibReader<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while !self.has_ended && !bytes.is_empty() {
            let packed = self.packed.fill_buf()?;
            let (had, is_at_end) = (packed.len(), packed.is_empty());
            let (before_in, before_out) = (self.state.total_in(), self.state.total_out());
            let status = self
                .state
                .decompress(packed, bytes, FlushDecompress::None)
                .map_err(|_| io::Error::new(ErrorKind::InvalidData, "corrupt zlib stream"))?;
            let taken = (self.state.total_in() - before_in) as usize;
            let made = (self.state.total_out() - before_out) as usize;
            self.packed.consume(taken);
            if status == Status::StreamEnd {
                self.has_ended = true;
                if taken < had || !self.packed.fill_buf()?.is_empty() {
                    return Err(io::Error::new(
                        ErrorKind::InvalidData,
                        "bytes after the end of the zlib stream",
                    ));
                }
            }
            if made > 0 {
                return Ok(made);
            }
            if is_at_end && !self.has_ended {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(0)
    }
}
