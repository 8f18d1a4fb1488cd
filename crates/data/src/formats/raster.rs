//! `raster:FILE`: windows of TIFF files that may be larger than memory.

mod header;

use super::shared::files::{failed, length};
use super::shared::{finish, split};
use crate::core::budget::zeroed;
use crate::core::guard::guarded;
use crate::source::check_read;
use crate::{DataError, Dataset, Field, Normalise, OpenOptions, Pipeline, Record, Schema, Source};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tiff::ColorType;
use tiff::decoder::{ChunkType, Decoder, Limits};
use tiff::tags::Tag;

/// The largest tile or strip, decoded; each worker holds one.
const MAX_CHUNK_BYTES: usize = 64 << 20;
/// The longest list of tiles in the file, and the memory of a tile while the list is read.
const MAX_LIST_BYTES: usize = 1 << 20;
const TILE_BYTES: usize = 128;
/// Further memory of a reader: buffers, tables of the decompressor, the file's tags.
const READER_BYTES: usize = 128 << 10;
/// The value of pixels without a class.
const NO_CLASS: u32 = 255;

type Reader = Decoder<BufReader<File>>;

/// Windows of a raster with the classes of another, normalised band by band.
pub(super) fn open(spec: &str, file: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    let Some(label) = &options.table.label else {
        let reason = format!("`{spec}` needs the file with the classes of its pixels: name it as the label");
        return Err(DataError::Option { option: "label", reason });
    };
    let classes = match options.classes {
        Some(classes) => classes,
        None => Raster::count_classes(label)?,
    };
    let [height, width, _] = options.images.size;
    let windows = Raster::open(file, label, [height, width], classes)?;
    let bands = windows.bands();
    let (train, test) = split(spec, Pipeline::new(windows), None)?;
    let normalise = Normalise::measure_groups(&train, bands)?;
    finish(spec, train.apply(normalise.clone())?, test.apply(normalise)?, options)
}

/// Windows of a TIFF file, side by side: f32 `[height, width, bands]` with the file's numbers, and classes i32
/// `[height, width]` from a second file of the same size, where 255 is no class. Only the tiles or strips under a window are
/// decoded. The last windows of a row or column overlap those before, so that they cover the edges.
///
/// ```no_run
/// use plimsoll_data::{Raster, Source};
/// let fields = Raster::open("fields.tif", "classes.tif", [256, 256], 5)?;
/// println!("{} windows of {}", fields.len(), fields.schema().in_words());
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub struct Raster {
    bands: Layer,
    classes: Layer,
    window: [usize; 2],
    schema: Schema,
}

/// One file.
struct Layer {
    path: PathBuf,
    /// Height and width.
    size: [usize; 2],
    bands: usize,
    /// Bytes of a number.
    bytes: usize,
    /// Height and width of a tile or strip.
    chunk: [usize; 2],
    list_bytes: usize,
    /// A pool of idle readers.
    readers: Mutex<Vec<Reader>>,
}

impl Layer {
    fn open(path: &Path) -> Result<Self, DataError> {
        length(path)?;
        let wrong = |reason: String| DataError::Corrupt { reason: format!("`{}`: {reason}", path.display()) };
        let tiff = |e: tiff::TiffError| wrong(e.to_string());
        guarded(|| {
            // The library allocates lists before limits can be set.
            header::check(path, (MAX_LIST_BYTES / 4) as u64)?;
            let mut reader = reader(path, MAX_CHUNK_BYTES)?;
            let (width, height) = reader.dimensions().map_err(tiff)?;
            let colours = reader.colortype().map_err(tiff)?;
            let (bands, bits) = match colours {
                ColorType::Gray(bits) => (1, bits),
                ColorType::GrayA(bits) => (2, bits),
                ColorType::RGB(bits) => (3, bits),
                ColorType::RGBA(bits) => (4, bits),
                ColorType::Multiband { bit_depth, num_samples } => (usize::from(num_samples), bit_depth),
                other => return Err(wrong(format!("pixels of {other:?}; write bands of 8 or 16 bits"))),
            };
            let whole = reader.find_tag_unsigned_vec::<u16>(Tag::SampleFormat).map_err(tiff)?;
            let planes = reader.find_tag_unsigned::<u16>(Tag::PlanarConfiguration).map_err(tiff)?;
            if ![8, 16].contains(&bits) || whole.is_some_and(|kinds| kinds.iter().any(|kind| *kind != 1)) {
                return Err(wrong(
                    "numbers of another kind than 8 or 16 bits from 0 on; convert them".into(),
                ));
            }
            if planes.is_some_and(|planes| planes != 1) {
                return Err(wrong("bands one after another; write them pixel by pixel".into()));
            }
            let (columns, rows) = reader.chunk_dimensions();
            // A file with a single strip may announce any number of rows above its height.
            let strips = reader.get_chunk_type() == ChunkType::Strip;
            let rows = if strips { rows.min(height) } else { rows };
            let chunk = [rows, columns].map(|n| n as usize);
            let size = [height as usize, width as usize];
            let bytes = usize::from(bits) / 8;
            let area = chunk[0].checked_mul(chunk[1]).and_then(|n| n.checked_mul(bands * bytes));
            if size.contains(&0)
                || bands == 0
                || area.is_none_or(|bytes| !(1..=MAX_CHUNK_BYTES).contains(&bytes))
            {
                let [h, w] = chunk;
                return Err(wrong(format!(
                    "tiles of {h}×{w} pixels; at most {MAX_CHUNK_BYTES} bytes may be"
                )));
            }
            let tiles = size[0].div_ceil(chunk[0]).saturating_mul(size[1].div_ceil(chunk[1]));
            let list_bytes = tiles.saturating_mul(TILE_BYTES);
            if tiles > MAX_LIST_BYTES / 4 {
                return Err(wrong(format!("{tiles} tiles; write larger ones")));
            }
            let readers = Mutex::new(vec![reader.with_limits(limits(area.unwrap_or(0)))]);
            Ok(Self { path: path.to_path_buf(), size, bands, bytes, chunk, list_bytes, readers })
        })
    }

