//! Images that stay in their files, and are read and decoded for each batch.

use std::fmt::Debug;
use std::fs;
use std::hash::Hasher;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use crate::bad::BadSamples;
use crate::decoding::Raw;
use crate::normalization::{Normalization, Normalize, Sums};
use crate::pipeline::part;
use crate::pixels::fitted;
use crate::snapshot::{Plan, Snapshot};
use crate::survey::{self, Survey};
use crate::{Augmentation, DataError, Dataset, Image, Kind, Options, Pass, Schema, Skipped, Split, Values};

/// Images of one split that stay in their files.
///
/// They are converted to greyscale, or to red, green and blue, and [resized and cropped](crate::Options::image_size) to one size.
#[derive(Debug, Clone)]
pub struct EncodedImages {
    store: Arc<dyn Store>,
    /// The indices of these images in the store.
    samples: Vec<usize>,
    /// Height, width and channels: 1 for greyscale, 3 for red, green and blue.
    shape: [usize; 3],
    augmentation: Augmentation,
    normalization: Option<Normalization>,
    notices: Vec<String>,
    snapshot: Option<Arc<Snapshot>>,
    /// The damaged samples of both splits, by their indices in the store.
    bad: BadSamples,
}

/// Stored images with their classes, by index over all files.
pub(super) trait Store: Debug + Send + Sync {
    /// Reads an image in its stored form, and its class.
    fn raw(&self, index: usize) -> Result<(Raw, u32), DataError>;

    /// Returns the error for an image with this problem.
    fn damaged(&self, index: usize, problem: &str) -> DataError;

    /// Adds to a hash all properties of an image that are known without decoding it.
    fn hash(&self, index: usize, hasher: &mut dyn Hasher) -> Result<(), DataError>;

    /// Returns the files that contain these images; none if the hash covers their content.
    fn paths(&self, indices: &[usize]) -> Vec<&Path>;
}

#[derive(Debug)]
pub(super) struct Files(pub(super) Vec<(PathBuf, u32)>);

impl Store for Files {
    fn raw(&self, index: usize) -> Result<(Raw, u32), DataError> {
        let (path, label) = &self.0[index];
        let bytes = part("reading", || fs::read(path)).map_err(DataError::read(path))?;
        Ok((Raw::Encoded(bytes), *label))
    }

    fn damaged(&self, index: usize, problem: &str) -> DataError {
        DataError::file(&self.0[index].0, problem)
    }

    fn hash(&self, index: usize, hasher: &mut dyn Hasher) -> Result<(), DataError> {
        let (path, label) = &self.0[index];
        let metadata = fs::metadata(path).map_err(DataError::read(path))?;
        hasher.write(path.file_name().unwrap_or_default().as_encoded_bytes());
        hasher.write(&metadata.len().to_le_bytes());
        hasher.write(&label.to_le_bytes());
        Ok(())
    }

    fn paths(&self, indices: &[usize]) -> Vec<&Path> {
        indices.iter().map(|&index| &*self.0[index].0).collect()
    }
}

impl dyn Store {
    fn read(&self, index: usize, channels: usize) -> Result<(Image, u32), DataError> {
        let (raw, label) = self.raw(index)?;
        let image = part("decoding", || raw.decode(channels));
        Ok((image.map_err(|problem| self.damaged(index, &problem))?, label))
    }

    /// Returns the error if none of these samples can be read.
    fn unreadable(&self, samples: &[usize]) -> DataError {
        let first = samples.iter().find_map(|&sample| self.read(sample, 1).err());
        first.unwrap_or_else(|| DataError::other("no image that was looked at can be read"))
    }
}

impl EncodedImages {
    /// Returns images in separate files, resized and cropped to this height and width, with one channel (greyscale) or three (red, green, blue). They
    /// are normalised by these statistics, by default by those of MNIST. Their classes are unknown, and reported as 0.
    pub fn of_files(files: &[PathBuf], shape: [usize; 3], normalization: Option<Normalization>) -> Self {
        let store = Arc::new(Files(files.iter().map(|file| (file.clone(), 0)).collect()));
        let images = Self::new(store, (0..files.len()).collect(), shape, BadSamples::default());
        Self { normalization, ..images }
    }

    fn new(store: Arc<dyn Store>, samples: Vec<usize>, shape: [usize; 3], bad: BadSamples) -> Self {
        Self {
            store,
            samples,
            shape,
            augmentation: Augmentation::default(),
            normalization: None,
            notices: Vec::new(),
            snapshot: None,
            bad,
        }
    }

