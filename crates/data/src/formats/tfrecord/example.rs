//! tf.train.Example, the content of a TFRecord.

use crate::transforms::image::Header;
use crate::{DataError, Field, Record, Schema};
use prost::encoding::{WireType, decode_key, decode_varint};

/// Names of the label, unless one is given.
const LABELS: [&str; 5] = ["image/class/label", "label", "labels", "y", "target"];
/// Names of the picture, if several features hold one.
const IMAGES: [&str; 2] = ["image/encoded", "image"];
/// The most numbers of a record.
const MAX_NUMBERS: usize = 1 << 24;
/// The bound of classes.
const MAX_CLASSES: i64 = 1 << 24;

fn cut() -> DataError {
    DataError::Corrupt { reason: "the tf.train.Example is cut short or damaged".into() }
}

/// A field of a protocol buffer.
enum Wire<'a> {
    Number(u64),
    Word([u8; 4]),
    Bytes(&'a [u8]),
}

/// The fields of a message, one after another.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: u64) -> Result<&'a [u8], DataError> {
        let length = usize::try_from(length).ok().filter(|length| *length <= self.0.len()).ok_or_else(cut)?;
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(taken)
    }

    fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, DataError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let (tag, wire) = decode_key(&mut self.0).map_err(|_| cut())?;
        let wire = match wire {
            WireType::Varint => Wire::Number(decode_varint(&mut self.0).map_err(|_| cut())?),
            WireType::ThirtyTwoBit => Wire::Word(self.take(4)?.try_into().map_err(|_| cut())?),
            WireType::SixtyFourBit => Wire::Bytes(self.take(8)?),
            WireType::LengthDelimited => {
                let length = decode_varint(&mut self.0).map_err(|_| cut())?;
                Wire::Bytes(self.take(length)?)
            }
            WireType::StartGroup | WireType::EndGroup => return Err(cut()),
        };
        Ok(Some((tag, wire)))
    }
}

/// The values of a feature, still encoded.
#[derive(Clone, Copy)]
enum Values<'a> {
    Bytes(&'a [u8]),
    Floats(&'a [u8]),
    Integers(&'a [u8]),
}

impl<'a> Values<'a> {
    /// The first of a list of bytes.
    fn bytes(self) -> Option<&'a [u8]> {
        let Self::Bytes(list) = self else { return None };
        match Fields(list).next() {
            Ok(Some((1, Wire::Bytes(bytes)))) => Some(bytes),
            _ => None,
        }
    }

    /// Passes each number to a closure, with its index; returns their count.
    fn numbers(self, mut each: impl FnMut(usize, f32, i64)) -> Result<usize, DataError> {
        let (list, floats) = match self {
            Self::Floats(list) => (list, true),
            Self::Integers(list) => (list, false),
            Self::Bytes(_) => return Err(cut()),
        };
        let (mut fields, mut count) = (Fields(list), 0);
        let mut give = |value: f32, whole: i64| {
            each(count, value, whole);
            count += 1;
        };
        while let Some(field) = fields.next()? {
            match field {
                (1, Wire::Bytes(packed)) if floats => {
                    for word in packed.chunks(4) {
                        give(f32::from_le_bytes(word.try_into().map_err(|_| cut())?), 0);
                    }
                }
                (1, Wire::Word(word)) if floats => give(f32::from_le_bytes(word), 0),
                (1, Wire::Bytes(mut packed)) => {
                    while !packed.is_empty() {
                        let whole = decode_varint(&mut packed).map_err(|_| cut())? as i64;
                        give(whole as f32, whole);
                    }
                }
                (1, Wire::Number(whole)) => give(whole as i64 as f32, whole as i64),
                _ => {}
            }
        }
        Ok(count)
    }
}

/// Passes each feature of an example to a closure, in the order of the record.
fn features<'a>(
    example: &'a [u8],
    mut each: impl FnMut(&'a str, Values<'a>) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let mut example = Fields(example);
    while let Some(field) = example.next()? {
        let (1, Wire::Bytes(entries)) = field else { continue };
        let mut entries = Fields(entries);
        while let Some(entry) = entries.next()? {
            let (1, Wire::Bytes(entry)) = entry else { continue };
            let (mut entry, mut key, mut value) = (Fields(entry), None, None);
            while let Some(field) = entry.next()? {
                match field {
                    (1, Wire::Bytes(name)) => key = std::str::from_utf8(name).ok(),
                    (2, Wire::Bytes(feature)) => value = Some(feature),
                    _ => {}
                }
            }
            let (Some(key), Some(value)) = (key, value) else { continue };
            let mut value = Fields(value);
            while let Some(list) = value.next()? {
                match list {
                    (1, Wire::Bytes(list)) => each(key, Values::Bytes(list))?,
                    (2, Wire::Bytes(list)) => each(key, Values::Floats(list))?,
                    (3, Wire::Bytes(list)) => each(key, Values::Integers(list))?,
                    _ => {}
                }
            }
        }
    }
    Ok(())
}

/// The features in use, decided by the first example.
#[derive(Debug, PartialEq)]
pub(crate) struct Layout {
    label: String,
    /// Whether labels are values, not classes.
    pub values: bool,
    inputs: Inputs,
}

#[derive(Debug, PartialEq)]
enum Inputs {
    /// The feature with the bytes of a picture.
    Image(String),
    /// Features of numbers, sorted by name, each with its first index and its count.
    Numbers(Vec<(String, usize, usize)>),
}

