//! A class for each pixel: masks of pictures as PNG files with a palette.

use super::super::text::escaped;
use super::super::trained::Trained;
use super::super::{Failure, say};
use super::PredictOptions;
use super::given::Given;
use super::output::{Form, Sink};
use plimsoll::data::{Pictures, Preparation};
use plimsoll::memory::measured_peak;
use plimsoll::plan::Entry;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Memory of the PNG encoder: the state of its compressor, and buffers.
const ENCODER_BYTES: usize = 512 << 10;
/// How many classes of a picture are told where no number is given.
const MOST_TOLD: usize = 3;

/// Predicts the windows of each picture, joins them, and writes a mask of the picture's size.
pub fn run(options: &PredictOptions, given: Given) -> Result<(), Failure> {
    let Some(pictures) = given.pictures() else { return Err(Failure::usage("these are no pictures")) };
    let out = options.out.as_deref().map(|folder| Folder::new(folder, &pictures)).transpose()?;
    let (mut trained, _) = given.trained(options)?;
    let classes = trained.classes.unwrap_or(1);
    if classes > 256 {
        return Err(Failure::usage(format!("{classes} classes: a mask has at most 256")));
    }
    let largest = (0..pictures.files().len()).map(|file| pictures.resized(file).iter().product::<usize>());
    let bytes = largest.max().unwrap_or(0).saturating_add(ENCODER_BYTES);
    trained.trainer = trained.trainer.outside(Entry::new("masks", bytes, "one picture's classes, its file"));
    let (mut session, planned) =
        trained.session(options.trained.json, options.trained.sheet && out.is_some())?;
    let json = options.trained.json && out.is_none();
    let mut sink = Sink::create(None, if json { Form::Objects } else { Form::Lines })?;
    let mut mask = Mask { pictures: pictures.clone(), file: 0, classes: Vec::new() };
    let (mut record, mut written) = (0, 0);
    let mut finish = |mask: &mut Mask| -> Result<(), Failure> {
        let path = out.as_ref().map(|out| out.path(mask.file));
        if let Some(path) = &path {
            mask.write(path, classes)?;
        }
        let told = mask.told(&trained, options.top.max(MOST_TOLD), path.as_deref());
        if json {
            sink.object(written == 0, &told.1)?
        } else {
            sink.line(&told.0)?
        }
        written += 1;
        Ok(())
    };
    session.predict_each(trained.part(), |outputs| {
        let scores = outputs[0].as_f32().unwrap_or_default();
        let pixels: usize = pictures.window_size().iter().product();
        for window in scores.chunks_exact((pixels * classes).max(1)) {
            let place = pictures.window(record);
            if place.file != mask.file {
                finish(&mut mask)?;
            }
            mask.add(place.file, place.corner, window, classes);
            record += 1;
        }
        Ok::<(), Failure>(())
    })?;
    finish(&mut mask)?;
    let measured = measured_peak();
    let figures =
        json!({ "pictures": written, "planned_peak_bytes": planned, "measured_peak_bytes": measured });
    sink.finish(written, &figures)?;
    if let Some(out) = &out {
        say(&format!("\nWrote masks to {}", escaped(out.folder.display())));
    }
    super::finish(options, written, "pictures", (planned, measured), &figures);
    Ok(())
}

/// The folder of the masks.
struct Folder {
    folder: PathBuf,
    /// The name of each picture's mask.
    names: Vec<String>,
}

impl Folder {
    /// Makes the folder. No mask replaces a picture that is read.
    fn new(folder: &Path, pictures: &Pictures) -> Result<Self, Failure> {
        let shown = folder.display().to_string();
        let wrong = |reason: &str| Failure::usage(escaped(format!("--out {shown}: {reason}")));
        if folder.extension().is_some_and(|e| ["csv", "npy", "json", "png"].iter().any(|x| e == *x)) {
            return Err(wrong(
                "the model has a class for each pixel, and writes a mask for each picture: name a folder",
            ));
        }
        std::fs::create_dir_all(folder).map_err(|e| wrong(&e.to_string()))?;
        let (mut taken, mut names) = (BTreeSet::new(), Vec::new());
        for file in pictures.files() {
            let stem =
                file.path.file_stem().map_or("picture".into(), |stem| stem.to_string_lossy().into_owned());
            let tried = std::iter::once(format!("{stem}.png"));
            let mut tried = tried.chain((2..).map(|i| format!("{stem}-{i}.png")));
            let name = tried.find(|name| !taken.contains(name)).unwrap_or_default();
            let real = |path: &Path| std::fs::canonicalize(path).ok();
            if real(&folder.join(&name)).is_some_and(|there| Some(there) == real(&file.path)) {
                return Err(wrong(
                    "the pictures are there, and masks would replace them: name another folder",
                ));
            }
            taken.insert(name.clone());
            names.push(name);
        }
        Ok(Self { folder: folder.to_path_buf(), names })
    }

