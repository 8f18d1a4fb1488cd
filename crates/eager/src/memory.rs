//! The values of a context: where each is, when it was used, who made it.

use crate::error::{Error, OutOfMemory};
use crate::pool::{Moved, Place, Pool, rounded};
use crate::spill::Spill;
use plimsoll_plan::in_words;
use plimsoll_tensor::TensorType;
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
    /// `None` for scratch.
    ty: Option<Arc<TensorType>>,
    /// When it was made and last used, in ops.
    born: u64,
    used: u64,
    site: Site,
}

#[derive(Clone, Copy)]
enum Home {
    Vacant,
    Memory(Place),
    File(u64),
}

/// All buffers of a context, by number.
pub(crate) struct Memory {
    pub pool: Pool,
    pub spill: Option<Spill>,
    buffers: Vec<Buffer>,
    vacant: Vec<u32>,
    moved: Vec<Moved>,
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
    pub fn new(line: usize, spill: Option<Spill>) -> Self {
        let (buffers, vacant, moved) = (Vec::new(), Vec::new(), Vec::new());
        Self { pool: Pool::new(line), spill, buffers, vacant, moved, ops: 0, held: 0, peak: 0, offloaded: 0 }
    }

    /// A buffer for a value of this type, which counts as used by the current op.
    pub fn allocate(&mut self, ty: &Arc<TensorType>, op: &'static str, site: Site) -> Result<u32, Error> {
        self.buffer(ty.bytes(), Some(ty), op, site)
    }

    /// A buffer for scratch.
    pub fn scratch(&mut self, bytes: usize, op: &'static str, site: Site) -> Result<u32, Error> {
        self.buffer(bytes, None, op, site)
    }

    fn buffer(
        &mut self,
        bytes: usize,
        ty: Option<&Arc<TensorType>>,
        op: &'static str,
        site: Site,
    ) -> Result<u32, Error> {
        let now = self.ops;
        let new = Buffer { home: Home::Vacant, bytes, ty: ty.cloned(), born: now, used: now, site };
        let number = match self.vacant.pop() {
            Some(number) => {
                self.buffers[number as usize] = new;
                number
            }
            None => {
                self.buffers.push(new);
                self.buffers.len() as u32 - 1
            }
        };
        match self.place(number, op) {
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
    fn place(&mut self, number: u32, op: &'static str) -> Result<Place, Error> {
        let bytes = self.buffers[number as usize].bytes;
        loop {
            let found = self.pool.allocate(bytes, number);
            self.peak = self.peak.max(self.pool.mapped());
            match found {
                Ok(place) => return Ok(place),
                Err(_) if rounded(bytes) <= self.pool.line() && self.offload_one()? => {}
                Err(_) => {
                    let ty = &self.buffers[number as usize].ty;
                    let what = ty.as_ref().map_or("its workspace".into(), ToString::to_string);
                    return Err(self.out_of_memory(bytes, what, op));
                }
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
            if !self.offload_one()? {
                return Err(self.out_of_memory(bytes, "its results".into(), op));
            }
        }
        Ok(())
    }

    fn out_of_memory(&self, asked: usize, shapes: String, op: &'static str) -> Error {
        let (held, line, holders) = (self.held, self.pool.line(), self.live(0));
        Error::OutOfMemory(Box::new(OutOfMemory { asked, op, shapes, held, line, holders }))
    }

    /// Moves the value that was not used for longest to the file; false if there is none, or no file, or no room in it.
    fn offload_one(&mut self) -> Result<bool, Error> {
        let Some(spill) = &mut self.spill else { return Ok(false) };
        let waiting = |b: &Buffer| matches!(b.home, Home::Memory(_)) && b.used < self.ops && b.bytes > 0;
        let found = (0..self.buffers.len()).filter(|&i| waiting(&self.buffers[i]));
        let Some(oldest) = found.min_by_key(|&i| self.buffers[i].used) else { return Ok(false) };
        let buffer = &mut self.buffers[oldest];
        let Home::Memory(place) = buffer.home else { return Ok(false) };
        // SAFETY: a live buffer of so many bytes, all of them written or zero; nothing computes while the memory is locked.
        let bytes = unsafe { std::slice::from_raw_parts(place.start, buffer.bytes) };
        let Some(offset) = spill.store(bytes)? else { return Ok(false) };
        self.offloaded += buffer.bytes as u64;
        buffer.home = Home::File(offset);
        self.release_place(place);
        Ok(true)
    }

    fn release_place(&mut self, place: Place) {
        self.pool.release(place, &mut self.moved);
        for (number, place) in self.moved.drain(..) {
            self.buffers[number as usize].home = Home::Memory(place);
        }
    }

    /// Counts a value as used by the current op: it stays in memory until the next.
    pub fn touch(&mut self, number: u32) {
        self.buffers[number as usize].used = self.ops;
    }

    /// Brings a value back from the file, if it is there.
    pub fn fetch(&mut self, number: u32, op: &'static str) -> Result<(), Error> {
        let Home::File(offset) = self.buffers[number as usize].home else { return Ok(()) };
        let place = self.place(number, op)?;
        // SAFETY: the buffer's new place, which nobody else knows.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(place.start, self.buffers[number as usize].bytes) };
        if let Some(spill) = &mut self.spill
            && let Err(error) = spill.load(offset, bytes)
        {
            // The value is in the file still.
            self.release_place(place);
            return Err(error.into());
        }
        self.buffers[number as usize].home = Home::Memory(place);
        Ok(())
    }

    /// The address of a buffer that is in memory, until the next buffer is allocated or freed.
    pub fn address(&self, number: u32) -> *mut u8 {
        match self.buffers[number as usize].home {
            Home::Memory(place) => place.start,
            Home::Vacant | Home::File(_) => Place::NOWHERE.start,
        }
    }

    /// The bytes of values, brought back from the file if they are there.
    pub fn read(&mut self, numbers: &[u32], op: &'static str) -> Result<Vec<&[u8]>, Error> {
        self.ops += 1;
        numbers.iter().for_each(|&number| self.touch(number));
        numbers.iter().try_for_each(|&number| self.fetch(number, op))?;
        let bytes = |&number: &u32| {
            let length = self.buffers[number as usize].bytes;
            // SAFETY: a live buffer of so many bytes; the borrow keeps it where it is.
            unsafe { std::slice::from_raw_parts(self.address(number).cast_const(), length) }
        };
        Ok(numbers.iter().map(bytes).collect())
    }

    /// The bytes of a new value, to be written.
    pub fn write(&mut self, number: u32) -> &mut [u8] {
        // SAFETY: as for `read`, borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.address(number), self.buffers[number as usize].bytes) }
    }

    /// A buffer that is written over becomes another value.
    pub fn renew(&mut self, number: u32, ty: &Arc<TensorType>, site: Site) {
        let buffer = &mut self.buffers[number as usize];
        (buffer.ty, buffer.born, buffer.used, buffer.site) = (Some(ty.clone()), self.ops, self.ops, site);
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
