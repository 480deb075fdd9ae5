//! Human-readable sizes: 512, 8K, 1M.

/// Parses a number of bytes: digits, with the suffix K, M or G for 2^10, 2^20 or 2^30.
///
/// ```
/// assert_eq!(unisono::size::bytes("8K"), Some(8192));
/// assert_eq!(unisono::size::bytes("8 kB"), None);
/// ```
pub fn bytes(text: &str) -> Option<usize> {
    let (digits, shift) = match text.char_indices().next_back()? {
        (end, 'K') => (&text[..end], 10),
        (end, 'M') => (&text[..end], 20),
        (end, 'G') => (&text[..end], 30),
        _ => (text, 0),
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

/// Returns the shortest text for this many bytes.
///
/// ```
/// assert_eq!(unisono::size::text(8192), "8K");
/// assert_eq!(unisono::size::text(8193), "8193");
/// ```
pub fn text(bytes: usize) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let whole = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    whole.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// Rounds a size down to a text such as `512 MiB`, for messages.
///
/// ```
/// assert_eq!(unisono::size::approximate(5 << 20), "5 MiB");
/// ```
pub fn approximate(bytes: u64) -> String {
    match bytes {
        0..0x40_0000 => format!("{} KiB", bytes >> 10),
        0x40_0000..0x1_0000_0000 => format!("{} MiB", bytes >> 20),
        0x1_0000_0000..0x400_0000_0000 => format!("{} GiB", bytes >> 30),
        _ => format!("{} TiB", bytes >> 40),
    }
}

#[cfg(test)]
mod tests {
    use super::{bytes, text};

    #[test]
    fn sizes_with_suffixes_are_parsed() {
        assert_eq!(bytes("12"), Some(12));
        assert_eq!((bytes("3K"), bytes("3M"), bytes("3G")), (Some(3 << 10), Some(3 << 20), Some(3 << 30)));
        for nonsense in ["", "K", "-1", "1T", "1.5M", "99999999999G"] {
            assert_eq!(bytes(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn formatted_sizes_parse_to_the_same_value() {
        for size in [0, 1, 512, 1000, 1 << 10, 3 << 10, (1 << 20) + 1, 5 << 20, 1 << 30, 3 << 40] {
            assert_eq!(bytes(&text(size)), Some(size));
        }
    }
}
