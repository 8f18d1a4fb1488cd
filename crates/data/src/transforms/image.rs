//! Image files to rows of a batch: decode, resize, crop, flip, jitter, normalise.

mod jpeg;
mod masks;
mod memory;
mod picture;
mod png;

use crate::{DataError, Kind, Place, Record, Schema, Stage};
pub use masks::DecodeMasks;
pub(crate) use masks::{mask_need, most_class};
use memory::Workspace;
pub(crate) use memory::{Need, Needs, Shared};
pub(crate) use picture::Window;
use picture::{Frame, Normal};
use plimsoll_tensor::{DType, Field, TensorType, bf16, random::Stream};
use std::sync::Arc;

/// Mean and deviation per channel of ImageNet, which most published weights were trained with.
pub(crate) const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
pub(crate) const DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];

/// Which window of the picture is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crop {
    /// The centre.
    Centre,
    /// At a random position, drawn for each record and epoch.
    Random {
        /// Black pixels that pad the picture on each side.
        pad: usize,
    },
}

/// Decodes a JPEG or PNG file into f32 or bf16 `[height, width, channels]`, resized, cropped and normalised, straight into
/// the batch.
///
/// ```
/// use plimsoll_data::{Crop, Decode, Schema, Field, Stage};
/// let decode = Decode::new([224, 224, 3], 4_000_000).resize(256).crop(Crop::Random { pad: 0 }).flip().seed(7);
/// let files = Schema::new().bytes("image", 1 << 20).tensor("label", Field::below(10, []));
/// assert_eq!(decode.schema(&files)?.in_words(), "image f32[224,224,3], label i32[]");
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub struct Decode {
    size: [usize; 2],
    channels: usize,
    most_pixels: usize,
    shorter_side: Option<usize>,
    crop: Crop,
    flip: bool,
    jitter: f32,
    seed: u64,
    normal: Normal,
    dtype: DType,
    /// What pictures take, where their headers were read.
    needs: Option<Needs>,
    shared: Arc<Shared>,
}

impl Decode {
    /// Images of this height, width and number of channels (1 or 3). A file whose header announces more than `most_pixels`
    /// is bad.
    pub fn new(image: [usize; 3], most_pixels: usize) -> Self {
        let [height, width, channels] = image;
        Self {
            size: [height, width],
            channels,
            most_pixels,
            shorter_side: None,
            crop: Crop::Centre,
            flip: false,
            jitter: 0.0,
            seed: 0,
            normal: Normal::new(width, channels, MEAN, DEVIATION),
            dtype: DType::F32,
            needs: None,
            shared: Arc::default(),
        }
    }

    /// Resizes first, so that the shorter side has this many pixels. Without it pictures keep their size.
    pub fn resize(self, shorter_side: usize) -> Self {
        Self { shorter_side: Some(shorter_side), ..self }
    }

    /// Which window is taken.
    pub fn crop(self, crop: Crop) -> Self {
        Self { crop, ..self }
    }

    /// Mirrors pictures with probability one half.
    pub fn flip(self) -> Self {
        Self { flip: true, ..self }
    }

    /// Changes brightness, contrast and saturation, each by a factor drawn from `1 - strength` to `1 + strength`.
    pub fn jitter(self, strength: f32) -> Self {
        Self { jitter: strength.clamp(0.0, 1.0), ..self }
    }

    /// Subtracts this mean per channel, in `0..=1`, and divides by this deviation.
    pub fn normalise(self, mean: [f32; 3], deviation: [f32; 3]) -> Self {
        Self { normal: Normal::new(self.size[1], self.channels, mean, deviation), ..self }
    }

    /// Rounds to bf16, once, as the last step: half the bytes of a batch.
    ///
    /// ```
    /// use plimsoll_data::{Decode, Field, Schema, Stage};
    /// let files = Schema::new().bytes("image", 1 << 20).tensor("label", Field::below(10, []));
    /// let decoded = Decode::new([224, 224, 3], 4_000_000).bf16().schema(&files)?;
    /// assert_eq!(decoded.in_words(), "image bf16[224,224,3], label i32[]");
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn bf16(self) -> Self {
        Self { dtype: DType::BF16, ..self }
    }

