//! The framing of TFRecord files, which TensorBoard's event files share.
//!
//! A record is its length (8 bytes, little-endian), a checksum of the length, its bytes, and a checksum of the bytes. A checksum is a CRC-32C,
//! rotated and offset, so that it remains effective for data that contain checksums.

use std::io::{self, Write};

/// The bytes before a record: its length, and the checksum of the length.
pub const HEADER_BYTES: usize = 12;
/// The bytes after a record: its checksum.
pub const FOOTER_BYTES: usize = 4;

/// Returns the checksum of `bytes`, as in a frame.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Returns the record at the start of these bytes, without its checksum; `None` if the checksum is wrong.
pub(crate) fn record(bytes: &[u8]) -> Option<&[u8]> {
    let (record, sum) = bytes.split_last_chunk()?;
    (checksum(record).to_le_bytes() == *sum).then_some(record)
}

/// Writes `record` in its frame.
pub fn write(target: &mut impl Write, record: &[u8]) -> io::Result<()> {
    let length = (record.len() as u64).to_le_bytes();
    target.write_all(&length)?;
    target.write_all(&checksum(&length).to_le_bytes())?;
    target.write_all(record)?;
    target.write_all(&checksum(record).to_le_bytes())
}

/// Returns the length of the record after this header; `None` if the header's checksum is wrong.
pub fn length(header: [u8; HEADER_BYTES]) -> Option<u64> {
    let (length, sum) = header.split_first_chunk::<8>()?;
    (checksum(length).to_le_bytes() == sum).then(|| u64::from_le_bytes(*length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_match_the_crc_32c_of_rfc_3720() {
        // RFC 3720, B.4: the CRC-32C of 32 zeros is 0x8a9136aa.
        assert_eq!(checksum(&[0; 32]), 0x8a91_36aa_u32.rotate_right(15).wrapping_add(0xa282_ead8));
    }

    #[test]
    fn a_header_yields_the_length_unless_it_is_damaged() {
        let mut file = Vec::new();
        write(&mut file, b"record").unwrap();
        assert_eq!(file.len(), HEADER_BYTES + 6 + FOOTER_BYTES);
        let mut header: [u8; HEADER_BYTES] = file[..HEADER_BYTES].try_into().unwrap();
        assert_eq!(length(header), Some(6));
        header[0] ^= 1;
        assert_eq!(length(header), None);
    }
}