    fn chunk_bytes(&self) -> usize {
        self.chunk[0] * self.chunk[1] * self.bands * self.bytes
    }

    /// Passes every number of a window to a closure, with its index in the window.
    fn window(
        &self,
        corner: [usize; 2],
        size: [usize; 2],
        buffer: &mut [u8],
        mut each: impl FnMut(usize, u32),
    ) -> Result<(), DataError> {
        let lock = || self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = lock().pop();
        let mut reader = match kept {
            Some(reader) => reader,
            None => reader(&self.path, self.chunk_bytes())?,
        };
        let done = self.read(&mut reader, corner, size, buffer, &mut each);
        lock().push(reader);
        done
    }

    /// As [`Layer::window`], with a given reader.
    fn read(
        &self,
        reader: &mut Reader,
        corner: [usize; 2],
        size: [usize; 2],
        buffer: &mut [u8],
        each: &mut impl FnMut(usize, u32),
    ) -> Result<(), DataError> {
        let across = self.size[1].div_ceil(self.chunk[1]);
        let last = [0, 1].map(|axis| (corner[axis] + size[axis] - 1) / self.chunk[axis]);
        for down in corner[0] / self.chunk[0]..=last[0] {
            for right in corner[1] / self.chunk[1]..=last[1] {
                let start = [down * self.chunk[0], right * self.chunk[1]];
                // Tiles at the edges have fewer pixels.
                let extent = [0, 1].map(|axis| self.chunk[axis].min(self.size[axis] - start[axis]));
                let bytes = extent[0] * extent[1] * self.bands * self.bytes;
                let index = (down * across + right) as u32;
                reader.read_chunk_bytes(index, &mut buffer[..bytes]).map_err(|e| {
                    let reason = format!("`{}`: tile {index}: {e}", self.path.display());
                    DataError::Corrupt { reason }
                })?;
                let [from, to] = [0, 1].map(|axis| {
                    let low = corner[axis].max(start[axis]);
                    (low, (corner[axis] + size[axis]).min(start[axis] + extent[axis]))
                });
                for row in from.0..from.1 {
                    let line = (row - start[0]) * extent[1] + (to.0 - start[1]);
                    let line =
                        &buffer[line * self.bands * self.bytes..][..(to.1 - to.0) * self.bands * self.bytes];
                    let first = ((row - corner[0]) * size[1] + to.0 - corner[1]) * self.bands;
                    for (i, number) in line.chunks_exact(self.bytes).enumerate() {
                        let number = match *number {
                            [byte] => u32::from(byte),
                            [low, high] => u32::from(u16::from_ne_bytes([low, high])),
                            _ => 0,
                        };
                        each(first + i, number);
                    }
                }
            }
        }
        Ok(())
    }
}

/// The most compressed bytes of a tile of this size. Noise does not shrink: LZW then takes codes of up to 12 bits for every
/// byte, deflate a few bytes for every block. The library reads them through a small buffer of its own.
fn compressed_bytes(chunk_bytes: usize) -> usize {
    chunk_bytes.saturating_add(chunk_bytes / 2).saturating_add(1 << 10)
}

/// Limits of the library's memory for tiles of this size.
fn limits(chunk_bytes: usize) -> Limits {
    let mut limits = Limits::default();
    limits.decoding_buffer_size = chunk_bytes;
    limits.ifd_value_size = MAX_LIST_BYTES;
    limits.intermediate_buffer_size = compressed_bytes(chunk_bytes);
    limits
}

