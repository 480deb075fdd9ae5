//! The values of a column of a record batch. What is missing may be anything.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrowPrimitiveType, downcast_integer_array};
use arrow_schema::DataType;

/// The values of an array, or those in its dictionary that it refers to, as `plain` makes them; `None` if they are of a type
/// that `plain` does not know.
pub(super) fn unpacked<T: Clone>(
    array: &dyn Array,
    plain: impl Fn(&dyn Array) -> Option<Vec<T>>,
) -> Option<Vec<T>> {
    let Some(dictionary) = array.as_any_dictionary_opt() else { return plain(array) };
    let values = plain(dictionary.values())?;
    if values.is_empty() {
        return Some(values);
    }
    Some(dictionary.normalized_keys().into_iter().map(|key| values[key].clone()).collect())
}

/// Numbers.
pub(super) fn numbers(array: &dyn Array) -> Option<Vec<f64>> {
    fn wide<T: ArrowPrimitiveType<Native: Into<f64>>>(array: &dyn Array) -> Vec<f64> {
        array.as_primitive::<T>().values().iter().map(|&value| value.into()).collect()
    }
    Some(downcast_integer_array!(
        array => array.values().iter().map(|&value| value as f64).collect(),
        DataType::Boolean => array.as_boolean().values().iter().map(|value| f64::from(u8::from(value))).collect(),
        DataType::Float16 => wide::<Float16Type>(array),
        DataType::Float32 => wide::<Float32Type>(array),
        DataType::Float64 => wide::<Float64Type>(array),
        _ => return None,
    ))
}

/// Labels: words or numbers.
pub(super) fn texts(array: &dyn Array) -> Option<Vec<String>> {
    fn shown<T: ArrowPrimitiveType<Native: ToString>>(array: &dyn Array) -> Vec<String> {
        array.as_primitive::<T>().values().iter().map(ToString::to_string).collect()
    }
    fn words<'a>(values: impl Iterator<Item = Option<&'a str>>) -> Vec<String> {
        values.map(|value| value.unwrap_or_default().trim().to_owned()).collect()
    }
    Some(downcast_integer_array!(
        array => array.values().iter().map(ToString::to_string).collect(),
        DataType::Boolean => array.as_boolean().values().iter().map(|value| value.to_string()).collect(),
        DataType::Float16 => shown::<Float16Type>(array),
        DataType::Float32 => shown::<Float32Type>(array),
        DataType::Float64 => shown::<Float64Type>(array),
        DataType::Utf8 => words(array.as_string::<i32>().iter()),
        DataType::LargeUtf8 => words(array.as_string::<i64>().iter()),
        DataType::Utf8View => words(array.as_string_view().iter()),
        _ => return None,
    ))
}
