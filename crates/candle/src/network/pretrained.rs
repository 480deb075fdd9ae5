//! Initialises parameters from a file.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use candle_core::safetensors::{BufferedSafetensors, Load};
use candle_core::{DType, Device, Error, Result, bail};

use super::Parameters;
use crate::error::text;
use crate::values::{overwrite, with_values};

impl Parameters {
    /// Overwrites the values of the existing parameters with the values of the same names in a `safetensors` file, of any floating-point type. The
    /// file may contain other names, and all its names may have a prefix, such as `transformer.` or `module.`.
    ///
    /// Returns the names of the parameters that are missing in the file or have another shape there, such as an output layer for other classes. These
    /// keep their values. A program that expects none must check the result.
    ///
    /// # Errors
    /// If the file cannot be read, has no parameter of the model, has several candidates for a name, or has values for it that are integers or not
    /// finite.
    #[must_use = "these parameters were not in the file"]
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Vec<String>> {
        let path = path.as_ref();
        let unreadable =
            |why| format!("cannot read `{}` as a safetensors file: {}", path.display(), text(why));
        let file = fs::read(path).map_err(Error::from).and_then(BufferedSafetensors::new);
        let file = file.map_err(|why| Error::Msg(unreadable(why)))?;
        let arrays: HashMap<_, _> = file.tensors().into_iter().collect();
        let all = self.all();
        let (mut fitting, mut left) = (Vec::new(), Vec::new());
        for array in &all {
            let name = &array.parameter.name;
            let is_meant = |found: &str| found.strip_suffix(&**name).is_some_and(|rest| rest.ends_with('.'));
            let mut prefixed = arrays.keys().filter(|found| is_meant(found));
            let found = match arrays.get(name) {
                Some(found) => Some(found),
                None => match (prefixed.next(), prefixed.next()) {
                    (Some(one), Some(other)) => {
                        let path = path.display();
                        bail!(
                            "{name} may be `{one}` or `{other}` in `{path}`: expected one name that ends so"
                        )
                    }
                    (one, _) => one.map(|name| &arrays[name]),
                },
            };
            match found.filter(|found| found.shape() == array.parameter.shape) {
                Some(found) => {
                    if !DType::try_from(found.dtype()).is_ok_and(|dtype| dtype.is_float()) {
                        let (dtype, path) = (found.dtype(), path.display());
                        bail!("{name} is of the type {dtype:?} in `{path}`: expected floating-point values")
                    }
                    let values = found.load(&Device::Cpu)?.to_dtype(DType::F32)?;
                    let spoiled = with_values(&values, |values| {
                        values.iter().copied().find(|value| !value.is_finite())
                    })?;
                    if let Some(value) = spoiled {
                        let path = path.display();
                        bail!(
                            "{name} holds {value} in `{path}`: expected finite values; use a file of an earlier step"
                        )
                    }
                    fitting.push((&array.tensor, values));
                }
                None => left.push(name.clone()),
            }
        }
        if fitting.is_empty() {
            let expected = all.first().map_or("parameters", |array| &array.parameter.name);
            bail!("`{}` has no parameter of the model: expected names such as `{expected}`", path.display());
        }
        for (tensor, values) in fitting {
            overwrite(tensor, &values.to_device(self.device())?)?;
        }
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Tensor, safetensors};

    use super::*;

    fn file(arrays: &[(&str, Tensor)]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let arrays: HashMap<_, _> = arrays.iter().cloned().collect();
        safetensors::save(&arrays, file.path()).unwrap();
        file
    }

    fn numbers(numbers: &[f32]) -> Tensor {
        Tensor::new(numbers, &Device::Cpu).unwrap()
    }

    #[test]
    fn values_are_loaded_by_name_with_any_prefix_and_float_type() {
        let parameters = Parameters::new(7);
        let all = ["a.weight", "b.weight", "c"].map(|name| parameters.add(name, 2, 0.1).unwrap());
        let before = all[2].to_vec1::<f32>().unwrap();
        let half = numbers(&[3.0, 4.0]).to_dtype(DType::BF16).unwrap();
        let saved = file(&[
            ("a.weight", numbers(&[1.0, 2.0])),
            ("model.b.weight", half),
            ("c", numbers(&[5.0; 3])),
            ("more", numbers(&[6.0]).to_dtype(DType::I64).unwrap()),
        ]);
        let mut bytes = fs::read(saved.path()).unwrap();
        // Candle has no tensors of this type.
        let start = bytes.windows(5).position(|text| text == br#""I64""#).expect("the type of `more`");
        bytes[start..start + 5].copy_from_slice(br#""U64""#);
        fs::write(saved.path(), bytes).unwrap();
        assert_eq!(parameters.load(saved.path()).unwrap(), ["c"]);
        let [a, b, c] = all.map(|tensor| tensor.to_vec1::<f32>().unwrap());
        assert_eq!((a, b, c), (vec![1.0, 2.0], vec![3.0, 4.0], before));
    }

    #[test]
    fn file_of_another_model_is_refused() {
        let parameters = Parameters::new(7);
        let scale = parameters.add("scale", 2, 0.1).unwrap();
        parameters.add("weight", 2, 0.1).unwrap();
        let before = scale.to_vec1::<f32>().unwrap();
        let refused =
            |arrays: &[(&str, Tensor)]| parameters.load(file(arrays).path()).unwrap_err().to_string();
        let other = refused(&[("bias", numbers(&[1.0, 2.0]))]);
        assert!(other.contains("has no parameter of the model: expected names such as `scale`"), "{other}");
        let integers = refused(&[("scale", numbers(&[1.0, 2.0]).to_dtype(DType::I64).unwrap())]);
        assert!(integers.contains("scale is of the type I64 in `"), "{integers}");
        let two = ["scale", "a.weight", "b.weight"].map(|name| (name, numbers(&[1.0, 2.0])));
        let two = refused(&two);
        assert!(two.contains("weight may be `") && two.contains("expected one name"), "{two}");
        let spoiled = refused(&[("scale", numbers(&[1.0, 2.0])), ("weight", numbers(&[1.0, f32::NAN]))]);
        assert!(spoiled.contains("weight holds NaN in `") && spoiled.contains("finite values"), "{spoiled}");
        assert_eq!(scale.to_vec1::<f32>().unwrap(), before, "an error changes nothing");
        let text = tempfile::NamedTempFile::new().unwrap();
        fs::write(text.path(), "no tensors").unwrap();
        let broken = parameters.load(text.path()).unwrap_err().to_string();
        assert!(broken.contains("as a safetensors file"), "{broken}");
    }
}
