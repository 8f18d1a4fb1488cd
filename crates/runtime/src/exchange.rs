//! What passes between an arena and other devices. Where the arena is not in host memory, it passes a buffer there, by the device's own
//! copies, which wait for its kernels.

use crate::device::{Device, Memory};
use plimsoll_plan::{Connection, Passing, PlanSet, STATE_PIECE, StateHome, Transport, largest_pass};

/// Bytes of host memory that plans need to stage what passes.
pub fn staging_bytes(plans: &PlanSet, connection: Option<&Connection>, in_host_memory: bool) -> usize {
    let Some(connection) = connection else { return 0 };
    let mut shared = connection.owners.iter().zip(&plans.states).filter(|(owner, _)| owner.is_some());
    let pieces = shared.any(|(_, state)| matches!(state.home, StateHome::Offloaded { .. }));
    let values = plans.plans.iter().map(|plan| largest_pass(&plan.graph)).max().unwrap_or(0);
    let values = if in_host_memory { 0 } else { values };
    values.max(if pieces { STATE_PIECE } else { 0 })
}

/// The way between an arena and other devices.
pub struct Way<'a, D: Device> {
    pub device: &'a D,
    pub arena: &'a D::Memory,
    pub transport: &'a dyn Transport,
    /// As many bytes as [`staging_bytes`] says.
    pub staging: &'a mut [u8],
}

impl<D: Device> Way<'_, D> {
    /// Passes a range of the arena.
    ///
    /// # Safety
    /// Nothing else uses the range now. What is sent is not written before it was received, and what is added up over all devices is not used
    /// before [`Transport::finish`].
    pub unsafe fn pass(&mut self, passing: Passing, offset: usize, bytes: usize) -> Result<(), String> {
        if let Passing::Clear = passing {
            // SAFETY: the caller's promise.
            return unsafe { self.arena.fill(offset, bytes, 0) };
        }
        if !self.device.in_host_memory() {
            // SAFETY: the caller's promise is passed on.
            return unsafe { self.pass_staged(passing, offset, bytes) };
        }
        let start = self.arena.at(offset, bytes);
        // SAFETY: inside the arena, which is in host memory; the rest is the caller's promise.
        unsafe {
            match passing {
                Passing::Receive(from, message) => {
                    self.transport.receive(from, message, std::slice::from_raw_parts_mut(start, bytes))
                }
                Passing::Hand(to, message) => {
                    self.transport.hand(to, message, std::slice::from_raw_parts(start, bytes))
                }
                Passing::Send(to, message) => {
                    self.transport.send(to, message, std::slice::from_raw_parts(start, bytes))
                }
                Passing::AllReduce => {
                    let count = bytes / size_of::<f32>();
                    self.transport.all_reduce(std::ptr::slice_from_raw_parts_mut(start.cast::<f32>(), count))
                }
                Passing::Clear => Ok(()),
            }
        }
    }

    /// The same of an arena that is not in host memory.
    ///
    /// # Safety
    /// As for [`Way::pass`].
    unsafe fn pass_staged(&mut self, passing: Passing, offset: usize, bytes: usize) -> Result<(), String> {
        let staged =
            self.staging.get_mut(..bytes).ok_or("a value is larger than the buffer that it passes")?;
        match passing {
            Passing::Receive(from, message) => {
                self.transport.receive(from, message, staged)?;
                // SAFETY: nothing else uses the range, by the caller's promise.
                unsafe { self.device.copy_in(self.arena, offset, staged) }
            }
            Passing::Hand(to, message) => {
                // SAFETY: as above.
                unsafe { self.device.copy_out(self.arena, offset, staged)? };
                self.transport.hand(to, message, staged)
            }
            Passing::Send(..) | Passing::AllReduce | Passing::Clear => {
                Err("others cannot read what is in a device's own memory".into())
            }
        }
    }
}
