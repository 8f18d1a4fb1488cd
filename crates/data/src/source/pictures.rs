//! Picture files without labels, as a trained model takes them.

use crate::core::budget::zeroed;
use crate::formats::shared::files::{failed, length};
use crate::formats::shared::image_files::{MAX_FILE_BYTES, is_image, read_into};
use crate::source::check_read;
use crate::transforms::image::{Header, Need, Needs};
use crate::{DataError, Decode, Field, PicturePreparation, Record, Schema, Source, Stage};
use plimsoll_tensor::TensorType;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most windows of one picture.
const MAX_WINDOWS: usize = 1 << 16;
/// The most pixels of a picture where no limit is given.
const MAX_PIXELS: usize = 64 << 20;

/// What [`Pictures::open`] makes of picture files.
///
/// ```
/// use plimsoll_data::{Field, PictureOptions};
/// let options = PictureOptions::new(Field::floats([32, 32, 3]), Field::below(10, []));
/// assert!(!options.tiled);
/// ```
#[derive(Clone, Debug)]
pub struct PictureOptions {
    /// The model's input: f32 or bf16 `[height, width, channels]`.
    pub input: Field,
    /// The type of labels, which are zeros.
    pub label: Field,
    /// Whether windows side by side cover the whole picture; else one window is taken, from the centre.
    pub tiled: bool,
    /// The most pixels of a picture [default: 64 million].
    pub most_pixels: Option<usize>,
    /// The most bytes of the list of files.
    pub max_bytes: usize,
}

impl PictureOptions {
    /// One window of each picture.
    pub fn new(input: Field, label: Field) -> Self {
        Self { input, label, tiled: false, most_pixels: None, max_bytes: crate::DEFAULT_MAX_BYTES }
    }
}

/// Picture files in the order in which they were given, decoded as a [`PicturePreparation`] says: a record for each window.
///
/// ```no_run
/// use plimsoll_data::{Field, InputPreparation, OpenOptions, PictureOptions, Pictures, Source, open};
/// let digits = open("mnist", &OpenOptions::default())?;
/// let InputPreparation::Picture(picture) = &digits.train.preparation().input else { return Ok(()) };
/// let options = PictureOptions::new(Field::floats(picture.size), Field::below(10, []));
/// let mine = Pictures::open(&["seven.png".into(), "more-digits".into()], picture, &options)?;
/// println!("{} pictures, the first is {}", mine.len(), mine.file(0).path.display());
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub struct Pictures {
    decode: Decode,
    files: Vec<PictureFile>,
    windows: usize,
    tiled: bool,
    schema: Schema,
    /// Bytes of the longest file.
    longest: usize,
}

/// A picture file.
#[derive(Clone, Debug)]
pub struct PictureFile {
    /// Its path, as it was given or found.
    pub path: PathBuf,
    /// Height and width.
    pub size: [usize; 2],
    /// Whether it has colours, not grey values alone.
    pub colour: bool,
    /// Its first window among all.
    first: usize,
}

/// A window of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureWindow {
    /// The number of the picture.
    pub file: usize,
    /// Top and left, in pixels of the resized picture.
    pub corner: [usize; 2],
}