    /// Returns the data set of the images in a store, with the indices of the training images and the held-out images. `schema` names the classes.
    /// `notice` informs the user how the images were found.
    pub(super) fn dataset(
        store: impl Store + 'static,
        (train, test): (Vec<usize>, Vec<usize>),
        options: &Options,
        (classes, schema): (usize, Schema),
        notice: Option<String>,
    ) -> Result<Dataset, DataError> {
        if options.image_size.is_some_and(|sides| sides.contains(&0)) {
            return Err(DataError::zero("a side of images"));
        }
        let store: Arc<dyn Store> = Arc::new(store);
        let header = |sample| store.raw(sample).ok()?.0.header().ok();
        let surveys = [&train, &test].map(|samples| Survey::of(samples, header));
        let Some(median) = surveys[0].median() else { return Err(store.unreadable(&train)) };
        let [height, width] = options.image_size.unwrap_or(median);
        let is_coloured = |sample| store.raw(sample).is_ok_and(|(raw, _)| raw.has_colour().unwrap_or(false));
        let is_colour = options.colour.unwrap_or_else(|| surveys[0].has_colour(is_coloured));
        let channels = if is_colour { 3 } else { 1 };
        let shape = [height, width, channels];
        let parts = surveys.iter().zip(["training", "held-out"]);
        let mut notices: Vec<_> =
            parts.filter_map(|(survey, part)| survey.notice(part, [height, width])).collect();
        if options.colour.is_none() && channels == 3 {
            notices.push("images are read in colour; --colour no reads them as grey".into());
        }
        let bad = BadSamples::new(options.on_bad_sample);
        let [mut train, mut test] =
            [train, test].map(|samples| Self::new(Arc::clone(&store), samples, shape, bad.clone()));
        let normalization = Normalize::resolved(options.normalize.as_ref(), channels, || train.sums())?;
        if let (Some(Normalize::Measured), Some(measured)) = (&options.normalize, &normalization) {
            notices.push(format!("images are normalised by the measured means and deviations {measured}"));
        }
        notices.extend(notice);
        let schema = Schema { normalization: normalization.clone(), ..schema };
        test.normalization.clone_from(&normalization);
        train = Self { normalization, augmentation: options.augmentation.clone(), notices, ..train };
        let kind = Kind::Images { height, width, channels, classes };
        Ok(Dataset { kind, train: Arc::new(train), test: Arc::new(test), schema })
    }

    fn sums(&self) -> Result<Sums, DataError> {
        let samples: Vec<_> = (0..self.samples.len()).collect();
        survey::sums(&samples, |sample| match self.image(sample) {
            Ok((image, _)) => Ok(Sums::of(&image.levels, image.channels)),
            // A damaged image is counted and named when a batch needs it.
            Err(error) if self.bad.may_skip(&error) => Ok(Sums::default()),
            Err(error) => Err(error),
        })
    }

    fn image(&self, sample: usize) -> Result<(Image, u32), DataError> {
        if let Some(snapshot) = &self.snapshot {
            let record = part("reading", || snapshot.record(sample))?;
            let parts = record.split_first_chunk().filter(|(_, levels)| levels.len() == self.values());
            let (label, levels) = parts.ok_or_else(|| {
                let directory = snapshot.directory.display();
                let problem = format!(
                    "was damaged when the snapshot `{directory}` was written: repair it and delete that directory"
                );
                self.store.damaged(self.samples[sample], &problem)
            })?;
            return Ok((Image::new(self.shape, levels.to_vec()), u32::from_le_bytes(*label)));
        }
        let [height, width, channels] = self.shape;
        let (image, label) = self.store.read(self.samples[sample], channels)?;
        Ok((part("resizing", || fitted(image, [height, width])), label))
    }

    /// Writes the missing part of a snapshot of these images, before augmentation. Returns the images that read from it, and the snapshot.
    pub(super) fn read_from(&self, plan: &Plan<'_>) -> Result<(Self, Arc<Snapshot>), DataError> {
        let record = |sample| match self.image(sample) {
            Ok((image, label)) => Ok([&label.to_le_bytes()[..], &image.levels].concat()),
            // An empty record stands for a skipped image.
            Err(error) => self.bad.judge(self.samples[sample], None, error).map(|()| Vec::new()),
        };
        let snapshot = Arc::new(plan.make(record)?);
        Ok((Self { snapshot: Some(Arc::clone(&snapshot)), ..self.clone() }, snapshot))
    }

    pub(super) fn record_bytes(&self) -> usize {
        size_of::<u32>() + self.values()
    }

    /// Adds to a hash everything that determines the decoded images, except their shape: besides [the properties](Self::hash) of their files, the time
    /// of the last change of their inodes. Programs that copy files can preserve the modification time, but not this one.
    pub(super) fn hash_state(&self, hasher: &mut Xxh3) -> Result<(), DataError> {
        self.hash(hasher)?;
        for path in self.store.paths(&self.samples) {
            let file = fs::metadata(path).map_err(DataError::read(path))?;
            hasher.update(&file.ctime().to_le_bytes());
            hasher.update(&file.ctime_nsec().to_le_bytes());
        }
        Ok(())
    }

    fn values(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Split for EncodedImages {
    fn len(&self) -> usize {
        self.samples.len()
    }

    /// Adds the names and sizes of files and members, or the checksums of records, to a hash.
    fn hash(&self, hasher: &mut dyn Hasher) -> Result<(), DataError> {
        self.samples.iter().try_for_each(|&sample| self.store.hash(sample, hasher))
    }

    /// Reads, decodes and, for training, augments these images. Leaves out damaged ones that may be skipped.
    fn gather(&self, samples: &[usize], pass: Pass) -> Result<(Values, Vec<u32>), DataError> {
        let mut levels = Vec::with_capacity(samples.len() * self.values());
        let mut targets = Vec::with_capacity(samples.len());
        for &sample in samples {
            match self.image(sample) {
                Ok((image, label)) => {
                    levels.extend(self.augmentation.apply(image, pass, sample).levels);
                    targets.push(label);
                }
                Err(error) => self.bad.judge(self.samples[sample], Some(pass), error)?,
            }
        }
        Ok((Values::Levels(levels), targets))
    }

    fn normalization(&self) -> Option<&Normalization> {
        self.normalization.as_ref()
    }

    fn skipped(&self, epoch: u64) -> Skipped {
        self.bad.news(epoch)
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }
}
