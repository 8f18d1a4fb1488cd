//! The values of a context: where each is, when it was used, who made it.

use crate::error::{Error, OutOfMemory};
use crate::pool::{Moved, Place, Pool, SMALL, Short};
use crate::spill::Spill;
use plimsoll_plan::in_words;
use plimsoll_runtime::{Input, KernelDevice};
use plimsoll_tensor::TensorType;
use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// Where in a program a value was made.
pub(crate) type Site = &'static Location<'static>;

/// A value that is alive.
#[derive(Clone, Debug)]
pub struct LiveValue {
    /// Its type when it was made.
    pub ty: TensorType,
    /// Its bytes.
    pub bytes: usize,
    /// How many ops have run since.
    pub age: u64,
    /// The line of the program that made it.
    pub site: &'static Location<'static>,
    /// Whether it waits in the spill file.
    pub offloaded: bool,
}

impl fmt::Display for LiveValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ty, bytes, age, site, offloaded } = self;
        let file = if *offloaded { ", in the spill file" } else { "" };
        write!(f, "{} {ty}, {age} ops old, made at {site}{file}", in_words(*bytes))
    }
}

struct Buffer {
    home: Home,
    bytes: usize,
    /// `None` for scratch. A vacant one keeps its last: most often the next value there has the same, and need not count its owners.
    ty: Option<Arc<TensorType>>,
    /// When it was made and last used, in ops.
    born: u64,
    used: u64,
    site: Site,
}

impl Buffer {
    fn set_type(&mut self, ty: Option<&Arc<TensorType>>) {
        if self.ty.as_ref().map(Arc::as_ptr) != ty.map(Arc::as_ptr) {
            self.ty = ty.cloned();
        }
    }
}

#[derive(Clone, Copy)]
enum Home {
    Vacant,
    Memory(Place),
    File(u64),
}

/// Bytes of host memory that a value passes, piece by piece, on its way between a device and a file or another device.
const STAGING: usize = 4 << 20;

/// All buffers of a context, by number.
pub(crate) struct Memory {
    pub pool: Pool,
    pub spill: Option<Spill>,
    buffers: Vec<Buffer>,
    vacant: Vec<u32>,
    moved: Vec<Moved>,
    /// Small scratch that later ops use again.
    kept_scratch: Option<u32>,
    /// Ops so far: the clock of ages and uses.
    pub ops: u64,
    /// Bytes of all live values.
    pub held: usize,
    /// The most bytes that were ever mapped.
    pub peak: usize,
    /// Bytes written to the spill file so far.
    pub offloaded: u64,
}

impl Memory {
    pub fn new(device: Arc<dyn KernelDevice>, line: usize, spill: Option<Spill>) -> Self {
        let (buffers, vacant, moved) = (Vec::new(), Vec::new(), Vec::new());
        let pool = Pool::new(device, line);
        Self {
            pool,
            spill,
            buffers,
            vacant,
            moved,
            kept_scratch: None,
            ops: 0,
            held: 0,
            peak: 0,
            offloaded: 0,
        }
    }

    /// A buffer for a value of this type, which counts as used by the current op.
    pub fn allocate(&mut self, ty: &Arc<TensorType>, op: &'static str, site: Site) -> Result<u32, Error> {
        self.buffer(ty.bytes(), Some(ty), op, site)
    }

    /// As [`Memory::allocate`], for a type whose bytes are known.
    pub fn allocate_bytes(
        &mut self,
        (ty, bytes): (&Arc<TensorType>, usize),
        op: &'static str,
        site: Site,
    ) -> Result<u32, Error> {
        self.buffer(bytes, Some(ty), op, site)
    }

    /// A buffer for scratch, the last that the current op asks for.
    pub fn scratch(&mut self, bytes: usize, op: &'static str, site: Site) -> Result<u32, Error> {
        if let Some(kept) = self.kept_scratch {
            if self.buffers[kept as usize].bytes >= bytes {
                return Ok(kept);
            }
            self.release_kept_scratch();
        }
        if bytes > SMALL {
            return self.buffer(bytes, None, op, site);
        }
        // All of its slot, so that more ops find it large enough.
        let number = self.buffer(self.pool.rounded(bytes), None, op, site)?;
        self.kept_scratch = Some(number);
        Ok(number)
    }

