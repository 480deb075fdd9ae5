//! Gradients and parameters that are not finite, by name.

use super::Buckets;
use crate::error::TrainError;
use crate::optimizer::Exploded;

impl Buckets {
    /// Notes the first gradient of a bucket that is not finite, after its compressor has found one.
    pub(super) fn find_not_finite(&mut self, bucket: usize) {
        let values = self.buckets[bucket].gradients.values();
        let wrong = |&index: &usize| {
            let range = self.ledger.place(index).range.clone();
            let found = values[range].iter().find(|value| !value.is_finite())?;
            Some((index, *found))
        };
        let members = &self.ledger.plan.members[bucket];
        // A residual may be spoiled though the result is not.
        let residual = members.first().map(|&index| (index, f32::NAN));
        self.not_finite = self.not_finite.or_else(|| members.iter().find_map(wrong).or(residual));
    }

    /// Checks the gradients of this step, which is the optimizer's `step`, in the buckets that have landed and were compressed:
    /// compressors look, since they would keep what is not finite.
    ///
    /// # Errors
    /// [`TrainError::NotFinite`] names the first parameter.
    pub(crate) fn check_finite(&self, step: u64) -> Result<(), TrainError> {
        self.not_finite.map_or(Ok(()), |(index, found)| Err(self.error_of("gradient", index, found, step)))
    }

    /// Returns the error for a parameter that an update has spoiled on this rank.
    #[doc(hidden)]
    pub fn exploded(&self, index: usize, Exploded { largest }: Exploded, step: u64) -> TrainError {
        self.error_of("largest value", index, largest, step)
    }

    fn error_of(&self, of: &'static str, index: usize, found: f32, step: u64) -> TrainError {
        let parameter = self.ledger.parameters[index].name.clone();
        TrainError::NotFinite { of, parameter, found, rank: self.rank, step }
    }
}
