//! Indices out of range that kernels have found: a word of device memory for each call that reads indices, looked at whenever
//! the host waits for the device anyway.

use crate::driver::{Address, Context, CudaError, DeviceMemory, Stream};
use crate::kernels::Fault;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Words at most; later calls share the last one, whose fault may then be that of another.
const WORDS: usize = 1024;

/// The words, and what they say.
pub(crate) struct Faults {
    memory: DeviceMemory,
    kinds: Mutex<Vec<(&'static str, Fault)>>,
    count: AtomicUsize,
}

impl Faults {
    /// No faults.
    pub fn new(context: &Arc<Context>, stream: &Stream) -> Result<Self, CudaError> {
        let memory = DeviceMemory::new(context, WORDS * size_of::<u64>())?;
        let faults = Self { memory, kinds: Mutex::default(), count: AtomicUsize::new(0) };
        faults.reset(stream)?;
        Ok(faults)
    }

    /// A word for a call of an op.
    pub fn word(&self, op: &'static str, fault: Fault) -> Address {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        // Calls with the same words share one.
        let index = kinds.iter().position(|&kind| kind == (op, fault)).unwrap_or_else(|| {
            if kinds.len() < WORDS {
                kinds.push((op, fault));
            }
            kinds.len() - 1
        });
        self.count.store(kinds.len(), Ordering::Relaxed);
        self.memory.start + (index * size_of::<u64>()) as Address
    }

    /// The error of the first fault since the last check. Allocates nothing if there is none.
    pub fn check(&self, stream: &Stream) -> Result<(), String> {
        let count = self.count.load(Ordering::Relaxed);
        if count == 0 {
            return Ok(());
        }
        let mut words = [Fault::NONE; WORDS];
        let bytes = count * size_of::<u64>();
        // SAFETY: as many words as there are; the copy is done before they are looked at.
        unsafe { stream.copy_out(words.as_mut_ptr().cast(), self.memory.start, bytes) }
            .map_err(|e| e.to_string())?;
        stream.finish().map_err(|e| e.to_string())?;
        if words[..count].iter().all(|&word| word == Fault::NONE) {
            return Ok(());
        }
        self.reset(stream).map_err(|e| e.to_string())?;
        let kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let message = |op: &str, fault: &Fault, word| Some(format!("{op}: {}", fault.message(word)?));
        let found = kinds.iter().zip(words).find_map(|((op, fault), word)| message(op, fault, word));
        found.map_or(Ok(()), Err)
    }

    fn reset(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: the whole of the memory; `Fault::NONE` is a word of ones.
        unsafe { stream.fill(self.memory.start, self.memory.bytes, u8::MAX) }
    }
}
