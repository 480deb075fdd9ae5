//! Reads the headers of images before training, for their sizes and colours.

use rayon::prelude::*;

use crate::DataError;
use crate::decoding::Header;
use crate::normalization::Sums;

/// The maximum number of images whose headers are read, or whose levels are summed.
const MOST: usize = 1000;
/// The maximum number of images that are decoded to detect colour: a header may claim colour for a greyscale image.
const MOST_DECODED: usize = 64;

/// The headers of the images of a part of a data set: of all, or of evenly spaced ones if there are many.
pub(super) struct Survey {
    /// The headers with the indices of their samples.
    headers: Vec<(usize, Header)>,
    looked: usize,
    images: usize,
}

/// Returns at most this many samples, evenly spaced.
fn spread(all: &[usize], most: usize) -> Vec<usize> {
    let count = all.len().min(most);
    (0..count).map(|at| all[at * all.len() / count]).collect()
}

/// Returns the sums over the levels of these images, or of evenly spaced ones if there are many.
pub(super) fn sums(
    samples: &[usize],
    own: impl Fn(usize) -> Result<Sums, DataError> + Send + Sync,
) -> Result<Sums, DataError> {
    let all: Vec<_> = spread(samples, MOST).into_par_iter().map(own).collect();
    all.into_iter().try_fold(Sums::default(), |sum, own| Ok(sum.and(own?)))
}

impl Survey {
    /// Surveys these samples by their headers. Damaged samples have none, and are named when they are read.
    pub(super) fn of(samples: &[usize], header: impl Fn(usize) -> Option<Header> + Sync) -> Self {
        let looked = spread(samples, MOST);
        let found: Vec<_> = looked.par_iter().map(|&sample| Some((sample, header(sample)?))).collect();
        let headers = found.into_iter().flatten().collect();
        Self { headers, looked: looked.len(), images: samples.len() }
    }

    /// Returns whether an image has colour, by decoding some of those whose headers allow it with `has_colour`.
    pub(super) fn has_colour(&self, has_colour: impl Fn(usize) -> bool + Send + Sync) -> bool {
        let maybe = self.headers.iter().filter(|(_, header)| header.may_have_colour);
        let maybe: Vec<_> = maybe.map(|(sample, _)| *sample).collect();
        spread(&maybe, MOST_DECODED).into_par_iter().any(has_colour)
    }

    pub(super) fn median(&self) -> Option<[usize; 2]> {
        if self.headers.is_empty() {
            return None;
        }
        Some([0, 1].map(|side| {
            let mut lengths: Vec<_> = self.headers.iter().map(|(_, header)| header.sides[side]).collect();
            lengths.sort_unstable();
            lengths[(lengths.len() - 1) / 2]
        }))
    }

    /// Returns a notice of the number of images with another size than `to`, if any.
    pub(super) fn notice(&self, part: &str, to: [usize; 2]) -> Option<String> {
        let others: Vec<_> =
            self.headers.iter().map(|(_, header)| header.sides).filter(|sides| *sides != to).collect();
        let range = |side: usize| {
            let lengths = || others.iter().map(|sides| sides[side]);
            let (least, most) = (lengths().min()?, lengths().max()?);
            Some(if least == most { least.to_string() } else { format!("{least} to {most}") })
        };
        let (height, width) = range(0).zip(range(1))?;
        let looked = match self.looked < self.images {
            true => format!("{} {part} images looked at, of {} in all,", self.looked, self.images),
            false => format!("{} {part} images", self.images),
        };
        let (count, [rows, columns]) = (others.len(), to);
        Some(format!(
            "{count} of {looked} are resized and cropped to {rows}x{columns} pixels (height x width): their heights are {height}, their \
             widths {width}; --image-size chooses another size"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(sides: &[[usize; 2]]) -> Survey {
        let samples: Vec<_> = (0..sides.len()).collect();
        let header =
            |sample: usize| Some(Header { sides: sides[sample], may_have_colour: sample.is_multiple_of(2) });
        Survey::of(&samples, header)
    }

    #[test]
    fn the_size_is_the_median_and_other_sizes_are_reported() {
        let mixed = survey(&[[30, 40], [50, 20], [30, 41], [30, 40], [10, 90]]);
        assert_eq!(mixed.median(), Some([30, 40]));
        assert!(mixed.has_colour(|sample| sample == 2));
        let notice = mixed.notice("training", [30, 40]).unwrap();
        let expected = "3 of 5 training images are resized and cropped to 30x40 pixels (height x width): their heights are 10 to 50, \
                        their widths 20 to 90; ";
        assert!(notice.starts_with(expected), "{notice}");
        assert_eq!(survey(&[[3, 4]; 7]).notice("training", [3, 4]), None);
        assert_eq!(survey(&[]).median(), None);
    }

    #[test]
    fn many_images_are_surveyed_at_equal_distances() {
        let sides: Vec<_> = (0..5000).map(|at| if at < 2500 { [8, 8] } else { [9, 9] }).collect();
        let notice = survey(&sides).notice("training", [8, 8]).unwrap();
        assert!(
            notice.starts_with("500 of 1000 training images looked at, of 5000 in all, are resized"),
            "{notice}"
        );
        assert_eq!(spread(&[0, 1, 2, 3, 4, 5], 3), [0, 2, 4]);
        assert_eq!(spread(&[1, 2], 3), [1, 2]);
    }
}
