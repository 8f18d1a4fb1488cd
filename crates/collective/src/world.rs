//! The processes of a run.

use crate::MpiError;
use crate::abi::Handle;
use crate::library::Mpi;
use crate::limit::within;
use plimsoll_plan::{Message, Ranks, Transport};
use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of one message of MPI at most; longer ones are cut.
const LARGEST_MESSAGE: usize = 1 << 30;
/// The tag of what [`Ranks::gather`] passes. Chains have the tags above it; every MPI has tags up to 32,767.
const GATHER_TAG: c_int = 0;
const LARGEST_TAG: usize = 32_767;
/// Numbers that are added up at once: the library holds as many of its own meanwhile.
const ADDED_AT_ONCE: usize = 1 << 18;
/// Tests before a wait lets other threads run, and how long it has lasted before it sleeps.
const EAGER_TESTS: u32 = 64;
const YIELDING: Duration = Duration::from_micros(100);
/// A wait sleeps between tests for this part (1/8) of what it has lasted, so that what the sleep adds to it is little; within limits.
const NAP_PART: u32 = 8;
const SHORTEST_NAP: Duration = Duration::from_micros(10);
const LONGEST_NAP: Duration = Duration::from_micros(100);

/// Bytes and number of the messages that are on their way together while the library is measured: as many small ones as a step may have that
/// goes ahead of the next process, and as many that the library cuts.
const FIRST_MESSAGES: [(usize, usize); 2] = [(2 << 10, 64), (32 << 10, 32)];

/// What ending all processes may take before this one ends by itself.
const TO_ABORT: Duration = Duration::from_secs(3);

/// How long a receive that is cancelled may take to complete.
const TO_CANCEL: Duration = Duration::from_secs(1);

/// All processes that the launcher started, as this one sees them. Where one fails, the others are ended by [`World::abort`], or by the
/// launcher.
///
/// A wait ends with an error after the time-out, so that a process that hangs ends the run. Where a wait cannot be left with an error, it
/// ends this process, with its reason on standard error: while MPI starts and ends, and in the middle of a message.
pub struct World {
    mpi: Mpi,
    rank: usize,
    size: usize,
    time_out: Duration,
    /// What was sent and not yet known to be received, and what is being added up; also the lock that lets one thread at a time call
    /// MPI.
    sending: Mutex<Vec<Sending>>,
    library_bytes: usize,
}

struct Sending {
    request: Handle,
    what: What,
}

/// What a request is for.
enum What {
    /// A message to a process.
    To(usize),
    /// So many numbers that all processes add up.
    Sum(usize),
}

impl World {
    /// Starts MPI, connects to the other processes, and passes some messages. Once in a process. `measure` tells the process's memory, before
    /// and after; messages on their way may take `more` than that.
    pub fn connect(
        time_out: Duration,
        measure: impl Fn() -> usize,
        more: usize,
    ) -> Result<Arc<Self>, MpiError> {
        let before = measure();
        let mpi = Mpi::load()?;
        let mut provided = 0;
        let wanted = mpi.constants.thread_serialized;
        // SAFETY: MPI takes null for the arguments, and writes an integer.
        let started = within(time_out, silent("while MPI started, another rank", time_out), || unsafe {
            (mpi.MPI_Init_thread)(std::ptr::null_mut(), std::ptr::null_mut(), wanted, &mut provided)
        });
        let mut world = Self { mpi, rank: 0, size: 1, time_out, sending: Mutex::default(), library_bytes: 0 };
        world.check("MPI_Init_thread", started)?;
        let comm = world.mpi.constants.comm_world;
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the communicator of all processes, and places for two integers.
        unsafe {
            let handled = (world.mpi.MPI_Comm_set_errhandler)(comm, world.mpi.constants.errors_return);
            world.check("MPI_Comm_set_errhandler", handled)?;
            world.check("MPI_Comm_rank", (world.mpi.MPI_Comm_rank)(comm, &mut rank))?;
            world.check("MPI_Comm_size", (world.mpi.MPI_Comm_size)(comm, &mut size))?;
        }
        (world.rank, world.size) = (rank.max(0) as usize, size.max(1) as usize);
        // Connections are made by the first messages.
        let passed = world.gather_with(&[]).and_then(|_| world.fill_buffers());
        passed.map_err(|reason| MpiError::Call { call: "the first messages", reason })?;
        world.library_bytes = measure().saturating_sub(before) + more;
        Ok(Arc::new(world))
    }

