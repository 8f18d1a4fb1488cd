//! Memory for values, under a line: slots of slabs for small ones, a segment of its own for each large one. A device maps it;
//! only where it is the host's does anything here follow an address.
//!
//! A value of `b` bytes takes at most `b + max(512, b / 4)`. The free slots of a size never fill two slabs: before they do,
//! the emptiest slab is cleared, its values moved to free slots elsewhere. (Values are found by number, not by address.) And what
//! is kept mapped without being used is bounded. So is fragmentation, whatever was allocated and freed before:
//! see [`MOST_FREE_BYTES`].

use plimsoll_runtime::{KernelDevice, Memory};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Alignment of every buffer.
pub(crate) const ALIGNMENT: usize = 512;
/// The largest buffer that is a slot of a slab.
pub(crate) const SMALL: usize = 64 << 10;
/// The most bytes of a slab: it has as many slots as fit.
const SLAB: usize = 256 << 10;
/// Sizes of slots.
const CLASSES: usize = 24;
/// The most bytes that free slots of all sizes take together.
pub const MOST_FREE_BYTES: usize = CLASSES * 2 * SLAB;
/// The most bytes of segments that are kept mapped for later.
pub const MOST_CACHED_BYTES: usize = 256 << 20;

/// A slot that belongs to no buffer.
const FREE: u32 = u32::MAX;

/// The bytes that a buffer takes.
#[inline]
pub(crate) fn rounded(bytes: usize) -> usize {
    let power = bytes.checked_next_power_of_two().unwrap_or(usize::MAX);
    let granule = (power / 8).clamp(ALIGNMENT, 2 << 20);
    // A power of two, so that nothing is divided.
    bytes.max(1).checked_add(granule - 1).map_or(usize::MAX, |sum| sum & !(granule - 1))
}

/// The class of a size that is small and rounded.
#[inline]
fn class_of(size: usize) -> usize {
    if size <= 4096 {
        return size / ALIGNMENT - 1;
    }
    let octave = (size - 1).ilog2() as usize;
    8 + (octave - 12) * 4 + ((size - (1 << octave)) >> (octave - 2)) - 1
}

/// Where a buffer is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub start: *mut u8,
    home: Home,
}

#[derive(Clone, Copy, Debug)]
enum Home {
    /// A buffer without bytes.
    Nowhere,
    Slot {
        class: u8,
        slab: u32,
        slot: u32,
    },
    Segment(u32),
}

// SAFETY: an address by itself; whoever follows it says why that is sound.
unsafe impl Send for Place {}

impl Place {
    /// The place of a buffer without bytes.
    pub const NOWHERE: Self =
        Self { start: std::ptr::without_provenance_mut(ALIGNMENT), home: Home::Nowhere };
}

/// A buffer that was moved to another place.
pub(crate) type Moved = (u32, Place);

/// Memory that was mapped.
struct Mapping {
    memory: Box<dyn Memory>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the address is that of the memory, which moves along with it.
unsafe impl Send for Mapping {}

struct Slab {
    mapping: Mapping,
    /// The buffer in each slot.
    owners: Vec<u32>,
    used: usize,
}

#[derive(Default)]
struct Class {
    size: usize,
    /// How many are in a slab.
    slots: usize,
    slabs: Vec<Option<Slab>>,
    /// The free slots of all slabs: slab and slot.
    free: Vec<(u32, u32)>,
}

/// Not enough memory under the line; or the device has none, in its words.
pub(crate) struct Short(pub Option<String>);

/// Mapped memory and who has it.
pub(crate) struct Pool {
    device: Arc<dyn KernelDevice>,
    in_host_memory: bool,
    page: usize,
    line: usize,
    mapped: usize,
    classes: [Class; CLASSES],
    segments: Vec<Option<Mapping>>,
    vacant: Vec<u32>,
    /// Segments and slabs that are kept for later, by size.
    cache: BTreeMap<usize, Vec<Mapping>>,
    cached: usize,
    /// Why values could not be moved together, if that ever failed: they are lost.
    failure: Option<String>,
}

impl Pool {
    pub fn new(device: Arc<dyn KernelDevice>, line: usize) -> Self {
        Self {
            in_host_memory: device.in_host_memory(),
            page: device.page_bytes(),
            device,
            line,
            mapped: 0,
            classes: std::array::from_fn(|_| Class::default()),
            segments: Vec::new(),
            vacant: Vec::new(),
            cache: BTreeMap::new(),
            cached: 0,
            failure: None,
        }
    }

    pub fn mapped(&self) -> usize {
        self.mapped
    }

    pub fn line(&self) -> usize {
        self.line
    }

