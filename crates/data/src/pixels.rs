//! Images as 8-bit levels in memory.

/// An image of 8-bit levels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Rows of pixels.
    pub height: usize,
    /// Columns of pixels.
    pub width: usize,
    /// Channels of a pixel: 1 for greyscale, 3 for red, green and blue.
    pub channels: usize,
    /// The levels row by row, with interleaved channels.
    pub levels: Vec<u8>,
}

impl Image {
    /// Creates an image from its height, width and channels, and its levels.
    ///
    /// # Panics
    ///
    /// If the number of levels is not the product of the shape.
    pub fn new([height, width, channels]: [usize; 3], levels: Vec<u8>) -> Self {
        assert_eq!(levels.len(), height * width * channels, "levels of an image of another shape");
        Self { height, width, channels, levels }
    }

    /// Returns the height, width and channels.
    pub fn shape(&self) -> [usize; 3] {
        [self.height, self.width, self.channels]
    }

    /// Returns the levels of a pixel.
    ///
    /// # Panics
    ///
    /// If the pixel is outside the image.
    pub fn pixel(&self, x: usize, y: usize) -> &[u8] {
        &self.levels[(y * self.width + x) * self.channels..][..self.channels]
    }
}

/// Rounds a level to the nearest integer, halves up. Equals `f32::round`, which is a library call on many processors.
pub(crate) fn rounded(level: f32) -> u8 {
    let whole = level as u8;
    whole + u8::from(level - f32::from(whole) >= 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_round_like_f32_round() {
        for level in (0..=25_500).map(|level| level as f32 / 100.0).chain([0.499_999_97]) {
            assert_eq!(rounded(level), level.round() as u8, "{level}");
        }
    }
}