    /// The number of this process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many processes there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The library and its version, in a line.
    pub fn library(&self) -> String {
        let (mut text, mut length) = (vec![0u8; 8192], 0);
        // SAFETY: no library's text is longer.
        let asked =
            unsafe { (self.mpi.MPI_Get_library_version)(text.as_mut_ptr().cast::<c_char>(), &mut length) };
        let text = if asked == 0 { text_of(&text, length) } else { "MPI".into() };
        text.lines().next().unwrap_or_default().trim_end_matches(',').to_string()
    }

    /// Ends all processes at once, with an exit status. Does not return where MPI works. A process that is cut off from the launcher, for
    /// which the library waits, ends by itself after some seconds.
    pub fn abort(&self, status: u8) {
        let alone = move || {
            std::thread::sleep(TO_ABORT);
            // SAFETY: ends the process without what it has registered to run then: the library's part waits for the launcher, too.
            unsafe { libc::_exit(i32::from(status)) }
        };
        // Without a thread the library's wait is all there is.
        let _ = std::thread::Builder::new().name("abort".into()).stack_size(64 << 10).spawn(alone);
        let _one = self.lock();
        // SAFETY: the communicator of all processes.
        unsafe { (self.mpi.MPI_Abort)(self.mpi.constants.comm_world, c_int::from(status)) };
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Sending>> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), MpiError> {
        if code == 0 {
            return Ok(());
        }
        let (mut text, mut length) = (vec![0u8; 1024], 0);
        // SAFETY: texts of errors have at most 512 characters.
        unsafe { (self.mpi.MPI_Error_string)(code, text.as_mut_ptr().cast::<c_char>(), &mut length) };
        Err(MpiError::Call { call, reason: text_of(&text, length) })
    }

    fn checked(&self, call: &'static str, code: c_int) -> Result<(), String> {
        self.check(call, code).map_err(|e| e.to_string())
    }

    /// Starts to send bytes, in pieces.
    ///
    /// # Safety
    /// As for [`Transport::send`].
    unsafe fn start_sending(&self, to: usize, tag: c_int, bytes: &[u8]) -> Result<(), String> {
        let mut sending = self.lock();
        for piece in pieces(bytes.len()) {
            // SAFETY: the promise of the caller.
            let request = unsafe { self.start_piece(to, tag, &bytes[piece]) }?;
            sending.push(Sending { request, what: What::To(to) });
        }
        Ok(())
    }

    /// Starts to send one message of MPI, under the lock.
    ///
    /// # Safety
    /// The bytes stay as they are until the request has completed.
    unsafe fn start_piece(&self, to: usize, tag: c_int, bytes: &[u8]) -> Result<Handle, String> {
        let (constants, mut request) = (&self.mpi.constants, 0);
        // SAFETY: the promise of the caller.
        let started = unsafe {
            let (count, to) = (bytes.len() as c_int, to as c_int);
            let (start, comm) = (bytes.as_ptr().cast(), constants.comm_world);
            (self.mpi.MPI_Isend)(start, count, constants.byte, to, tag, comm, &mut request)
        };
        self.checked("MPI_Isend", started)?;
        Ok(request)
    }

    /// Whether a request has completed.
    fn is_done(&self, request: &mut Handle) -> Result<bool, String> {
        let mut done = 0;
        // SAFETY: a request of this process; the status is not written.
        let tested = unsafe { (self.mpi.MPI_Test)(request, &mut done, self.mpi.constants.status_ignore) };
        self.checked("MPI_Test", tested)?;
        Ok(done != 0)
    }

    /// Waits until `is_done`, which is called under the lock.
    fn wait(
        &self,
        mut is_done: impl FnMut(&mut Vec<Sending>) -> Result<bool, String>,
    ) -> Result<bool, String> {
        let (mut tests, start, mut sleeps) = (0u32, Instant::now(), false);
        loop {
            if is_done(&mut self.lock())? {
                return Ok(true);
            }
            tests = tests.saturating_add(1);
            if tests < EAGER_TESTS {
                std::hint::spin_loop();
                continue;
            }
            let waited = start.elapsed();
            if waited < YIELDING {
                std::thread::yield_now();
            } else if waited > self.time_out {
                return Ok(false);
            } else {
                if !std::mem::replace(&mut sleeps, true) {
                    sleep_exactly();
                }
                std::thread::sleep((waited / NAP_PART).clamp(SHORTEST_NAP, LONGEST_NAP));
            }
        }
    }