impl Pictures {
    /// Reads the headers of these files, and of the JPEG and PNG files in these folders and the folders in them.
    pub fn open(
        paths: &[PathBuf],
        preparation: &PicturePreparation,
        options: &PictureOptions,
    ) -> Result<Self, DataError> {
        let (size, most_pixels) = (picture_size(&options.input)?, options.most_pixels.unwrap_or(MAX_PIXELS));
        let listed = list(paths, options.max_bytes)?;
        let mut longest = 0;
        for path in &listed {
            longest = length(path)?.min(MAX_FILE_BYTES).max(longest);
        }
        let mut buffer = zeroed("a file", longest)?;
        // A window must fit into every picture, whatever a damaged file says.
        let side = preparation.resized_side().max(size[0]).max(size[1]);
        let decode = |most| {
            let decode = Decode::new(size, most).resize(side);
            let decode = decode.normalise(preparation.mean, preparation.deviation);
            if options.input.ty.dtype.bytes() == 2 { decode.bf16() } else { decode }
        };
        let plain = decode(0);
        let (mut files, mut windows, mut largest) = (Vec::with_capacity(listed.len()), 0, 1);
        let mut needs = Vec::with_capacity(listed.len());
        for path in listed {
            let read = header(&path, &mut buffer, most_pixels);
            let header = read.map_err(|e| e.of(|| format!("`{}`", path.display())))?;
            let (size, colour) = (header.size(), header.is_colour());
            needs.push(plain.need(&header));
            largest = size[0].saturating_mul(size[1]).max(largest);
            let count = if options.tiled { tiles(&plain, size, &path)?.iter().product() } else { 1 };
            files.push(PictureFile { path, size, colour, first: windows });
            windows += count;
        }
        let [height, width, channels] = size;
        let ty = TensorType::new(options.input.ty.dtype, [height, width, channels]);
        let image = Field { ty, bound: None };
        let schema = Schema::new().tensor("image", image).tensor("label", options.label.clone());
        let needs = Needs::of(needs, Need::default());
        // Windows of one picture are decoded at once.
        let needs = if options.tiled { Needs { usual: needs.largest, ..needs } } else { needs };
        let decode = decode(largest).needing(needs, &Arc::default());
        let (longest, tiled) = (longest as usize, options.tiled);
        // The stage checks sizes and channels.
        decode.schema(&Schema::new().bytes("image", longest).tensor("label", options.label.clone()))?;
        Ok(Self { decode, files, windows, tiled, schema, longest })
    }

    /// The files.
    pub fn files(&self) -> &[PictureFile] {
        &self.files
    }

    /// The file of a record.
    pub fn file(&self, record: usize) -> &PictureFile {
        let found = self.files.partition_point(|file| file.first <= record);
        &self.files[found.saturating_sub(1)]
    }

    /// The window of a record.
    pub fn window(&self, record: usize) -> PictureWindow {
        let file = self.files.partition_point(|file| file.first <= record).saturating_sub(1);
        let PictureFile { size, first, .. } = self.files[file];
        let resized = self.decode.resized(size);
        let window = self.window_size();
        if !self.tiled {
            return PictureWindow { file, corner: [0, 1].map(|axis| (resized[axis] - window[axis]) / 2) };
        }
        let across = resized[1].div_ceil(window[1]).max(1);
        let place = [(record - first) / across, (record - first) % across];
        // The last ones overlap those before, so that they cover the edges.
        let corner = [0, 1].map(|axis| (place[axis] * window[axis]).min(resized[axis] - window[axis]));
        PictureWindow { file, corner }
    }

    /// Height and width of a picture as the model sees it: resized, before windows are taken.
    pub fn resized(&self, file: usize) -> [usize; 2] {
        self.decode.resized(self.files[file].size)
    }

    /// Height and width of a window.
    pub fn window_size(&self) -> [usize; 2] {
        self.decode.size()
    }
}

/// Height, width and channels of an input that pictures can be.
fn picture_size(input: &Field) -> Result<[usize; 3], DataError> {
    let size: Option<[usize; 3]> = input.ty.shape[..].try_into().ok();
    match size {
        Some(size @ [height, width, 1 | 3]) if height > 0 && width > 0 && input.bound.is_none() => Ok(size),
        _ => {
            let reason = format!("the model takes {}, which no picture becomes", input.ty);
            Err(DataError::Option { option: "pictures", reason })
        }
    }
}

/// The header of a file with at most this many pixels.
fn header(path: &Path, buffer: &mut [u8], most_pixels: usize) -> Result<Header, DataError> {
    let bytes = read_into(path, buffer)?;
    let header = Header::parse(&buffer[..bytes])?;
    let size = header.size();
    let found = size[0].saturating_mul(size[1]);
    if found > most_pixels {
        let reason = format!("{found} pixels, more than {most_pixels}; allow them with --max-pixels");
        return Err(DataError::Corrupt { reason });
    }
    Ok(header)
}