impl Layout {
    /// The layout of an example.
    pub fn of(example: &[u8], label: Option<&str>) -> Result<Self, DataError> {
        let mut found: Vec<(&str, Values<'_>, usize)> = Vec::new();
        features(example, |key, values| {
            let count = if let Values::Bytes(_) = values { 1 } else { values.numbers(|_, _, _| ())? };
            found.push((key, values, count));
            Ok(())
        })?;
        found.sort_by_key(|(key, ..)| *key);
        let known: Vec<&str> = found.iter().map(|(key, ..)| *key).collect();
        let has = |name: &&str| known.contains(name);
        let Some(label) = label
            .filter(|name| has(name))
            .or_else(|| if label.is_some() { None } else { LABELS.into_iter().find(has) })
        else {
            let reason = format!("the records hold {}; name the one that is the label", known.join(", "));
            return Err(DataError::Option { option: "label", reason });
        };
        let values = match found.iter().find(|(key, ..)| *key == label) {
            Some((_, Values::Floats(_), 1)) => true,
            Some((_, Values::Integers(_), 1)) => false,
            _ => {
                let reason = format!("`{label}` is not one number; name another, or write it as one");
                return Err(DataError::Option { option: "label", reason });
            }
        };
        let pictures = found.iter().filter(|(key, values, _)| {
            *key != label && values.bytes().is_some_and(|bytes| Header::parse(bytes).is_ok())
        });
        let pictures: Vec<&str> = pictures.map(|(key, ..)| *key).collect();
        let image = IMAGES.into_iter().find(|name| pictures.contains(name)).or(pictures.first().copied());
        if let Some(image) = image {
            return Ok(Self { label: label.into(), values, inputs: Inputs::Image(image.into()) });
        }
        let mut numbers = Vec::new();
        let mut start = 0;
        for (key, values, count) in &found {
            if *key != label && !matches!(values, Values::Bytes(_)) && *count > 0 {
                numbers.push((key.to_string(), start, *count));
                start += count;
            }
        }
        if numbers.is_empty() || start > MAX_NUMBERS {
            let reason = format!(
                "the records hold {}: neither a picture nor numbers besides the label, or more than {MAX_NUMBERS}",
                known.join(", ")
            );
            return Err(DataError::Option { option: "tfrecord", reason });
        }
        Ok(Self { label: label.into(), values, inputs: Inputs::Numbers(numbers) })
    }

    /// Columns of records of at most `longest` bytes.
    pub fn schema(&self, longest: usize, classes: usize) -> Schema {
        let label = if self.values { Field::floats([1]) } else { Field::below(classes, []) };
        let schema = match &self.inputs {
            Inputs::Image(name) => Schema::new().bytes(name, longest),
            Inputs::Numbers(numbers) => {
                let count = numbers.iter().map(|(_, _, count)| count).sum::<usize>();
                Schema::new().tensor("features", Field::floats([count]))
            }
        };
        schema.tensor(&self.label, label)
    }

    /// The class of an example, or -1 where it is unreadable or not a class: an error when it is used.
    pub fn class(&self, example: &[u8]) -> i64 {
        let mut class = -1;
        let _ = features(example, |key, values| {
            if key == self.label {
                values.numbers(|_, _, whole| class = whole)?;
            }
            Ok(())
        });
        if class < MAX_CLASSES { class } else { -1 }
    }

    /// Writes an example into a record.
    pub fn write(&self, example: &[u8], classes: usize, record: &mut Record<'_>) -> Result<(), DataError> {
        let corrupt = |reason: String| DataError::Corrupt { reason };
        let (mut labelled, mut written) = (false, 0);
        features(example, |key, values| {
            if key == self.label {
                let mut label = (0.0, 0);
                let count = values.numbers(|_, value, whole| label = (value, whole))?;
                if count != 1 || matches!(values, Values::Floats(_)) != self.values {
                    return Err(corrupt(format!("`{key}` is not one number as in the first record")));
                }
                labelled = true;
                if self.values {
                    return record.put_f32(1, &[label.0]);
                }
                if label.1 >= classes as i64 {
                    return Err(corrupt(format!("label {} is none of the {classes} classes", label.1)));
                }
                return record.put_i32(1, label.1.max(-1) as i32);
            }
            match &self.inputs {
                Inputs::Image(name) if name == key => {
                    let bytes = values.bytes().ok_or_else(|| corrupt(format!("`{key}` holds no bytes")))?;
                    written += 1;
                    record.put(0, bytes)
                }
                Inputs::Image(_) => Ok(()),
                Inputs::Numbers(numbers) => {
                    let index = numbers.binary_search_by(|(name, ..)| name.as_str().cmp(key));
                    let Ok(index) = index else { return Ok(()) };
                    let (_, start, count) = &numbers[index];
                    let buffer = &mut record.buffer_mut(0)[4 * start..4 * (start + count)];
                    let found = values.numbers(|i, value, _| {
                        if let Some(word) = buffer.get_mut(4 * i..4 * i + 4) {
                            word.copy_from_slice(&value.to_ne_bytes());
                        }
                    })?;
                    if found != *count {
                        let reason = format!("`{key}` has {found} numbers, {count} in the first record");
                        return Err(corrupt(reason));
                    }
                    written += 1;
                    Ok(())
                }
            }
        })?;
        let wanted = if let Inputs::Numbers(numbers) = &self.inputs { numbers.len() } else { 1 };
        if !labelled || written != wanted {
            let what = if labelled { "a feature of the first record" } else { &self.label };
            return Err(corrupt(format!("{what} is missing, or occurs twice")));
        }
        Ok(())
    }
}