    /// Frees scratch, or keeps it for later.
    pub fn release_scratch(&mut self, number: u32) {
        if self.kept_scratch != Some(number) {
            self.release(number);
        }
    }

    /// Frees scratch that is kept; false if there is none.
    fn release_kept_scratch(&mut self) -> bool {
        let kept = self.kept_scratch.take();
        kept.into_iter().for_each(|number| self.release(number));
        kept.is_some()
    }

    /// Bytes of scratch that is kept.
    pub fn kept(&self) -> usize {
        self.kept_scratch.map_or(0, |number| self.buffers[number as usize].bytes)
    }

    /// Unmaps everything that no value is in.
    pub fn trim(&mut self) {
        self.release_kept_scratch();
        self.pool.trim();
    }

    #[inline(always)]
    fn buffer(
        &mut self,
        bytes: usize,
        ty: Option<&Arc<TensorType>>,
        op: &'static str,
        site: Site,
    ) -> Result<u32, Error> {
        let now = self.ops;
        let number = match self.vacant.pop() {
            Some(number) => {
                let buffer = &mut self.buffers[number as usize];
                buffer.set_type(ty);
                (buffer.bytes, buffer.born, buffer.used, buffer.site) = (bytes, now, now, site);
                number
            }
            None => {
                let ty = ty.cloned();
                self.buffers.push(Buffer { home: Home::Vacant, bytes, ty, born: now, used: now, site });
                self.buffers.len() as u32 - 1
            }
        };
        match self.place(number, bytes, op) {
            Ok(place) => {
                self.buffers[number as usize].home = Home::Memory(place);
                self.held += bytes;
                Ok(number)
            }
            Err(error) => {
                self.vacant.push(number);
                Err(error)
            }
        }
    }

    /// Memory for a buffer that has none. Others are offloaded where it does not fit, and where that is allowed.
    #[inline(always)]
    fn place(&mut self, number: u32, bytes: usize, op: &'static str) -> Result<Place, Error> {
        let found = self.pool.allocate(bytes, number);
        self.peak = self.peak.max(self.pool.mapped());
        match found {
            Ok(place) => Ok(place),
            Err(short) => self.place_otherwise(short, number, bytes, op),
        }
    }

    #[cold]
    fn place_otherwise(
        &mut self,
        mut short: Short,
        number: u32,
        bytes: usize,
        op: &'static str,
    ) -> Result<Place, Error> {
        loop {
            match short {
                _ if self.release_kept_scratch() => {}
                _ if self.pool.rounded(bytes) <= self.pool.line() && self.offload_one()? => {}
                Short(device) => {
                    let ty = &self.buffers[number as usize].ty;
                    let what = ty.as_ref().map_or("its workspace".into(), ToString::to_string);
                    return Err(self.out_of_memory(bytes, what, op, device));
                }
            }
            let found = self.pool.allocate(bytes, number);
            self.peak = self.peak.max(self.pool.mapped());
            match found {
                Ok(place) => return Ok(place),
                Err(again) => short = again,
            }
        }
    }

    /// Offloads values until about so many bytes could be allocated.
    pub fn make_room(&mut self, bytes: usize, op: &'static str) -> Result<(), Error> {
        let fits = |pool: &Pool| {
            let taken = pool.mapped() - pool.cached() - pool.free();
            taken.checked_add(bytes).is_some_and(|all| all <= pool.line())
        };
        while !fits(&self.pool) {
            if !self.release_kept_scratch() && !self.offload_one()? {
                return Err(self.out_of_memory(bytes, "its results".into(), op, None));
            }
        }
        Ok(())
    }

    fn out_of_memory(&self, asked: usize, shapes: String, op: &'static str, device: Option<String>) -> Error {
        let (held, line, holders) = (self.held, self.pool.line(), self.live(0));
        Error::OutOfMemory(Box::new(OutOfMemory { asked, op, shapes, held, line, device, holders }))
    }