/// How many windows cover a picture, down and across.
fn tiles(decode: &Decode, size: [usize; 2], path: &Path) -> Result<[usize; 2], DataError> {
    let (resized, window) = (decode.resized(size), decode.size());
    let tiles = [0, 1].map(|axis| resized[axis].div_ceil(window[axis]).max(1));
    if tiles[0].saturating_mul(tiles[1]) > MAX_WINDOWS {
        let reason = format!("{}×{} windows cover it, at most {MAX_WINDOWS} may", tiles[0], tiles[1]);
        return Err(DataError::Corrupt { reason }.of(|| format!("`{}`", path.display())));
    }
    Ok(tiles)
}

/// The files, with the pictures in folders in place of these.
fn list(paths: &[PathBuf], max_bytes: usize) -> Result<Vec<PathBuf>, DataError> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    let mut add = |path: PathBuf, found: &mut Vec<PathBuf>| {
        bytes += path.as_os_str().len() + size_of_file();
        if bytes > max_bytes {
            let (what, limit) = ("the list of files".into(), max_bytes as u64);
            return Err(DataError::TooLarge { what, bytes: bytes as u64, limit });
        }
        found.push(path);
        Ok(())
    };
    for path in paths {
        if !path.is_dir() {
            // Also what does not exist: the error names it.
            add(path.clone(), &mut found)?;
            continue;
        }
        let before = found.len();
        walk(path, 0, &mut |file| add(file, &mut found))?;
        if found.len() == before {
            let what = format!("`{}`: no .jpg or .png files are in it, so it", path.display());
            return Err(DataError::Empty { what });
        }
    }
    Ok(found)
}

/// Bytes of a file in the list, besides its path.
fn size_of_file() -> usize {
    size_of::<PictureFile>() + size_of::<PathBuf>()
}

/// The deepest folder in a folder.
const MAX_DEPTH: usize = 16;

/// Visits the pictures of a folder, sorted by name, and then those of its folders.
fn walk(
    folder: &Path,
    depth: usize,
    add: &mut impl FnMut(PathBuf) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| failed(folder, e))? {
        names.push(entry.map_err(|e| failed(folder, e))?.file_name());
    }
    names.sort_unstable();
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) =
        names.iter().map(|name| folder.join(name)).partition(|path| path.is_dir());
    let name =
        |path: &Path| path.file_name().map(|name| name.as_encoded_bytes().to_vec()).unwrap_or_default();
    files.into_iter().filter(|path| is_image(&name(path))).try_for_each(&mut *add)?;
    let folders = folders.iter().filter(|path| !name(path).starts_with(b".") && depth < MAX_DEPTH);
    folders.into_iter().try_for_each(|path| walk(path, depth + 1, add))
}

impl Source for Pictures {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> usize {
        self.windows
    }

    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        check_read(self, index, record)?;
        let PictureFile { path, size, .. } = self.file(index);
        let (file, rest) = scratch.split_at_mut(self.longest);
        let bytes = read_into(path, file)?;
        let file = &mut file[..bytes];
        let header = Header::parse(file)?;
        if header.size() != *size {
            return Err(DataError::Corrupt { reason: "the file has changed".into() });
        }
        let window = self.decode.window_at(*size, self.window(index).corner);
        self.decode.write_plain(file, &header, &window, rest, record.buffer_mut(0))?;
        record.buffer_mut(1).fill(0);
        Ok(())
    }

    fn resident_bytes(&self) -> usize {
        let path = |file: &PictureFile| file.path.capacity() + size_of::<PictureFile>();
        self.files.iter().map(path).sum()
    }

    fn scratch_bytes(&self) -> usize {
        self.longest.saturating_add(self.decode.scratch_bytes(&self.schema))
    }

    fn decoder_bytes(&self, readers: usize) -> usize {
        self.decode.decoder_bytes(readers)
    }

    fn origin(&self, index: usize, _: u64) -> String {
        format!("`{}`", self.file(index).path.display())
    }
}
