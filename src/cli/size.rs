//! Sizes on the command line.

/// The number of bytes that a text means: digits, and K, M or G for 2^10, 2^20 or 2^30 of them.
pub(super) fn bytes(text: &str) -> Option<usize> {
    let (digits, shift) = match text.char_indices().next_back()? {
        (end, 'K') => (&text[..end], 10),
        (end, 'M') => (&text[..end], 20),
        (end, 'G') => (&text[..end], 30),
        _ => (text, 0),
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_are_read() {
        assert_eq!(bytes("12"), Some(12));
        assert_eq!((bytes("3K"), bytes("3M"), bytes("3G")), (Some(3 << 10), Some(3 << 20), Some(3 << 30)));
        for nonsense in ["", "K", "-1", "1T", "1.5M", "99999999999G"] {
            assert_eq!(bytes(nonsense), None, "{nonsense}");
        }
    }
}