    pub fn cached(&self) -> usize {
        self.cached
    }

    /// Bytes of free slots.
    pub fn free(&self) -> usize {
        self.classes.iter().map(|class| class.free.len() * class.size).sum()
    }

    /// The bytes that a buffer takes here: whole pages of the device, if it is large.
    #[inline]
    pub fn rounded(&self, bytes: usize) -> usize {
        let size = rounded(bytes);
        if size > SMALL && size > self.page / 2 {
            return size.checked_next_multiple_of(self.page).unwrap_or(usize::MAX);
        }
        size
    }

    /// The bytes of a live buffer, where they are in host memory.
    pub fn host_bytes(&self, place: Place, bytes: usize) -> Option<&[u8]> {
        // SAFETY: a live buffer of so many bytes, all of them written or zero. The borrow keeps it where it is, and nothing
        // computes while the pool is locked.
        self.in_host_memory.then(|| unsafe { std::slice::from_raw_parts(place.start, bytes) })
    }

    /// As [`Pool::host_bytes`], to be written.
    pub fn host_bytes_mut(&mut self, place: Place, bytes: usize) -> Option<&mut [u8]> {
        // SAFETY: as above, borrowed mutably.
        self.in_host_memory.then(|| unsafe { std::slice::from_raw_parts_mut(place.start, bytes) })
    }

    /// Copies a part of a live buffer to host memory, after all kernels so far.
    pub fn read(&self, place: Place, at: usize, into: &mut [u8]) -> Result<(), String> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        // SAFETY: inside a live buffer; transfers are done when they return.
        self.memory(place).map_or(Ok(()), |(memory, offset)| unsafe { memory.read(offset + at, into) })
    }

    /// Copies host memory to a part of a live buffer.
    pub fn write(&mut self, place: Place, at: usize, from: &[u8]) -> Result<(), String> {
        // SAFETY: as above; nothing else uses the buffer while the pool is locked.
        self.memory(place).map_or(Ok(()), |(memory, offset)| unsafe { memory.write(offset + at, from) })
    }

    /// Fills a live buffer with zeros.
    pub fn clear(&mut self, place: Place, bytes: usize) -> Result<(), String> {
        // SAFETY: as above.
        self.memory(place).map_or(Ok(()), |(memory, offset)| unsafe { memory.fill(offset, bytes, 0) })
    }

    /// The memory that a buffer is in, and its offset; none for one without bytes.
    fn memory(&self, place: Place) -> Option<(&dyn Memory, usize)> {
        match place.home {
            Home::Nowhere => None,
            Home::Segment(number) => Some((self.segments[number as usize].as_ref()?.memory.as_ref(), 0)),
            Home::Slot { class, slab, slot } => {
                let class = &self.classes[class as usize];
                let slab = class.slabs[slab as usize].as_ref()?;
                Some((slab.mapping.memory.as_ref(), slot as usize * class.size))
            }
        }
    }

    /// A buffer of so many bytes.
    #[inline(always)]
    pub fn allocate(&mut self, bytes: usize, owner: u32) -> Result<Place, Short> {
        if bytes == 0 {
            return Ok(Place::NOWHERE);
        }
        let size = self.rounded(bytes);
        if size > SMALL {
            return self.segment(size);
        }
        let class = class_of(size);
        if self.classes[class].free.is_empty() {
            self.add_slab(class, size)?;
        }
        Ok(self.classes[class].take(class as u8, owner))
    }