    /// Waits for bytes of another process.
    fn receive_tagged(&self, from: usize, tag: c_int, into: &mut [u8]) -> Result<(), String> {
        let constants = &self.mpi.constants;
        for piece in pieces(into.len()) {
            let (mut request, count) = (0, piece.len() as c_int);
            // SAFETY: the bytes are borrowed until the request has completed or was cancelled, below.
            let started = unsafe {
                let (start, comm) = (into[piece].as_mut_ptr(), constants.comm_world);
                let _one = self.lock();
                (self.mpi.MPI_Irecv)(
                    start.cast(),
                    count,
                    constants.byte,
                    from as c_int,
                    tag,
                    comm,
                    &mut request,
                )
            };
            self.checked("MPI_Irecv", started)?;
            if self.wait(|_| self.is_done(&mut request))? {
                continue;
            }
            // SAFETY: a request of this process.
            unsafe {
                let _one = self.lock();
                (self.mpi.MPI_Cancel)(&mut request);
            }
            // A receive that is cancelled completes without the other process, but for one of which a part has arrived: then MPI may still
            // write to the bytes.
            return within(TO_CANCEL, self.silent(from), || {
                while !self.is_done(&mut request)? {
                    std::thread::sleep(LONGEST_NAP);
                }
                Err(self.silent(from))
            });
        }
        Ok(())
    }

    /// Waits until all that was sent was received.
    fn finish_sending(&self) -> Result<(), String> {
        let done = self.wait(|sending| {
            let mut at = 0;
            while at < sending.len() {
                match self.is_done(&mut sending[at].request)? {
                    true => drop(sending.swap_remove(at)),
                    false => at += 1,
                }
            }
            Ok(sending.is_empty())
        })?;
        match self.lock().first() {
            Some(Sending { what: What::To(rank), .. }) if !done => Err(self.silent(*rank)),
            Some(_) if !done => Err(self.silent_as("another rank")),
            _ => Ok(()),
        }
    }

    fn silent(&self, rank: usize) -> String {
        self.silent_as(&format!("rank {rank}"))
    }

    fn silent_as(&self, who: &str) -> String {
        silent(who, self.time_out)
    }

    /// Numbers that are being added up.
    fn adding(&self) -> usize {
        let count = |sending: &Sending| match sending.what {
            What::Sum(numbers) => numbers,
            What::To(_) => 0,
        };
        self.lock().iter().map(count).sum()
    }

    /// Passes messages to the next process until the library has the memory for them that a step needs: it takes it when it is first
    /// needed, and keeps it.
    fn fill_buffers(&self) -> Result<(), String> {
        if self.size == 1 {
            return Ok(());
        }
        let (next, previous) = ((self.rank + 1) % self.size, (self.rank + self.size - 1) % self.size);
        for (bytes, count) in FIRST_MESSAGES {
            let (sent, mut received) = (vec![0; bytes], vec![0; bytes]);
            for _ in 0..count {
                // SAFETY: the bytes live until `finish_sending` below; where that fails, the run ends.
                unsafe { self.start_sending(next, GATHER_TAG, &sent) }?;
            }
            for _ in 0..count {
                self.receive_tagged(previous, GATHER_TAG, &mut received)?;
            }
            self.finish_sending()?;
        }
        Ok(())
    }

    fn gather_with(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let length = (bytes.len() as u64).to_le_bytes();
        let others = || (0..self.size).filter(|&rank| rank != self.rank);
        for to in others() {
            // SAFETY: both live until `finish_sending` below; where that fails, the run ends.
            unsafe {
                self.start_sending(to, GATHER_TAG, &length)?;
                self.start_sending(to, GATHER_TAG, bytes)?;
            }
        }
        let mut all = vec![Vec::new(); self.size];
        all[self.rank] = bytes.to_vec();
        for from in others() {
            let mut length = [0; 8];
            self.receive_tagged(from, GATHER_TAG, &mut length)?;
            let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
            if length > LARGEST_GATHERED {
                return Err(format!(
                    "rank {from} sent {length} bytes where at most {LARGEST_GATHERED} are passed"
                ));
            }
            all[from].resize(length, 0);
            self.receive_tagged(from, GATHER_TAG, &mut all[from])?;
        }
        self.finish_sending()?;
        Ok(all)
    }
}

/// Bytes that a process gives to [`Ranks::gather`] at most.
const LARGEST_GATHERED: usize = 1 << 20;

/// The ranges that a message is cut into; an empty one has none.
fn pieces(bytes: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    pieces_of(bytes, LARGEST_MESSAGE)
}

fn pieces_of(length: usize, most: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..length).step_by(most).map(move |start| start..length.min(start + most))
}