    fn path(&self, file: usize) -> PathBuf {
        self.folder.join(&self.names[file])
    }
}

/// The classes of one picture's pixels, in the size in which the model sees it.
struct Mask {
    pictures: Arc<Pictures>,
    file: usize,
    classes: Vec<u8>,
}

impl Mask {
    /// Adds a window of a picture; the first one of another picture starts anew.
    fn add(&mut self, file: usize, [top, left]: [usize; 2], scores: &[f32], classes: usize) {
        let ([height, width], [_, columns]) = (self.pictures.resized(file), self.pictures.window_size());
        if file != self.file || self.classes.is_empty() {
            self.file = file;
            self.classes.clear();
            self.classes.resize(height * width, 0);
        }
        for (pixel, scores) in scores.chunks_exact(classes.max(1)).enumerate() {
            let (y, x) = (top + pixel / columns, left + pixel % columns);
            let best = (1..classes).fold(0, |best, i| if scores[i] > scores[best] { i } else { best });
            self.classes[y * width + x] = best as u8;
        }
    }

    /// The class of a pixel of the picture.
    fn class(&self, [y, x]: [usize; 2]) -> u8 {
        let (size, seen) = (self.pictures.files()[self.file].size, self.pictures.resized(self.file));
        let nearest = |at: usize, axis: usize| {
            let place = (at as f64 + 0.5) * seen[axis] as f64 / size[axis] as f64;
            (place as usize).min(seen[axis] - 1)
        };
        self.classes[nearest(y, 0) * seen[1] + nearest(x, 1)]
    }

    /// Writes the mask, line by line. The file gets its name when it is complete.
    fn write(&self, path: &Path, classes: usize) -> Result<(), Failure> {
        let partial = path.with_extension("png.partial");
        let wrong = |e: String| {
            let _ = std::fs::remove_file(&partial);
            Failure::run(escaped(format!("{}: {e}", path.display())))
        };
        let [height, width] = self.pictures.files()[self.file].size;
        let write = || -> Result<(), png::EncodingError> {
            let mut encoder =
                png::Encoder::new(BufWriter::new(File::create(&partial)?), width as u32, height as u32);
            encoder.set_color(png::ColorType::Indexed);
            encoder.set_palette((0..classes).flat_map(|class| colour(class as u8)).collect::<Vec<u8>>());
            let mut writer = encoder.write_header()?;
            let mut lines = writer.stream_writer()?;
            for y in 0..height {
                let line: Vec<u8> = (0..width).map(|x| self.class([y, x])).collect();
                lines.write_all(&line)?;
            }
            lines.finish()?;
            writer.finish()
        };
        write().map_err(|e| wrong(e.to_string()))?;
        std::fs::rename(&partial, path).map_err(|e| wrong(e.to_string()))
    }

    /// The share of the classes of the picture, as a line and as an object.
    fn told(&self, trained: &Trained, most: usize, path: Option<&Path>) -> (String, Value) {
        let names: &Preparation = &trained.preparation;
        let mut counts = [0usize; 256];
        self.classes.iter().for_each(|class| counts[usize::from(*class)] += 1);
        let mut order: Vec<usize> = (0..256).filter(|class| counts[*class] > 0).collect();
        order.sort_by_key(|class| std::cmp::Reverse(counts[*class]));
        let share = |class: usize| counts[class] as f64 / self.classes.len().max(1) as f64;
        let words = order
            .iter()
            .take(most)
            .map(|&class| format!("{} {:.1} %", escaped(names.class(class)), share(class) * 100.0));
        let file = self.pictures.files()[self.file].path.display().to_string();
        let line = format!("{:<32}  {}", escaped(&file), words.collect::<Vec<_>>().join(", "));
        let shares: Vec<Value> = order
            .iter()
            .map(|&class| json!({ "class": names.class(class), "index": class, "share": share(class) }))
            .collect();
        let path = path.map(|path| path.display().to_string());
        (line, json!({ "file": file, "mask": path, "classes": shares }))
    }
}

/// The colour of a class: class 0 is black, others differ in the high bits of their channels, as in Pascal VOC.
fn colour(class: u8) -> [u8; 3] {
    let channel = |channel: u8| {
        (0..3).fold(0, |value, bit| {
            value | (class >> (3 * bit + channel).min(7) & u8::from(3 * bit + channel < 8)) << (7 - bit)
        })
    };
    [channel(0), channel(1), channel(2)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_the_colours_of_pascal_voc() {
        let known = [[0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0], [0, 0, 128]];
        assert_eq!([0, 1, 2, 3, 4].map(colour), known);
        assert_eq!((colour(8), colour(15), colour(255)), ([64, 0, 0], [192, 128, 128], [224, 224, 192]));
        let all: BTreeSet<[u8; 3]> = (0..=255).map(colour).collect();
        assert_eq!(all.len(), 256);
    }
}