    /// Moves the value that was not used for longest to the file; false if there is none, or no file, or no room in it.
    fn offload_one(&mut self) -> Result<bool, Error> {
        let Some(spill) = &mut self.spill else { return Ok(false) };
        let waiting = |b: &Buffer| {
            matches!(b.home, Home::Memory(_)) && b.used < self.ops && b.bytes > 0 && b.ty.is_some()
        };
        let found = (0..self.buffers.len()).filter(|&i| waiting(&self.buffers[i]));
        let Some(oldest) = found.min_by_key(|&i| self.buffers[i].used) else { return Ok(false) };
        let Buffer { home: Home::Memory(place), bytes, .. } = self.buffers[oldest] else { return Ok(false) };
        let Some(offset) = spill.take(bytes)? else { return Ok(false) };
        let stored = match self.pool.host_bytes(place, bytes) {
            Some(own) => spill.write(offset, own).map_err(Error::from),
            None => in_pieces(bytes, |at, piece| {
                self.pool.read(place, at, piece).map_err(Error::Device)?;
                Ok(spill.write(offset + at as u64, piece)?)
            }),
        };
        if let Err(error) = stored {
            spill.release(offset, bytes);
            return Err(error);
        }
        self.offloaded += bytes as u64;
        self.buffers[oldest].home = Home::File(offset);
        self.release_place(place);
        Ok(true)
    }

    #[inline(always)]
    fn release_place(&mut self, place: Place) {
        self.pool.release(place, &mut self.moved);
        if !self.moved.is_empty() {
            self.note_moved();
        }
    }

    #[cold]
    fn note_moved(&mut self) {
        for (number, place) in self.moved.drain(..) {
            self.buffers[number as usize].home = Home::Memory(place);
        }
    }

    /// Counts a value as used by the current op: it stays in memory until the next. Returns whether it is there.
    #[inline]
    pub fn touch(&mut self, number: u32) -> bool {
        let buffer = &mut self.buffers[number as usize];
        buffer.used = self.ops;
        !matches!(buffer.home, Home::File(_))
    }

    /// Brings a value back from the file, if it is there.
    pub fn fetch(&mut self, number: u32, op: &'static str) -> Result<(), Error> {
        let Home::File(offset) = self.buffers[number as usize].home else { return Ok(()) };
        let bytes = self.buffers[number as usize].bytes;
        let place = self.place(number, bytes, op)?;
        if let Some(spill) = &mut self.spill {
            let loaded = match self.pool.host_bytes_mut(place, bytes) {
                Some(own) => spill.read(offset, own).map_err(Error::from),
                None => in_pieces(bytes, |at, piece| {
                    spill.read(offset + at as u64, piece)?;
                    self.pool.write(place, at, piece).map_err(Error::Device)
                }),
            };
            if let Err(error) = loaded {
                // The value is in the file still.
                self.release_place(place);
                return Err(error);
            }
            spill.release(offset, bytes);
        }
        self.buffers[number as usize].home = Home::Memory(place);
        Ok(())
    }

    /// The address of a buffer that is in memory, until the next buffer is allocated or freed.
    #[inline]
    pub fn address(&self, number: u32) -> *mut u8 {
        match self.buffers[number as usize].home {
            Home::Memory(place) => place.start,
            Home::Vacant | Home::File(_) => Place::NOWHERE.start,
        }
    }

    /// Where a buffer is that is in memory, and its bytes.
    fn place_of(&self, number: u32) -> (Place, usize) {
        match self.buffers[number as usize] {
            Buffer { home: Home::Memory(place), bytes, .. } => (place, bytes),
            Buffer { home: Home::Vacant | Home::File(_), .. } => (Place::NOWHERE, 0),
        }
    }

    /// Brings values that are to be read back from the file, if they are there.
    pub fn bring(&mut self, numbers: &[u32], op: &'static str) -> Result<(), Error> {
        self.ops += 1;
        for &number in numbers {
            self.touch(number);
        }
        numbers.iter().try_for_each(|&number| self.fetch(number, op))
    }

