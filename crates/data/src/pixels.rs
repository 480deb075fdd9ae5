//! Images as 8-bit levels in memory.

/// An image of 8-bit levels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Rows of pixels.
    pub height: usize,
    /// Columns of pixels.
    pub width: usize,
    /// Levels of a pixel: 1 if it is grey, 3 for red, green and blue.
    pub channels: usize,
    /// The levels row by row, the channels of a pixel side by side.
    pub levels: Vec<u8>,
}

impl Image {
    /// Creates an image from its height, width and channels, and its levels.
    ///
    /// # Panics
    ///
    /// If there are more levels than the shape has, or fewer.
    pub fn new([height, width, channels]: [usize; 3], levels: Vec<u8>) -> Self {
        assert_eq!(levels.len(), height * width * channels, "levels of an image of another shape");
        Self { height, width, channels, levels }
    }

    /// Returns its height, width and channels.
    pub fn shape(&self) -> [usize; 3] {
        [self.height, self.width, self.channels]
    }

    /// Returns the levels of a pixel.
    ///
    /// # Panics
    ///
    /// If it is outside.
    pub fn pixel(&self, x: usize, y: usize) -> &[u8] {
        &self.levels[(y * self.width + x) * self.channels..][..self.channels]
    }
}

/// Rounds a level to the nearest whole one, a half up. As `f32::round`, which is a call into a library on many processors.
pub(crate) fn rounded(level: f32) -> u8 {
    let whole = level as u8;
    whole + u8::from(level - f32::from(whole) >= 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_rounded_as_usual() {
        for level in (0..=25_500).map(|level| level as f32 / 100.0).chain([0.499_999_97]) {
            assert_eq!(rounded(level), level.round() as u8, "{level}");
        }
    }
}
