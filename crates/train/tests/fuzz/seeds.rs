//! Valid files, from which inputs are derived.

use std::io::Write as _;

use unisono_data::framing;

/// Returns an IDX file of bytes.
pub fn idx(shape: &[u32], byte: impl Fn(usize) -> u8) -> Vec<u8> {
    let mut file = vec![0, 0, 8, shape.len() as u8];
    file.extend(shape.iter().flat_map(|size| size.to_be_bytes()));
    let count: u32 = shape.iter().product();
    file.extend((0..count as usize).map(byte));
    file
}

pub fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut file = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    file.write_all(bytes).unwrap();
    file.finish().unwrap()
}

pub fn csv(rows: usize) -> String {
    let mut table = "width,\"height, in cm\",class\n".to_owned();
    for row in 0..rows {
        table += &format!("{}.5,-{row}e-1,{}\n", row * 3, ["red", "\"dark \"\"blue\"\"\""][row % 2]);
    }
    table
}

/// Returns an image file of a few pixels in this format.
pub fn picture(format: image::ImageFormat) -> Vec<u8> {
    let mut file = std::io::Cursor::new(Vec::new());
    let picture = image::GrayImage::from_fn(5, 4, |x, y| image::Luma([(x * 40 + y * 7) as u8]));
    picture.write_to(&mut file, format).unwrap();
    file.into_inner()
}

/// Returns a length-delimited field of a Protocol Buffers message.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length > 0x7f {
        field.push(length as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    field.extend(bytes);
    field
}

/// Returns a `tf.train.Example` of an image and a label.
pub fn example(image: &[u8], label: u8) -> Vec<u8> {
    let feature =
        |name: &str, values: Vec<u8>| field(1, &[field(1, name.as_bytes()), field(2, &values)].concat());
    let image = feature("image/encoded", field(1, &field(1, image)));
    // A packed list of numbers.
    let label = feature("label", field(3, &field(1, &[label])));
    field(1, &[image, label].concat())
}

/// Returns records in their frames.
pub fn records(records: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut file = Vec::new();
    records.into_iter().for_each(|record| framing::write(&mut file, &record).unwrap());
    file
}

/// Corrects the checksums of a PNG, as far as its chunks can be parsed.
pub fn checksummed_png(bytes: &[u8]) -> Vec<u8> {
    let mut file = bytes.to_vec();
    let mut at = 8;
    while let Some(length) = file.get(at..at + 4) {
        let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
        let Some(chunk) = file.get(at + 4..at.saturating_add(8).saturating_add(length)) else { break };
        let mut sum = flate2::Crc::new();
        sum.update(chunk);
        let end = at + 8 + length;
        let Some(place) = file.get_mut(end..end + 4) else { break };
        place.copy_from_slice(&sum.sum().to_be_bytes());
        at = end + 4;
    }
    file
}