    /// Seed of random windows, flips and jitter.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// The window of a picture of this height and width, with its scale.
    fn window(&self, [height, width]: [usize; 2], draws: [f32; 4]) -> Result<Window, DataError> {
        let scale = self.scale([height, width]);
        let pad = if let Crop::Random { pad } = self.crop { pad } else { 0 };
        let mut corner = [0.0; 2];
        for (axis, extent) in [height, width].into_iter().enumerate() {
            // Positions of the window, in pixels of the resized picture.
            let resized = ((extent as f64 / scale).round() as usize).saturating_add(pad.saturating_mul(2));
            let Some(slack) = resized.checked_sub(self.size[axis]) else {
                let [h, w] = self.size;
                let reason =
                    format!("a picture of {height}×{width} pixels is too small for {h}×{w}; resize it");
                return Err(DataError::Corrupt { reason });
            };
            let start = match self.crop {
                Crop::Centre => slack / 2,
                Crop::Random { .. } => ((f64::from(draws[axis]) * (slack as f64 + 1.0)) as usize).min(slack),
            };
            corner[axis] = (start as f64 - pad as f64) * scale;
        }
        Ok(Window { corner, scale, size: self.size })
    }

    /// Height and width of a window.
    pub(crate) fn size(&self) -> [usize; 2] {
        self.size
    }

    /// Height and width of a picture after resizing.
    pub(crate) fn resized(&self, size: [usize; 2]) -> [usize; 2] {
        let scale = self.scale(size);
        size.map(|extent| (extent as f64 / scale).round() as usize)
    }

    /// The window of a picture whose upper left corner is at this pixel of the resized picture.
    pub(crate) fn window_at(&self, size: [usize; 2], corner: [usize; 2]) -> Window {
        let scale = self.scale(size);
        Window { corner: corner.map(|at| at as f64 * scale), scale, size: self.size }
    }

    /// Pixels of a picture of this height and width for one of the resized picture.
    fn scale(&self, [height, width]: [usize; 2]) -> f64 {
        match self.shorter_side {
            Some(side) => height.min(width) as f64 / side.max(1) as f64,
            None => 1.0,
        }
    }

    /// States what the pictures take whose headers were read, with a stage that never runs at the same time.
    pub(crate) fn needing(self, needs: Needs, shared: &Arc<Shared>) -> Self {
        Self { needs: Some(needs), shared: shared.clone(), ..self }
    }

    /// What a picture with this header takes.
    pub(crate) fn need(&self, header: &Header) -> Need {
        let own = match header {
            Header::Jpeg(header) => header.need(self.channels),
            Header::Png(header) => header.need(self.channels),
        };
        let resizer = self.resizer_bytes(self.scale(header.size()));
        Need { heap: own.heap.saturating_add(resizer), ..own }
    }

    /// As [`Decode::need`]; an error for more pixels than there may be.
    fn checked_need(&self, header: &Header) -> Result<Need, DataError> {
        let [height, width] = header.size();
        let found = height.saturating_mul(width);
        if found > self.most_pixels {
            let (found, cap) = (found as u64, self.most_pixels as u64);
            return Err(DataError::OverCap { what: "pixels: a picture", found, cap });
        }
        Ok(self.need(header))
    }

    /// What a common picture takes whose header was not read.
    pub(crate) fn unseen_need(&self) -> Need {
        let decoder = jpeg::heap_bytes(self.most_pixels).max(png::heap_bytes(self.most_pixels));
        // The scale follows the shorter side, which is longest in a square.
        let side = (self.most_pixels as f64).sqrt();
        let heap = decoder.saturating_add(self.resizer_bytes(self.scale([side.ceil() as usize; 2])));
        Need { pixels: self.most_pixels.saturating_mul(picture::MAX_CHANNELS), heap }
    }

    fn needs(&self) -> Needs {
        self.needs.unwrap_or_else(|| Needs::of(Vec::new(), self.unseen_need()))
    }
}

/// The header of an image file.
#[derive(Clone, Copy)]
pub(crate) enum Header {
    Jpeg(jpeg::Header),
    Png(png::Header),
}

impl Header {
    /// Parses it.
    pub fn parse(file: &[u8]) -> Result<Self, DataError> {
        let corrupt = |reason: &str| Err(DataError::Corrupt { reason: reason.into() });
        let header = match file {
            [0xff, 0xd8, ..] => Self::Jpeg(jpeg::Header::parse(file)?),
            [0x89, b'P', b'N', b'G', ..] => Self::Png(png::Header::parse(file)?),
            _ => return corrupt("neither a JPEG nor a PNG file"),
        };
        if header.size().contains(&0) { corrupt("a picture without pixels") } else { Ok(header) }
    }

    /// Height and width.
    pub fn size(&self) -> [usize; 2] {
        match self {
            Self::Jpeg(header) => [header.height, header.width],
            Self::Png(header) => [header.height, header.width],
        }
    }

    /// Whether there are colours rather than grey values.
    pub fn is_colour(&self) -> bool {
        match self {
            Self::Jpeg(header) => header.components > 1,
            Self::Png(header) => header.is_colour,
        }
    }
}