    /// The bytes of a value that is in memory; a copy, where that is not the host's.
    pub fn bytes(&self, number: u32) -> Result<Cow<'_, [u8]>, Error> {
        let (place, bytes) = self.place_of(number);
        if let Some(own) = self.pool.host_bytes(place, bytes) {
            return Ok(Cow::Borrowed(own));
        }
        let mut copy = vec![0; bytes];
        self.pool.read(place, 0, &mut copy).map_err(Error::Device)?;
        Ok(Cow::Owned(copy))
    }

    /// A value that is in memory, as an input of a compiled function.
    pub fn input(&self, number: u32) -> Input<'static> {
        let (place, bytes) = self.place_of(number);
        Input::Device(place.start, bytes)
    }

    /// Copies a value that is in memory to the host's.
    pub fn read(&self, number: u32, into: &mut [u8]) -> Result<(), Error> {
        let (place, bytes) = self.place_of(number);
        match self.pool.host_bytes(place, bytes) {
            Some(own) => into.copy_from_slice(own),
            None => self.pool.read(place, 0, into).map_err(Error::Device)?,
        }
        Ok(())
    }

    /// Copies bytes to a new value, all of it.
    pub fn write(&mut self, number: u32, from: &[u8]) -> Result<(), Error> {
        let (place, bytes) = self.place_of(number);
        match self.pool.host_bytes_mut(place, bytes) {
            Some(own) => own.copy_from_slice(from),
            None => self.pool.write(place, 0, from).map_err(Error::Device)?,
        }
        Ok(())
    }

    /// Sets a new value to zero.
    pub fn clear(&mut self, number: u32) -> Result<(), Error> {
        let (place, bytes) = self.place_of(number);
        self.pool.clear(place, bytes).map_err(Error::Device)
    }

    /// Lets `fill` write the bytes of a new value: where it is, or in host memory from where they are copied to the device.
    pub fn fill(
        &mut self,
        number: u32,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (place, bytes) = self.place_of(number);
        if let Some(own) = self.pool.host_bytes_mut(place, bytes) {
            return fill(own);
        }
        let mut staging = vec![0; bytes];
        fill(&mut staging)?;
        self.pool.write(place, 0, &staging).map_err(Error::Device)
    }

    /// Copies a value that is in memory to a new one of another context.
    pub fn copy_to(&self, number: u32, other: &mut Self, copy: u32) -> Result<(), Error> {
        let ((from, bytes), (to, _)) = (self.place_of(number), other.place_of(copy));
        if let Some(own) = self.pool.host_bytes(from, bytes) {
            return other.write(copy, own);
        }
        if let Some(into) = other.pool.host_bytes_mut(to, bytes) {
            return self.pool.read(from, 0, into).map_err(Error::Device);
        }
        in_pieces(bytes, |at, piece| {
            self.pool.read(from, at, piece).map_err(Error::Device)?;
            other.pool.write(to, at, piece).map_err(Error::Device)
        })
    }

    /// A buffer that is written over becomes another value.
    pub fn renew(&mut self, number: u32, ty: &Arc<TensorType>, site: Site) {
        let buffer = &mut self.buffers[number as usize];
        buffer.set_type(Some(ty));
        (buffer.born, buffer.used, buffer.site) = (self.ops, self.ops, site);
    }

    /// Frees a buffer.
    pub fn release(&mut self, number: u32) {
        let buffer = &mut self.buffers[number as usize];
        let (home, bytes) = (std::mem::replace(&mut buffer.home, Home::Vacant), buffer.bytes);
        self.held -= bytes;
        match home {
            Home::Memory(place) => self.release_place(place),
            Home::File(offset) => {
                if let Some(spill) = &mut self.spill {
                    spill.release(offset, bytes);
                }
            }
            Home::Vacant => {}
        }
        self.vacant.push(number);
    }

    /// The values made since an op that are alive, the largest first, of those the oldest.
    pub fn live(&self, since: u64) -> Vec<LiveValue> {
        let live = |b: &Buffer| !matches!(b.home, Home::Vacant) && b.born >= since;
        let value = |b: &Buffer| {
            let (offloaded, age) = (matches!(b.home, Home::File(_)), self.ops - b.born);
            Some(LiveValue { ty: (**b.ty.as_ref()?).clone(), bytes: b.bytes, age, site: b.site, offloaded })
        };
        let mut values: Vec<LiveValue> = self.buffers.iter().filter(|b| live(b)).filter_map(value).collect();
        values.sort_by_key(|value| (std::cmp::Reverse(value.bytes), std::cmp::Reverse(value.age)));
        values
    }
}

/// Lets `pass` pass on the bytes of a value piece by piece, through a buffer in host memory.
fn in_pieces(bytes: usize, mut pass: impl FnMut(usize, &mut [u8]) -> Result<(), Error>) -> Result<(), Error> {
    let mut staging = vec![0; bytes.min(STAGING)];
    (0..bytes).step_by(STAGING).try_for_each(|at| {
        let count = STAGING.min(bytes - at);
        pass(at, &mut staging[..count])
    })
}
