//! What computes: the seam between the runtime and the kernels of an executor.

use plimsoll_plan::{ExecuteError, Executor, KernelQuery, PlanSet, Prepared};
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

    /// What a call has in common with those that [`Device::join`] makes one of it with. `None`: it only runs by itself.
    fn joins<'c>(&self, _call: &'c Self::Call) -> Option<&'c str> {
        None
    }

    /// A call without scratch that does what others do, which have the same in common, none of which touches what another one
    /// writes: with the same bits, and sooner. Each is given with its numbers of inputs and outputs; the operands are theirs, one
    /// call's after the other's.
    fn join(&self, _calls: &[(&Self::Call, [usize; 2])]) -> Option<Self::Call> {
        None
    }

    /// Calls what queues kernels and copies inside its memory, and keeps them as one instead of running them. `None`: it keeps
    /// nothing of this, and nothing has run.
    fn record(&self, _queue: &mut dyn FnMut() -> Result<(), String>) -> Option<Box<dyn Recording>> {
        None
    }

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

    /// Copies values to the host's memory, over the link as [`Device::copy_in`].
    ///
    /// # Safety
    /// As for [`Memory::read`].
    unsafe fn copy_out(&self, memory: &Self::Memory, offset: usize, into: &mut [u8]) -> Result<(), String> {
        // SAFETY: the caller's promise is passed on.
        unsafe { memory.read(offset, into) }
    }

    /// Waits until everything that was queued has run; the error is that of what failed.
    fn finish(&self) -> Result<(), String> {
        Ok(())
    }

    /// Why this process can use it no more, if that is so. Asked after something has failed.
    fn lost(&self) -> Option<String> {
        None
    }

    /// Whether its memory is the host's, which may then use it by address: kernels have completed when they return.
    fn in_host_memory(&self) -> bool {
        false
    }

    /// Memory is given in pages of so many bytes. What is larger than half of one takes whole pages; smaller pieces share some.
    fn page_bytes(&self) -> usize {
        1
    }
}

/// Kernels and copies that a device has kept, with the addresses they were queued with. Dropping it waits for them.
pub trait Recording: Send {
    /// Queues them all.
    ///
    /// # Safety
    /// As for [`Device::run`] and [`Device::copy`], of each of them.
    unsafe fn run(&self) -> Result<(), String>;
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
    /// What runs them, and gives memory for what they read and write.
    fn kernel_device(&self) -> Arc<dyn KernelDevice>;

    /// As [`Executor::prepare`], for plans whose inputs and results are in memory of [`KernelExecutor::kernel_device`].
    fn prepare_session(&self, plans: Arc<PlanSet>) -> Result<Box<dyn KernelSession>, ExecuteError>;
}

/// Plans that are ready to run beside single kernels of the same device.
pub trait KernelSession: Prepared {
    /// As [`Prepared::run`]. On a device that queues kernels the run may go on when this returns, and what fails in it is told
    /// by what waits for it.
    ///
    /// # Safety
    /// Inputs in the device's memory are valid, and only kernels that are queued later write to them.
    unsafe fn run_on_device(&mut self, plan: usize, inputs: &[Input<'_>]) -> Result<(), ExecuteError>;

    /// As [`Prepared::read_output`], to the device's memory.
    ///
    /// # Safety
    /// The device has so many bytes there, and nothing else uses them meanwhile.
    unsafe fn copy_output(
        &self,
        plan: usize,
        output: usize,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), ExecuteError>;
}

/// An input of a step.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// In host memory.
    Host(&'a [u8]),
    /// In the device's memory: the address, and how many bytes.
    Device(*const u8, usize),
}

impl Input<'_> {
    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            Self::Device(_, bytes) => *bytes,
        }
    }
}

/// A [`Device`] whose kernels are run one by one, on values in memory that is mapped piece by piece. Every device is one.
pub trait KernelDevice: Send + Sync {
    /// The kernel for a node, if there is one.
    fn single(self: Arc<Self>, query: &KernelQuery<'_>) -> Option<Box<dyn SingleKernel>>;

    /// Maps memory, zeroed. The host's reads and writes of it pass the link between the two.
    fn map(self: Arc<Self>, bytes: usize) -> Result<Box<dyn Memory>, String>;

    /// As [`Device::copy`], also from one mapping to another.
    ///
    /// # Safety
    /// As for [`Device::copy`].
    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), String>;

    /// As [`Device::finish`].
    fn finish(&self) -> Result<(), String>;

    /// As [`Device::in_host_memory`].
    fn in_host_memory(&self) -> bool;

    /// As [`Device::page_bytes`].
    fn page_bytes(&self) -> usize;
}

/// A kernel that can be run by itself: a call with its device.
pub trait SingleKernel: Send + Sync {
    /// Bytes of scratch that it needs.
    fn workspace_bytes(&self) -> usize;

    /// Runs it, or queues it.
    ///
    /// # Safety
    /// As for [`Device::run`]. Besides, no other kernel of the device may be run meanwhile.
    unsafe fn run(&self, operands: &Operands<'_>) -> Result<(), String>;
}

impl<D: Device + 'static> KernelDevice for D {
    fn single(self: Arc<Self>, query: &KernelQuery<'_>) -> Option<Box<dyn SingleKernel>> {
        let call = self.find(query)?;
        Some(Box::new(Single { device: self, call }))
    }

    fn map(self: Arc<Self>, bytes: usize) -> Result<Box<dyn Memory>, String> {
        let memory = Device::map(self.as_ref(), bytes)?;
        Ok(Box::new(Mapped { memory, device: self }))
    }

    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), String> {
        // SAFETY: the caller's promise is passed on.
        unsafe { Device::copy(self, from, to, bytes) }
    }

    fn finish(&self) -> Result<(), String> {
        Device::finish(self)
    }

    fn in_host_memory(&self) -> bool {
        Device::in_host_memory(self)
    }

    fn page_bytes(&self) -> usize {
        Device::page_bytes(self)
    }
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

/// Memory with its device, over whose link it is read and written.
struct Mapped<D: Device> {
    memory: D::Memory,
    device: Arc<D>,
}

impl<D: Device> Memory for Mapped<D> {
    fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        self.memory.at(offset, bytes)
    }

    unsafe fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), String> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.device.copy_out(&self.memory, offset, into) }
    }

    unsafe fn write(&self, offset: usize, from: &[u8]) -> Result<(), String> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.device.copy_in(&self.memory, offset, from) }
    }

    unsafe fn fill(&self, offset: usize, bytes: usize, byte: u8) -> Result<(), String> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.memory.fill(offset, bytes, byte) }
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
