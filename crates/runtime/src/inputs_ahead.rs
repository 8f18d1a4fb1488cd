//! Inputs of the next run, which are copied to a device while it runs: to memory of their own behind the arena, because that of the
//! plan's inputs holds other values by then, and from there into the arena when their run begins.

use super::device::{Device, InputLane, Memory};
use plimsoll_plan::{BufferKind, ExecutionPlan};
use std::ops::Range;

/// The memory, and what it holds.
pub(crate) struct InputsAhead {
    lane: Box<dyn InputLane>,
    /// Of the device's memory.
    range: Range<usize>,
    alignment: usize,
    /// The plan that the inputs are for; none if there are none.
    plan: Option<usize>,
    /// Of each input that is there its number, and where it starts.
    inputs: Vec<(usize, usize)>,
}

impl InputsAhead {
    /// In a range of the device's memory, for plans of so many inputs at most.
    pub fn new(lane: Box<dyn InputLane>, range: Range<usize>, alignment: usize, inputs: usize) -> Self {
        Self { lane, range, alignment, plan: None, inputs: Vec::with_capacity(inputs) }
    }

    /// Starts to copy inputs of a plan that are given and not empty, in place of earlier ones, as far as there is room. Returns
    /// whether any is on its way.
    ///
    /// # Safety
    /// The range is inside the memory, and only used through this.
    pub unsafe fn start(
        &mut self,
        memory: &impl Memory,
        number: usize,
        plan: &ExecutionPlan,
        inputs: &[&[u8]],
    ) -> Result<bool, String> {
        self.plan = None;
        // Those of a run that failed may still be read.
        self.end()?;
        let mut start = self.range.start.next_multiple_of(self.alignment);
        for buffer in &plan.buffers {
            let BufferKind::Input(input) = buffer.kind else { continue };
            let Some(bytes) = inputs.get(input).filter(|bytes| !bytes.is_empty()) else { continue };
            let fits = start.checked_add(bytes.len()).is_some_and(|end| end <= self.range.end);
            // Another length is refused when the plan runs.
            if !fits || bytes.len() != buffer.bytes {
                continue;
            }
            // SAFETY: a part of the range, which is only read between a join and a release: `take` and its caller.
            unsafe { self.lane.copy_in(memory.at(start, bytes.len()), bytes)? };
            self.inputs.push((input, start));
            start = (start + bytes.len()).next_multiple_of(self.alignment);
        }
        self.plan = (!self.inputs.is_empty()).then_some(number);
        Ok(self.plan.is_some())
    }

    /// Begins a run of a plan: what the device queues from now on sees the inputs. None of them are there for the run unless
    /// they are its own.
    pub fn begin(&mut self, own: Option<usize>) -> Result<(), String> {
        let Some(there) = self.plan.take() else { return self.end() };
        if own != Some(there) {
            self.inputs.clear();
        }
        self.lane.join()
    }

    /// Copies an input to where its plan has it, if it is there. Returns whether it is.
    ///
    /// # Safety
    /// As for [`Device::copy`], of a place in the same memory. It is between [`InputsAhead::begin`] and [`InputsAhead::end`].
    pub unsafe fn take<D: Device>(
        &self,
        device: &D,
        memory: &D::Memory,
        input: usize,
        to: Range<usize>,
    ) -> Result<bool, String> {
        let Some(&(_, start)) = self.inputs.iter().find(|(there, _)| *there == input) else {
            return Ok(false);
        };
        // SAFETY: both are inside the memory, and what is ahead lies behind the arena; the rest is the caller's promise.
        unsafe { device.copy(memory.at(start, to.len()), memory.at(to.start, to.len()), to.len())? };
        Ok(true)
    }

    /// Lets the next inputs overwrite these, once what was queued so far has read them.
    pub fn end(&mut self) -> Result<(), String> {
        if self.inputs.is_empty() {
            return Ok(());
        }
        self.inputs.clear();
        self.lane.release()
    }
}

#[cfg(test)]
mod tests;