fn reader(path: &Path, chunk_bytes: usize) -> Result<Reader, DataError> {
    let file = BufReader::new(File::open(path).map_err(|e| failed(path, e))?);
    let reader = Decoder::new(file).map_err(|e| {
        let reason = format!("`{}`: {e}", path.display());
        DataError::Corrupt { reason }
    })?;
    Ok(reader.with_limits(limits(chunk_bytes)))
}

impl Raster {
    /// Windows of this height and width, with pixels of `class_count` classes.
    pub fn open(
        bands: impl AsRef<Path>,
        classes: impl AsRef<Path>,
        window: [usize; 2],
        class_count: usize,
    ) -> Result<Self, DataError> {
        let (bands, classes) = (Layer::open(bands.as_ref())?, Layer::open(classes.as_ref())?);
        let [height, width] = bands.size;
        if window.contains(&0) || window[0] > height || window[1] > width {
            let reason =
                format!("a window of {window:?} pixels does not lie in a raster of {height}×{width}");
            return Err(DataError::Option { option: "window", reason });
        }
        if classes.size != bands.size || classes.bands != 1 || !(1..=255).contains(&class_count) {
            let reason = format!(
                "`{}` has {:?} pixels of {} bands, `{}` {height}×{width}; give one band of as many, and 1 to 255 classes",
                classes.path.display(),
                classes.size,
                classes.bands,
                bands.path.display()
            );
            return Err(DataError::Option { option: "label", reason });
        }
        let input = Field::floats([window[0], window[1], bands.bands]);
        let schema = Schema::examples([input], Field::below(class_count, window));
        Ok(Self { bands, classes, window, schema })
    }

    /// Number of bands.
    pub fn bands(&self) -> usize {
        self.bands.bands
    }

    /// One more than the largest class in a file. Reads the whole file, tile by tile.
    pub fn count_classes(classes: impl AsRef<Path>) -> Result<usize, DataError> {
        let layer = Layer::open(classes.as_ref())?;
        let mut buffer = zeroed("a tile", layer.chunk_bytes() as u64)?;
        let mut most = None;
        for top in (0..layer.size[0]).step_by(layer.chunk[0]) {
            for left in (0..layer.size[1]).step_by(layer.chunk[1]) {
                let corner = [top, left];
                let size = [0, 1].map(|axis| layer.chunk[axis].min(layer.size[axis] - corner[axis]));
                guarded(|| {
                    layer.window(corner, size, &mut buffer, |_, class| {
                        most = most.max(Some(class).filter(|class| *class != NO_CLASS));
                    })
                })?;
            }
        }
        Ok(most.map_or(1, |class| class as usize + 1))
    }

    fn grid(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.bands.size[axis].div_ceil(self.window[axis]))
    }

    fn corner(&self, index: usize) -> [usize; 2] {
        let [_, across] = self.grid();
        let position = [index / across, index % across];
        [0, 1].map(|axis| (position[axis] * self.window[axis]).min(self.bands.size[axis] - self.window[axis]))
    }
}

impl Source for Raster {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> usize {
        self.grid()[0] * self.grid()[1]
    }

    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        check_read(self, index, record)?;
        let (corner, classes) = (self.corner(index), self.schema.classes().unwrap_or(1) as u32);
        let pixels = record.buffer_mut(0);
        self.bands.window(corner, self.window, scratch, |i, number| {
            pixels[4 * i..4 * i + 4].copy_from_slice(&(number as f32).to_ne_bytes());
        })?;
        let (labels, mut past) = (record.buffer_mut(1), None);
        self.classes.window(corner, self.window, scratch, |i, class| {
            let known = if class == NO_CLASS { -1 } else { class as i32 };
            past = past.or((class >= classes && class != NO_CLASS).then_some(class));
            labels[4 * i..4 * i + 4].copy_from_slice(&known.to_ne_bytes());
        })?;
        match past {
            Some(class) => {
                let reason = format!("a pixel has class {class} of {classes}");
                Err(DataError::Corrupt { reason })
            }
            None => Ok(()),
        }
    }

    fn resident_bytes(&self) -> usize {
        self.bands.path.capacity() + self.classes.path.capacity()
    }

    fn scratch_bytes(&self) -> usize {
        self.bands.chunk_bytes().max(self.classes.chunk_bytes())
    }

    fn decoder_bytes(&self, readers: usize) -> usize {
        // Each reader holds lists of the offsets and lengths of tiles.
        let lists = self.bands.list_bytes + self.classes.list_bytes + READER_BYTES;
        readers.saturating_mul(2 * lists + self.scratch_bytes())
    }

    fn origin(&self, index: usize, _: u64) -> String {
        let [top, left] = self.corner(index.min(self.len() - 1));
        format!("`{}`: window at row {top}, column {left}", self.bands.path.display())
    }
}