    /// A segment of its own for a buffer.
    fn segment(&mut self, size: usize) -> Result<Place, Short> {
        let segment = self.map(size)?;
        let start = segment.start;
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.segments.push(None);
            self.segments.len() as u32 - 1
        });
        self.segments[number as usize] = Some(segment);
        Ok(Place { start, home: Home::Segment(number) })
    }

    #[cold]
    fn add_slab(&mut self, class: usize, size: usize) -> Result<(), Short> {
        let slab = self.map(SLAB / size * size)?;
        self.classes[class].add(size, slab);
        Ok(())
    }

    /// Frees a buffer. Others may be moved for it.
    #[inline(always)]
    pub fn release(&mut self, place: Place, moved: &mut Vec<Moved>) {
        match place.home {
            Home::Nowhere => {}
            Home::Segment(number) => {
                if let Some(segment) = self.segments[number as usize].take() {
                    self.vacant.push(number);
                    self.keep(segment);
                }
            }
            Home::Slot { class, slab, slot } => {
                let Self { classes, device, failure, .. } = self;
                let copy = |from: *const u8, to: Place, bytes: usize| {
                    // SAFETY: two slots of this size in different mappings, and nothing computes while the pool is locked.
                    if let Err(reason) = unsafe { device.copy(from, to.start, bytes) } {
                        failure.get_or_insert(reason);
                    }
                };
                let emptied = classes[class as usize].release((class, slab, slot), copy, moved);
                if let Some(mapping) = emptied {
                    self.keep(mapping);
                }
            }
        }
    }

    /// Unmaps everything that no buffer is in.
    pub fn trim(&mut self) {
        for class in &mut self.classes {
            for number in 0..class.slabs.len() {
                if let Some(slab) = class.slabs[number].take_if(|slab| slab.used == 0) {
                    class.free.retain(|(slab, _)| *slab as usize != number);
                    self.mapped -= slab.mapping.bytes;
                }
            }
        }
        self.mapped -= self.cached;
        self.cached = 0;
        self.cache.clear();
    }

    /// A mapping of so many bytes: one that is kept, or a new one.
    fn map(&mut self, bytes: usize) -> Result<Mapping, Short> {
        if let Some(kept) = self.cache.get_mut(&bytes)
            && let Some(mapping) = kept.pop()
        {
            self.cached -= bytes;
            return Ok(mapping);
        }
        let fits = |mapped: usize, line| mapped.checked_add(bytes).is_some_and(|all| all <= line);
        if !fits(self.mapped, self.line) {
            self.trim();
        }
        if !fits(self.mapped, self.line) {
            return Err(Short(None));
        }
        let mut mapped = self.device.clone().map(bytes);
        if mapped.is_err() && self.mapped > 0 {
            // What is kept for later may be what is missing.
            self.trim();
            mapped = self.device.clone().map(bytes);
        }
        let memory = mapped.map_err(|reason| Short(Some(reason)))?;
        self.mapped += bytes;
        Ok(Mapping { start: memory.at(0, bytes), memory, bytes })
    }

    /// Keeps a mapping for later, and unmaps the largest of those that are too many.
    fn keep(&mut self, mapping: Mapping) {
        let most = MOST_CACHED_BYTES.min(self.line / 4);
        self.cached += mapping.bytes;
        self.cache.entry(mapping.bytes).or_default().push(mapping);
        while self.cached > most
            && let Some(mut largest) = self.cache.last_entry()
        {
            let bytes = *largest.key();
            if largest.get_mut().pop().is_some() {
                self.cached -= bytes;
                self.mapped -= bytes;
            }
            if largest.get().is_empty() {
                largest.remove();
            }
        }
    }
}

