//! The transfer queues of a run, a queue for each tier, and the transfers that its steps have in flight.

use crate::spill::TransferError;
use plimsoll_plan::{Direction, ExecuteError, PerTier, Tier};
use std::time::Duration;

/// Loads from and stores to a tier, which run beside the thread that requests them.
///
/// Every request sees the effects of all earlier ones to the same tier, on the tier and on memory; requests without a hazard
/// between them may overlap in time. Making a request and waiting for one allocate nothing. After a failed transfer nothing
/// more is moved, and every later request fails with its error.
pub trait TransferQueue: Send + Sync {
    /// Starts a load of `bytes` of the tier from `offset` on into memory.
    ///
    /// # Safety
    /// The memory must be valid, and nobody may read or write it, until [`TransferQueue::wait`] has returned for the
    /// ticket or the queue is dropped.
    ///
    /// # Panics
    /// If the range is not inside the tier.
    unsafe fn load(&self, offset: u64, into: *mut u8, bytes: usize) -> Ticket;

    /// Starts a store of `bytes` of memory to the tier from `offset` on, a multiple of
    /// [`TIER_ALIGNMENT`](plimsoll_plan::TIER_ALIGNMENT). What the tier holds up to the next such multiple is lost.
    ///
    /// # Safety
    /// The memory must be valid, and nobody may write it, until [`TransferQueue::wait`] has returned for the ticket or
    /// the queue is dropped.
    ///
    /// # Panics
    /// If the range is not inside the tier, or the offset is not such a multiple.
    unsafe fn store(&self, offset: u64, from: *const u8, bytes: usize) -> Ticket;

    /// Waits until a request, and every earlier one in its direction, has completed.
    ///
    /// # Errors
    /// The first of theirs.
    fn wait(&self, ticket: Ticket) -> Result<(), TransferError>;

    /// Waits until all requests have completed.
    ///
    /// # Errors
    /// The first of theirs.
    fn drain(&self) -> Result<(), TransferError>;

    /// Reads at any offset, after all earlier requests.
    ///
    /// # Panics
    /// If the range is not inside the tier.
    fn read_now(&self, offset: u64, into: &mut [u8]) -> Result<(), TransferError>;

    /// Writes at any offset, after all earlier requests, and leaves the bytes around the range as they are.
    ///
    /// # Panics
    /// If the range is not inside the tier.
    fn write_now(&self, offset: u64, from: &[u8]) -> Result<(), TransferError>;

    /// How long callers have waited so far, for requests to complete or for space in the queue.
    fn waited(&self) -> Duration;
}

/// Names a request of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// The queue of each tier that a run uses.
pub type Queues = PerTier<Option<Box<dyn TransferQueue>>>;

/// A place outside the arena.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub tier: Tier,
    pub offset: u64,
}

/// The queues, and the last transfer of each step.
pub(crate) struct Transfers {
    queues: Queues,
    tickets: Vec<Option<(Tier, Ticket)>>,
}

impl Transfers {
    /// For plans of so many steps at most.
    pub fn new(queues: Queues, steps: usize) -> Self {
        let any = Tier::ALL.into_iter().any(|tier| queues[tier].is_some());
        Self { queues, tickets: vec![None; if any { steps } else { 0 }] }
    }

    /// The queue of a tier.
    pub fn queue(&self, tier: Tier) -> Result<&dyn TransferQueue, ExecuteError> {
        let missing = || ExecuteError::Transfer(format!("this run has no queue for {}", tier.name()));
        self.queues[tier].as_deref().ok_or_else(missing)
    }

    /// Starts a transfer between memory and a place.
    ///
    /// # Safety
    /// As for [`TransferQueue::load`] and [`TransferQueue::store`], until [`Transfers::wait`] has returned for it.
    pub unsafe fn start(
        &self,
        direction: Direction,
        place: Place,
        memory: *mut u8,
        bytes: usize,
    ) -> Result<Ticket, ExecuteError> {
        let queue = self.queue(place.tier)?;
        // SAFETY: the caller's promise is passed on.
        Ok(unsafe {
            match direction {
                Direction::Load => queue.load(place.offset, memory, bytes),
                Direction::Store => queue.store(place.offset, memory, bytes),
            }
        })
    }

    /// Starts the transfer of a step.
    ///
    /// # Safety
    /// As for [`Transfers::start`], until [`Transfers::wait_for`] has returned for the step.
    pub unsafe fn start_step(
        &mut self,
        step: usize,
        direction: Direction,
        place: Place,
        memory: *mut u8,
        bytes: usize,
    ) -> Result<(), ExecuteError> {
        // SAFETY: the caller's promise is passed on.
        let ticket = unsafe { self.start(direction, place, memory, bytes)? };
        self.tickets[step] = Some((place.tier, ticket));
        Ok(())
    }

    /// Waits for the last transfers of steps.
    pub fn wait_for(&self, steps: &[u32]) -> Result<(), ExecuteError> {
        let mut tickets = steps.iter().filter_map(|&step| *self.tickets.get(step as usize)?);
        tickets.try_for_each(|(tier, ticket)| self.wait(tier, ticket))
    }

    /// Waits for a transfer.
    pub fn wait(&self, tier: Tier, ticket: Ticket) -> Result<(), ExecuteError> {
        self.queue(tier)?.wait(ticket).map_err(failed)
    }

    /// Waits for every transfer.
    pub fn drain(&self) -> Result<(), ExecuteError> {
        // All of them, also after one has failed.
        let drained = self.present().map(|queue| queue.drain().map_err(failed));
        drained.fold(Ok(()), Result::and)
    }

    /// How long callers have waited so far.
    pub fn waited(&self) -> Duration {
        self.present().map(TransferQueue::waited).sum()
    }

    fn present(&self) -> impl Iterator<Item = &dyn TransferQueue> {
        Tier::ALL.into_iter().filter_map(|tier| self.queues[tier].as_deref())
    }
}

/// The error of a run whose transfer failed.
pub(crate) fn failed(error: TransferError) -> ExecuteError {
    ExecuteError::Transfer(error.to_string())
}
