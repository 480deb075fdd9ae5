//! Random augmentation of images, which reduces overfitting: a list of transforms.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::pipeline::part;
use crate::random::{AUGMENT, Random};
use crate::{DataError, Image, Pass};

mod transforms;

pub use transforms::{Affine, Crop, Erase, Jitter, Mirror};

/// A random transform of a training image, which preserves its size and class.
///
/// ```
/// use std::sync::Arc;
/// use unisono_data::{Augmentation, Image, Mirror, Options, Random, Transform};
///
/// /// Inverts every other image.
/// struct Invert;
///
/// impl Transform for Invert {
///     fn name(&self) -> String {
///         "invert".into()
///     }
///
///     fn apply(&self, mut image: Image, random: &mut Random) -> Image {
///         if random.coin() {
///             image.levels.iter_mut().for_each(|level| *level = 255 - *level);
///         }
///         image
///     }
/// }
///
/// let augmentation = Augmentation::new(vec![Arc::new(Mirror), Arc::new(Invert)]);
/// assert_eq!(augmentation.to_string(), "mirror,invert");
/// let options = Options { augmentation, ..Options::default() };
/// ```
pub trait Transform: Send + Sync {
    /// Returns its name with its parameters, such as `crop:4`. Transforms with equal names must behave identically: a checkpoint stores the name, so
    /// that a resumed run has the same augmentation.
    fn name(&self) -> String;

    /// Returns a variant of the image, of the same shape. All randomness must come from `random`, a separate stream for each sample and epoch. A
    /// variant then depends neither on the rank nor on the thread that makes it.
    fn apply(&self, image: Image, random: &mut Random) -> Image;
}

/// The transforms of training images, in order. Empty by default.
#[derive(Clone, Default)]
pub struct Augmentation {
    transforms: Vec<Arc<dyn Transform>>,
}

type New = fn(&[u32]) -> Arc<dyn Transform>;

/// The transforms by name, with their usual parameters. The shift and rotation of `affine` are small enough that a digit remains recognisable. The
/// padding of `crop` is usual for images of 32x32 pixels (He et al., "Deep residual learning for image recognition", 2015, section 4.2).
const CATALOGUE: [(&str, &[u32], New); 5] = [
    ("affine", &[2, 10], |of| Arc::new(Affine { pixels: of[0], degrees: of[1] })),
    ("crop", &[4], |of| Arc::new(Crop { padding: of[0] })),
    ("mirror", &[], |_| Arc::new(Mirror)),
    ("jitter", &[40], |of| Arc::new(Jitter { percent: of[0] })),
    ("erase", &[50], |of| Arc::new(Erase { percent: of[0] })),
];

impl Augmentation {
    /// Returns an augmentation that applies these transforms in order.
    pub fn new(transforms: Vec<Arc<dyn Transform>>) -> Self {
        Self { transforms }
    }

    /// Returns whether there are no transforms.
    pub fn is_empty(&self) -> bool {
        self.transforms.is_empty()
    }

    /// Returns the image of a sample in a pass: augmented for training, unchanged for evaluation. Panics if a transform changes the shape.
    pub(crate) fn apply(&self, image: Image, pass: Pass, sample: usize) -> Image {
        let Pass::Training { seed, epoch } = pass else { return image };
        if self.is_empty() {
            return image;
        }
        // Each sample has its own random stream, so the result does not depend on the batch or rank.
        let mut random = Random::new([seed, AUGMENT, epoch, sample as u64]);
        part("augmenting", || {
            self.transforms.iter().fold(image, |image, transform| {
                let shape = image.shape();
                let image = transform.apply(image, &mut random);
                let length = shape.iter().product();
                let is_same = (image.shape(), image.levels.len()) == (shape, length);
                assert!(is_same, "the transform `{}` has changed the shape of an image", transform.name());
                image
            })
        })
    }
}

/// Formats the names of the transforms, separated by commas, in the form that is parsed.
impl fmt::Display for Augmentation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.transforms.iter().map(|transform| transform.name()).collect();
        f.write_str(&names.join(","))
    }
}

impl fmt::Debug for Augmentation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Augmentation({self})")
    }
}

impl FromStr for Augmentation {
    type Err = DataError;

    fn from_str(names: &str) -> Result<Self, DataError> {
        let transform = |name: &str| {
            let mut words = name.split(':');
            let word = words.next().unwrap_or_default();
            let amounts: Option<Vec<u32>> = words.map(|amount| amount.parse().ok()).collect();
            let found = CATALOGUE.iter().find(|(known, ..)| *known == word).zip(amounts);
            let Some(((_, usual, new), amounts)) = found else {
                let known: Vec<_> = CATALOGUE.iter().map(|(name, ..)| *name).collect();
                let expected = known.join("`, `");
                return Err(DataError::other(format!(
                    "unknown transform `{name}`: expected `{expected}`, also with amounts, as in `crop:8`"
                )));
            };
            let problem = match &*amounts {
                [] => return Ok(new(usual)),
                found if found.len() != usual.len() => {
                    let (found, expected) = (found.len(), usual.len());
                    format!("transform `{word}` has {found} amounts: expected {expected}, or none")
                }
                [percent] if word == "erase" && *percent > 100 => {
                    format!("transform `{name}` erases {percent} %: expected at most 100")
                }
                amounts => return Ok(new(amounts)),
            };
            Err(DataError::other(problem))
        };
        names.split(',').map(transform).collect::<Result<_, _>>().map(Self::new)
    }
}

#[cfg(test)]
mod tests;