impl Class {
    fn add(&mut self, size: usize, mapping: Mapping) {
        (self.size, self.slots) = (size, SLAB / size);
        let number = self.slabs.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slabs.push(None);
            self.slabs.len() - 1
        });
        self.slabs[number] = Some(Slab { mapping, owners: vec![FREE; self.slots], used: 0 });
        self.free.extend((0..self.slots as u32).rev().map(|slot| (number as u32, slot)));
    }

    /// Takes a free slot.
    ///
    /// # Panics
    /// If there is none.
    #[inline(always)]
    fn take(&mut self, class: u8, owner: u32) -> Place {
        let (slab, slot) = self.free.pop().expect("a free slot");
        let home = self.slabs[slab as usize].as_mut().expect("a free slot's slab");
        home.owners[slot as usize] = owner;
        home.used += 1;
        // Inside the mapping, which has as many slots as the slab has owners.
        let start = home.mapping.start.wrapping_add(slot as usize * self.size);
        Place { start, home: Home::Slot { class, slab, slot } }
    }

    /// Frees a slot. Where the free ones would fill two slabs, the emptiest slab is cleared, with `copy` from an address to a
    /// place, and returned.
    #[inline(always)]
    fn release(
        &mut self,
        (class, slab, slot): (u8, u32, u32),
        copy: impl FnMut(*const u8, Place, usize),
        moved: &mut Vec<Moved>,
    ) -> Option<Mapping> {
        let home = self.slabs[slab as usize].as_mut()?;
        home.owners[slot as usize] = FREE;
        home.used -= 1;
        self.free.push((slab, slot));
        if self.free.len() < 2 * self.slots { None } else { self.clear_emptiest(class, copy, moved) }
    }

    #[cold]
    fn clear_emptiest(
        &mut self,
        class: u8,
        mut copy: impl FnMut(*const u8, Place, usize),
        moved: &mut Vec<Moved>,
    ) -> Option<Mapping> {
        let used = |slab: &Option<Slab>| slab.as_ref().map_or(usize::MAX, |slab| slab.used);
        let emptiest = (0..self.slabs.len()).min_by_key(|&number| used(&self.slabs[number]))?;
        let cleared = self.slabs[emptiest].take()?;
        self.free.retain(|(slab, _)| *slab as usize != emptiest);
        for (slot, &owner) in cleared.owners.iter().enumerate().filter(|(_, owner)| **owner != FREE) {
            let place = self.take(class, owner);
            copy(cleared.mapping.start.wrapping_add(slot * self.size), place, self.size);
            moved.push((owner, place));
        }
        Some(cleared.mapping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_cpu::Cpu;
    use plimsoll_runtime::KernelExecutor;
    use plimsoll_tensor::random::Lcg;

    fn pool(line: usize) -> Pool {
        Pool::new(Cpu::new(1).unwrap().kernel_device(), line)
    }

    #[test]
    fn sizes_are_rounded_by_a_quarter_at_most_and_have_a_class_each() {
        let mut sizes: Vec<usize> = (1..=SMALL).map(rounded).collect();
        for (bytes, &size) in (1..=SMALL).zip(&sizes) {
            assert!(size >= bytes && size.is_multiple_of(ALIGNMENT), "{bytes}");
            assert!(size - bytes <= ALIGNMENT.max(bytes / 4), "{bytes} takes {size}");
        }
        sizes.dedup();
        assert_eq!(
            sizes.iter().map(|&size| class_of(size)).collect::<Vec<_>>(),
            (0..CLASSES).collect::<Vec<_>>()
        );
        assert_eq!(rounded(400_000_000), 400_556_032);
        assert_eq!(rounded(usize::MAX), usize::MAX);
    }

    /// A hundred thousand small values, of which one in each slab stays: the rest of the slabs is given back.
    #[test]
    fn slabs_that_are_almost_empty_are_cleared() {
        let (mut pool, mut moved) = (pool(usize::MAX), Vec::new());
        let mut places: Vec<Place> =
            (0..100_000).filter_map(|owner| pool.allocate(100, owner).ok()).collect();
        assert!(places.len() == 100_000 && pool.mapped() >= 51_200_000);
        for owner in (0..100_000).filter(|owner| owner % 512 != 0) {
            pool.release(places[owner], &mut moved);
            moved.drain(..).for_each(|(owner, place)| places[owner as usize] = place);
        }
        assert!(pool.free() <= 2 * SLAB, "{} bytes of free slots", pool.free());
        assert!(pool.mapped() - pool.cached() <= 4 * SLAB, "{} mapped", pool.mapped());
    }

    /// Random sizes come and go; bytes are where they were written, and the bound of the module's text holds at every step.
    #[test]
    fn fragmentation_is_bounded_and_moved_bytes_arrive() {
        let (mut random, line) = (Lcg::new(3), 96 << 20);
        let mut pool = pool(line);
        let mut live: Vec<Option<(Place, usize)>> = vec![None; 3000];
        let mut moved = Vec::new();
        for step in 0..40_000u32 {
            // Phases of many small values and of a few that stay behind, so that slabs are left almost empty.
            let range = if (step / 8000).is_multiple_of(2) { 3000 } else { 300 };
            let owner = random.below(range);
            let fill = owner as u8;
            match live[owner].take() {
                Some((place, bytes)) => {
                    // SAFETY: the buffer is live and has so many bytes.
                    let found = unsafe { std::slice::from_raw_parts(place.start, bytes) };
                    assert!(found.iter().all(|&byte| byte == fill), "step {step}");
                    pool.release(place, &mut moved);
                }
                None => {
                    let limit = if random.below(50) == 0 { 300_000 } else { 6_000 };
                    let bytes = 1 + random.below(limit);
                    let Ok(place) = pool.allocate(bytes, owner as u32) else { continue };
                    // SAFETY: as above.
                    unsafe { place.start.write_bytes(fill, bytes) };
                    live[owner] = Some((place, bytes));
                }
            }
            for (owner, place) in moved.drain(..) {
                if let Some((at, _)) = &mut live[owner as usize] {
                    *at = place;
                }
            }
            let used: usize = live.iter().flatten().map(|(_, bytes)| bytes + ALIGNMENT.max(bytes / 4)).sum();
            let bound = used + MOST_FREE_BYTES + pool.cached();
            assert!(pool.mapped() <= bound.min(line), "step {step}: {} of {bound}", pool.mapped());
            assert!(pool.cached() <= line / 4 && pool.free() <= MOST_FREE_BYTES);
        }
        for owner in 0..live.len() {
            if let Some((place, _)) = live[owner].take() {
                pool.release(place, &mut moved);
            }
            for (owner, place) in moved.drain(..) {
                if let Some((at, _)) = &mut live[owner as usize] {
                    *at = place;
                }
            }
        }
        pool.trim();
        assert_eq!((pool.mapped(), pool.free()), (0, 0));
    }
}