impl Stage for Decode {
    fn schema(&self, input: &Schema) -> Result<Schema, DataError> {
        let ([height, width], channels) = (self.size, self.channels);
        if ![1, 3].contains(&channels) || height == 0 || width == 0 {
            let reason =
                format!("must have 1 or 3 channels and no empty side, not {height}×{width}×{channels}");
            return Err(DataError::Option { option: "images", reason });
        }
        match input.columns() {
            [image, label] if matches!(image.kind, Kind::Bytes { .. }) => {
                let ty = TensorType::new(self.dtype, [height, width, channels]);
                let image = Schema::new().tensor(&image.name, Field { ty, bound: None });
                Ok(image.column(&label.name, label.kind.clone()))
            }
            _ => {
                let reason = format!("takes the bytes of a file and a label, not {}", input.in_words());
                Err(DataError::Option { option: "decode", reason })
            }
        }
    }

    fn apply(
        &self,
        input: &mut Record<'_>,
        output: &mut Record<'_>,
        scratch: &mut [u8],
    ) -> Result<(), DataError> {
        output.put(1, input.bytes(1))?;
        let header = Header::parse(input.bytes(0))?;
        let (place, length) = (input.place, input.bytes(0).len());
        let file = &mut input.buffer_mut(0)[..length];
        self.in_memory(self.checked_need(&header)?, scratch, |mut workspace| {
            self.picture(file, &header, place, &mut workspace, output.buffer_mut(0)).map(drop)
        })
    }

    fn scratch_bytes(&self, _: &Schema) -> usize {
        let [height, width] = self.size;
        let own = height.saturating_add(1).saturating_mul(width).saturating_mul(self.channels);
        self.needs().usual.pixels.saturating_add(own)
    }

    fn decoder_bytes(&self, readers: usize) -> usize {
        self.needs().heap_bytes(readers)
    }
}

/// The part of a picture that was written.
struct Written {
    /// Height and width of the picture.
    size: [usize; 2],
    window: Window,
    mirrored: bool,
}

impl Decode {
    /// Decodes a picture and writes its window as floats.
    fn picture(
        &self,
        file: &mut [u8],
        header: &Header,
        place: Place,
        workspace: &mut Workspace<'_>,
        into: &mut [u8],
    ) -> Result<Written, DataError> {
        let stream = Stream::new(self.seed, place.epoch, "image");
        let [draws, colours] = [0, 1].map(|block| stream.uniform_block(place.number, block));
        let size = header.size();
        let window = self.window(size, draws)?;
        let mirrored = self.flip && draws[2] < 0.5;
        let jitter = (self.jitter > 0.0).then(|| colours.map(|draw| 1.0 + self.jitter * (2.0 * draw - 1.0)));
        self.write_window(file, header, &window, (mirrored, jitter), workspace, into)?;
        Ok(Written { size, window, mirrored })
    }

    /// Decodes a picture and writes a window of it as floats, mirrored and with other colours if asked.
    fn write_window(
        &self,
        file: &mut [u8],
        header: &Header,
        window: &Window,
        (mirrored, jitter): (bool, Option<[f32; 4]>),
        workspace: &mut Workspace<'_>,
        into: &mut [u8],
    ) -> Result<(), DataError> {
        let [height, width] = header.size();
        let Workspace { pixels, window: rest, resizer } = workspace;
        let frame = match header {
            Header::Jpeg(header) => jpeg::decode(file, header, window.rows(height), self.channels, pixels)?,
            Header::Png(header) => png::decode(file, header, self.channels, pixels)?,
        };
        let frame = Frame { pixels: &*frame.pixels, size: [frame.size[0], width], channels: self.channels };
        let (resized, line) = rest.split_at_mut(self.size[0] * self.size[1] * self.channels);
        let (frame, corner) = if self.shorter_side.is_some() && window.scale != 1.0 {
            frame.resize(window, resizer, resized)?;
            (Frame { pixels: &*resized, size: self.size, channels: self.channels }, [0, 0])
        } else {
            (frame, window.corner.map(|at| at as isize))
        };
        let write = match self.dtype {
            DType::BF16 => Normal::write::<bf16>,
            _ => Normal::write::<f32>,
        };
        write(&self.normal, &frame, corner, self.size, mirrored, jitter, line, into);
        Ok(())
    }
    /// As [`Decode::write_window`], in a worker's memory.
    pub(crate) fn write_plain(
        &self,
        file: &mut [u8],
        header: &Header,
        window: &Window,
        scratch: &mut [u8],
        into: &mut [u8],
    ) -> Result<(), DataError> {
        self.in_memory(self.checked_need(header)?, scratch, |mut workspace| {
            self.write_window(file, header, window, (false, None), &mut workspace, into)
        })
    }
}
