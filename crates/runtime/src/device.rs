//! What computes: the seam between the runtime and the kernels of an executor.

use plimsoll_plan::{Executor, KernelQuery};
use std::sync::Arc;

/// What computes: the kernels of an executor and the memory that they work in. Kernels run one after the other; an
/// asynchronous device queues them, and everything else that touches its memory comes after what was queued before.
pub trait Device: Send + Sync {
    /// A node's kernel with its sizes.
    type Call: Send + Sync;
    /// The memory that the kernels work in.
    type Memory: Memory;

    /// Maps memory for an arena, zeroed, so that the device runs out of memory here or never.
    fn map(&self, bytes: usize) -> Result<Self::Memory, String>;

    /// The kernel for a node, if there is one.
    fn find(&self, query: &KernelQuery<'_>) -> Option<Self::Call>;

    /// Bytes of scratch that a call needs.
    fn workspace_bytes(&self, call: &Self::Call) -> usize;

    /// Runs a kernel, or queues it. Allocates nothing.
    ///
    /// # Safety
    /// The operands are those of the node that the call was found for, each valid for its type; they overlap only where the
    /// target allows in place; the workspace has [`Device::workspace_bytes`] bytes that nothing else uses.
    unsafe fn run(&self, call: &Self::Call, operands: &Operands<'_>) -> Result<(), String>;

    /// Copies bytes inside its memory; the ranges may overlap.
    ///
    /// # Safety
    /// Both ranges are inside the memory, and nothing else uses them meanwhile.
    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), String>;

    /// Copies an input of a step into the arena. Where the computing space is another than the host's, it passes their link.
    ///
    /// # Safety
    /// As for [`Memory::write`].
    unsafe fn copy_in(&self, memory: &Self::Memory, offset: usize, from: &[u8]) -> Result<(), String> {
        // SAFETY: the caller's promise is passed on.
        unsafe { memory.write(offset, from) }
    }

    /// A way for the next run's inputs to its memory, beside its kernels; none where inputs are only copied before a run.
    fn input_lane(&self) -> Result<Option<Box<dyn InputLane>>, String> {
        Ok(None)
    }

    /// Whether something that was queued has not run yet.
    fn is_running(&self) -> bool {
        false
    }

    /// Waits until everything that was queued has run; the error is that of what failed.
    fn finish(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Copies from the host to a device's memory, beside its kernels: ordered with what the device has queued by
/// [`InputLane::join`] and [`InputLane::release`] alone. Dropping it waits for them.
pub trait InputLane: Send {
    /// Starts a copy. The bytes have been read when this returns.
    ///
    /// # Safety
    /// The memory is valid. Of what the device has queued, nothing uses it but what comes before the last
    /// [`InputLane::release`] or after the next [`InputLane::join`].
    unsafe fn copy_in(&mut self, to: *mut u8, from: &[u8]) -> Result<(), String>;

    /// What the device queues from now on comes after the copies so far.
    fn join(&mut self) -> Result<(), String>;

    /// Copies from now on come after what the device has queued so far.
    fn release(&mut self) -> Result<(), String>;
}

/// The memory of a computing space: one allocation, which the host reads and writes through these functions alone. Each sees
/// the effects of all kernels that were run before.
pub trait Memory: Send + Sync {
    /// Length.
    fn bytes(&self) -> usize;

    /// The address at `offset`, from which kernels may use `bytes`.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    fn at(&self, offset: usize, bytes: usize) -> *mut u8;

    /// Copies bytes out.
    ///
    /// # Safety
    /// No transfer writes to the range meanwhile.
    unsafe fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), String>;

    /// Copies bytes in.
    ///
    /// # Safety
    /// No transfer uses the range meanwhile.
    unsafe fn write(&self, offset: usize, from: &[u8]) -> Result<(), String>;

    /// Fills a range with a byte.
    ///
    /// # Safety
    /// As for [`Memory::write`].
    unsafe fn fill(&self, offset: usize, bytes: usize, byte: u8) -> Result<(), String>;
}

/// An executor whose kernels can also be run one by one, without a plan.
pub trait KernelExecutor: Executor + Send + Sync {
    /// The kernel for a node with its device, if there is one.
    fn single(&self, query: &KernelQuery<'_>) -> Option<Box<dyn SingleKernel>>;
}

/// A kernel that can be run by itself: a call with its device.
pub trait SingleKernel: Send + Sync {
    /// Bytes of scratch that it needs.
    fn workspace_bytes(&self) -> usize;

    /// Runs it.
    ///
    /// # Safety
    /// As for [`Device::run`]. Besides, no other kernel of the device may run meanwhile.
    unsafe fn run(&self, operands: &Operands<'_>) -> Result<(), String>;
}

/// The kernel of a device for a node.
pub fn single_kernel<D: Device + 'static>(
    device: &Arc<D>,
    query: &KernelQuery<'_>,
) -> Option<Box<dyn SingleKernel>> {
    let call = device.find(query)?;
    Some(Box::new(Single { device: device.clone(), call }))
}

struct Single<D: Device> {
    device: Arc<D>,
    call: D::Call,
}

impl<D: Device> SingleKernel for Single<D> {
    fn workspace_bytes(&self) -> usize {
        self.device.workspace_bytes(&self.call)
    }

    unsafe fn run(&self, operands: &Operands<'_>) -> Result<(), String> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.device.run(&self.call, operands) }
    }
}

/// The addresses of a step's operands.
pub struct Operands<'a> {
    /// Of what it reads.
    pub reads: &'a [*const u8],
    /// Of what it writes.
    pub writes: &'a [*mut u8],
    /// Of its scratch.
    pub workspace: *mut u8,
    /// Bytes of its scratch.
    pub workspace_bytes: usize,
}

impl Operands<'_> {
    /// What is read at an index.
    ///
    /// # Safety
    /// The operand has that many elements of that type, and nothing writes to it meanwhile.
    pub unsafe fn read<T>(&self, i: usize, elements: usize) -> &[T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.reads[i].cast(), elements) }
    }

    /// What is written at an index.
    ///
    /// # Safety
    /// The operand has that many elements of that type, and nothing else uses it meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the plan keeps a step's outputs apart")]
    pub unsafe fn write<T>(&self, i: usize, elements: usize) -> &mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.writes[i].cast(), elements) }
    }

    /// The workspace.
    ///
    /// # Safety
    /// Nothing else uses the workspace meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the plan gives each step its own workspace")]
    pub unsafe fn scratch(&self) -> &mut [f32] {
        if self.workspace_bytes == 0 {
            return &mut [];
        }
        // SAFETY: the caller's promise; the arena is aligned and every bit pattern is an f32.
        unsafe { std::slice::from_raw_parts_mut(self.workspace.cast(), self.workspace_bytes / 4) }
    }
}