/// Lets this thread's sleeps end when they should: the kernel may add 50 us, to wake several threads at once.
fn sleep_exactly() {
    #[cfg(target_os = "linux")]
    // SAFETY: sets a number of the calling thread.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_usize);
    }
}

fn silent(who: &str, time_out: Duration) -> String {
    format!("{who} did not answer for {} s: it hangs, or is cut off", time_out.as_secs())
}

fn text_of(bytes: &[u8], length: c_int) -> String {
    let length = usize::try_from(length).unwrap_or(0).min(bytes.len());
    String::from_utf8_lossy(&bytes[..length]).trim_end_matches('\0').to_string()
}

/// The tag of a chain. Messages of one chain between two processes are received in the order in which they are sent.
fn tag(message: Message) -> Result<c_int, String> {
    match message.chain as usize + 1 {
        tag @ ..=LARGEST_TAG => Ok(tag as c_int),
        chains => Err(format!("a step has {chains} sums over the batch, MPI can tell {LARGEST_TAG} apart")),
    }
}

impl Transport for World {
    fn device(&self) -> usize {
        self.rank
    }

    fn devices(&self) -> usize {
        self.size
    }

    unsafe fn send(&self, to: usize, message: Message, bytes: &[u8]) -> Result<(), String> {
        // SAFETY: the promise of the caller.
        unsafe { self.start_sending(to, tag(message)?, bytes) }
    }

    fn hand(&self, to: usize, message: Message, bytes: &[u8]) -> Result<(), String> {
        let tag = tag(message)?;
        for piece in pieces(bytes.len()) {
            let one = self.lock();
            // SAFETY: the bytes are borrowed until the request has completed; after a time-out the run ends.
            let mut request = unsafe { self.start_piece(to, tag, &bytes[piece]) }?;
            drop(one);
            if !self.wait(|_| self.is_done(&mut request))? {
                return Err(self.silent(to));
            }
        }
        Ok(())
    }

    fn receive(&self, from: usize, message: Message, into: &mut [u8]) -> Result<(), String> {
        self.receive_tagged(from, tag(message)?, into)
    }

    unsafe fn all_reduce(&self, numbers: *mut [f32]) -> Result<(), String> {
        let constants = &self.mpi.constants;
        for piece in pieces_of(numbers.len(), ADDED_AT_ONCE) {
            // All processes wait at the same pieces, so that each of them is started by all.
            if self.adding() + piece.len() > ADDED_AT_ONCE {
                self.finish_sending()?;
            }
            let (mut sending, mut request) = (self.lock(), 0);
            // SAFETY: the promise of the caller: the numbers are valid, and nobody touches them until `finish`.
            let started = unsafe {
                let start = numbers.cast::<f32>().add(piece.start).cast();
                let (count, comm) = (piece.len() as c_int, constants.comm_world);
                (self.mpi.MPI_Iallreduce)(
                    constants.in_place,
                    start,
                    count,
                    constants.float,
                    constants.sum,
                    comm,
                    &mut request,
                )
            };
            self.checked("MPI_Iallreduce", started)?;
            sending.push(Sending { request, what: What::Sum(piece.len()) });
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), String> {
        self.finish_sending()
    }
}

impl Ranks for World {
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        self.gather_with(bytes)
    }

    fn bytes(&self) -> usize {
        self.library_bytes
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // While the thread panics, or something sent was never received, others would wait in it.
        if std::thread::panicking() || !self.lock().is_empty() {
            return;
        }
        // SAFETY: nothing of MPI is used after this.
        within(self.time_out, self.silent_as("while MPI ended, another rank"), || unsafe {
            (self.mpi.MPI_Finalize)()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_into_pieces() {
        assert_eq!(pieces(0).count(), 0);
        assert_eq!(pieces(5).map(|piece| (piece.start, piece.end)).collect::<Vec<_>>(), [(0, 5)]);
        let long = LARGEST_MESSAGE * 2 + 1;
        let ends: Vec<usize> = pieces(long).map(|piece| piece.end).collect();
        assert_eq!(ends, [LARGEST_MESSAGE, 2 * LARGEST_MESSAGE, long]);
    }

    #[test]
    fn chains_have_tags_of_their_own() {
        let chain = |chain| tag(Message { chain, micro_batch: 0 });
        assert_eq!(chain(0), Ok(GATHER_TAG + 1));
        assert_eq!(chain(32_766), Ok(32_767));
        assert!(chain(32_767).unwrap_err().contains("32768 sums"));
    }
}
