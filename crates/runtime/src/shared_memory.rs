//! The transport between devices that are threads of one process: a receiver copies out of the sender's arena.

use plimsoll_plan::{Message, Transport};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The messages that wait for their receivers. There is no buffer: what is sent stays where it is until it has been copied.
pub struct Mailboxes {
    state: Mutex<State>,
    changed: Condvar,
    devices: usize,
}

struct State {
    /// The last message of every sender, by chain.
    sent: Vec<Vec<Option<Sent>>>,
    /// A device that failed in this step.
    failed: Option<usize>,
}

#[derive(Clone, Copy)]
struct Sent {
    micro_batch: u32,
    /// Whether its receiver has copied it.
    taken: bool,
    start: *const u8,
    bytes: usize,
}

// SAFETY: the bytes stay valid until they are received, by the promise of who sent them.
unsafe impl Send for Sent {}

impl Mailboxes {
    /// For so many devices, with so many chains in a step at most.
    pub fn new(devices: usize, chains: usize) -> Arc<Self> {
        let state = State { sent: vec![vec![None; chains]; devices], failed: None };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new(), devices })
    }

    /// Forgets the messages of the step before. No device runs.
    pub fn begin(&self) {
        let mut state = self.lock();
        state.sent.iter_mut().flatten().for_each(|sent| *sent = None);
        state.failed = None;
    }

    /// Ends every wait of the others with an error.
    pub fn fail(&self, device: usize) {
        self.lock().failed.get_or_insert(device);
        self.changed.notify_all();
    }

    /// The device that failed first in this step.
    pub fn failed(&self) -> Option<usize> {
        self.lock().failed
    }

    /// A device's connection.
    pub fn connect(self: &Arc<Self>, device: usize) -> Arc<dyn Transport> {
        Arc::new(SharedMemory { mailboxes: self.clone(), device })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct SharedMemory {
    mailboxes: Arc<Mailboxes>,
    device: usize,
}

impl Transport for SharedMemory {
    fn device(&self) -> usize {
        self.device
    }

    fn devices(&self) -> usize {
        self.mailboxes.devices
    }

    unsafe fn send(&self, _: usize, message: Message, bytes: &[u8]) -> Result<(), String> {
        let Message { chain, micro_batch } = message;
        let sent = Sent { micro_batch, taken: false, start: bytes.as_ptr(), bytes: bytes.len() };
        self.mailboxes.lock().sent[self.device][chain as usize] = Some(sent);
        self.mailboxes.changed.notify_all();
        Ok(())
    }

    fn hand(&self, to: usize, message: Message, bytes: &[u8]) -> Result<(), String> {
        // SAFETY: the bytes are borrowed until they are taken, below; a failure ends the receivers' waits before anything is copied.
        unsafe { self.send(to, message, bytes) }?;
        let mut state = self.mailboxes.lock();
        loop {
            if let Some(failed) = state.failed {
                return Err(format!("device {failed} failed"));
            }
            match state.sent[self.device][message.chain as usize] {
                Some(sent) if sent.taken => return Ok(()),
                _ => state = self.mailboxes.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn receive(&self, from: usize, message: Message, into: &mut [u8]) -> Result<(), String> {
        let mut state = self.mailboxes.lock();
        let sent = loop {
            if let Some(failed) = state.failed {
                return Err(format!("device {failed} failed"));
            }
            match state.sent[from][message.chain as usize] {
                Some(sent) if sent.micro_batch == message.micro_batch => break sent,
                _ => state = self.mailboxes.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(state);
        if sent.bytes != into.len() {
            return Err(format!("device {from} sent {} bytes of {}", sent.bytes, into.len()));
        }
        // SAFETY: the sender's promise: the bytes stay as they are until they are copied here. The lock orders this after what
        // wrote them, and the next message of the chain, which goes back to the sender, after this.
        unsafe { std::ptr::copy_nonoverlapping(sent.start, into.as_mut_ptr(), sent.bytes) };
        if let Some(sent) = &mut self.mailboxes.lock().sent[from][message.chain as usize] {
            sent.taken = true;
        }
        self.mailboxes.changed.notify_all();
        Ok(())
    }

    /// A step of several devices ends when all of them have ended.
    fn finish(&self) -> Result<(), String> {
        Ok(())
    }
}
