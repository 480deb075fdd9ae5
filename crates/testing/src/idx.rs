//! Files in the format of MNIST.

use std::fs;
use std::path::Path;

/// Writes square images with their labels. `part` is `train` or `t10k`.
///
/// # Panics
/// If the images are not square, or cannot be written.
pub fn write(folder: &Path, part: &str, pixels: &[u8], labels: &[u32]) {
    let side = (pixels.len() / labels.len()).isqrt();
    assert_eq!(side * side * labels.len(), pixels.len(), "the images are not square");
    let file = |kind: &str, magic: u32, shape: &[usize], bytes: &[u8]| {
        let shape = shape.iter().map(|&size| u32::try_from(size).expect("a size has 32 bits"));
        let mut all: Vec<u8> = std::iter::once(magic).chain(shape).flat_map(u32::to_be_bytes).collect();
        all.extend(bytes);
        fs::write(folder.join(format!("{part}-{kind}-ubyte")), all).expect("there is room");
    };
    file("images-idx3", 0x803, &[labels.len(), side, side], pixels);
    let labels: Vec<u8> = labels.iter().map(|&label| u8::try_from(label).expect("a digit")).collect();
    file("labels-idx1", 0x801, &[labels.len()], &labels);
}
