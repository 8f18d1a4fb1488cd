//! The thread pool: a fixed set of threads that run the tasks of one kernel at a time.
//!
//! Kernels are short (tens of microseconds) and follow one another closely, so handing work over must cost
//! about a microsecond: workers spin for a bounded time before they sleep, nothing is allocated per run, and
//! the caller never waits for a worker that has not started on the run yet.

use std::any::Any;
use std::cell::UnsafeCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a thread spins before it sleeps: longer than the gap between two kernels of a step.
const SPIN: Duration = Duration::from_micros(50);

/// A worker's shares of a kernel that take less time are not shown in traces.
const SHORTEST_TRACED: Duration = Duration::from_micros(2);

/// Kernels keep their own buffers elsewhere, so a worker's stack holds only frames and register spills.
const STACK_BYTES: usize = 256 * 1024;

/// The state word: the epoch in the high bits, then the open flag, then the count of workers inside the run.
const ACTIVE: u64 = (1 << 16) - 1;
const OPEN: u64 = 1 << 16;
const EPOCH: u64 = 1 << 17;

type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// Threads that run tasks in parallel. The thread that calls [`Pool::run`] is worker 0.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    /// Workers join a run by raising the count while it is open; the caller closes it and waits for zero.
    state: AtomicU64,
    /// The next task to hand out.
    next: AtomicUsize,
    /// The run in progress. Written only while no worker is inside a run.
    job: UnsafeCell<Job>,
    busy: AtomicBool,
    /// Workers that have started.
    started: AtomicUsize,
    stop: AtomicBool,
    /// Whether there are more threads than cores: spinning threads then yield.
    crowded: bool,
    sleepers: AtomicUsize,
    caller_sleeps: AtomicBool,
    lock: Mutex<Option<Box<dyn Any + Send>>>,
    wake: Condvar,
    done: Condvar,
}

#[derive(Clone, Copy)]
struct Job {
    tasks: usize,
    /// Its lifetime is erased: it outlives the run because [`Pool::run`] returns only after the last worker.
    f: Option<*const Task<'static>>,
    /// The kernel, while a trace is recorded.
    kernel: Option<&'static str>,
}

// SAFETY: `job` is written by the caller between runs only, and read by a worker only after it has joined an
// open run with an acquiring exchange; the caller does not write again before that worker has left.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is only followed during a run, while its target is alive and shared (`Sync`).
unsafe impl Send for Shared {}

impl Pool {
    /// Starts `threads - 1` workers; zero counts as one.
    pub fn new(threads: usize) -> io::Result<Self> {
        let threads = threads.clamp(1, ACTIVE as usize);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(Job { tasks: 0, f: None, kernel: None }),
            busy: AtomicBool::new(false),
            started: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            crowded: threads > cores,
            sleepers: AtomicUsize::new(0),
            caller_sleeps: AtomicBool::new(false),
            lock: Mutex::new(None),
            wake: Condvar::new(),
            done: Condvar::new(),
        });
        // Built first, so that dropping it stops the workers already started when a later one fails to start.
        let mut pool = Self { shared, workers: Vec::with_capacity(threads - 1) };
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let handle = thread::Builder::new()
                .name(format!("plimsoll-worker-{worker}"))
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    shared.started.fetch_add(1, Ordering::Release);
                    shared.work(worker);
                })?;
            pool.workers.push(handle);
        }
        // A thread allocates while it starts, and its stack grows: all of that is over before the first run.
        while pool.shared.started.load(Ordering::Acquire) + 1 < threads {
            thread::yield_now();
        }
        Ok(pool)
    }

    /// How many threads take part in a run, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(task, worker)` once for every task in `0..tasks`, and returns when all calls have returned.
    ///
    /// Tasks are handed out in order, to whichever worker is free. Worker numbers are below
    /// [`Pool::threads`], and no two calls with the same worker number overlap.
    ///
    /// # Panics
    ///
    /// When a call of `f` panics: the first panic is raised again here, once no other call is in progress.
    /// A run must not be started from inside a run.
    pub fn run(&self, tasks: usize, f: &(dyn Fn(usize, usize) + Sync)) {
        // One task is the caller's, and needs no flag: an exchange takes longer than a small kernel.
        if tasks <= 1 || self.workers.is_empty() {
            debug_assert!(!self.shared.busy.load(Ordering::Acquire), "Pool::run is not re-entrant");
            return (0..tasks).for_each(|task| f(task, 0));
        }
        let entered = self.shared.busy.swap(true, Ordering::Acquire);
        debug_assert!(!entered, "Pool::run is not re-entrant");
        if entered {
            return (0..tasks).for_each(|task| f(task, 0));
        }
        let _leave = Leave(&self.shared.busy);
        if let Some(panic) = self.shared.run(tasks, f) {
            resume_unwind(panic);
        }
    }
}

/// Clears the busy flag, also when a task panics.
struct Leave<'a>(&'a AtomicBool);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(self.shared.locked());
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // Workers catch the panics of tasks; there is nothing left to report.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// The lock guards only the first panic's payload and the sleeping protocol: poison means nothing here.
    fn locked(&self) -> MutexGuard<'_, Option<Box<dyn Any + Send>>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, tasks: usize, f: &Task<'_>) -> Option<Box<dyn Any + Send>> {
        // SAFETY: only the lifetime changes, and no worker holds the pointer after this function returns.
        let f: *const Task<'static> = unsafe { std::mem::transmute(f as *const Task<'_>) };
        let job = Job { tasks, f: Some(f), kernel: plimsoll_trace::kernel() };
        // SAFETY: no run is open and no worker is active, so nobody else reads or writes the job.
        unsafe { *self.job.get() = job };
        self.next.store(0, Ordering::Relaxed);
        let epoch = self.state.load(Ordering::Relaxed) / EPOCH + 1;
        // Sequentially consistent with `sleepers`: either the worker sees the run or the caller the sleeper.
        self.state.store((epoch * EPOCH) | OPEN, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.locked());
            if tasks - 1 < self.sleepers.load(Ordering::Relaxed) {
                (1..tasks).for_each(|_| self.wake.notify_one());
            } else {
                self.wake.notify_all();
            }
        }
        self.drain(job, 0);

        self.state.fetch_and(!OPEN, Ordering::AcqRel);
        let idle = || self.state.load(Ordering::SeqCst) & ACTIVE == 0;
        if !self.spin_until(idle) {
            let mut guard = self.locked();
            self.caller_sleeps.store(true, Ordering::SeqCst);
            while !idle() {
                guard = self.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.caller_sleeps.store(false, Ordering::SeqCst);
        }
        self.locked().take()
    }

    /// Runs tasks until none is left, and keeps the first panic for the caller.
    fn drain(&self, job: Job, worker: usize) {
        let Some(f) = job.f else { return };
        // SAFETY: the target lives until the run ends, and this thread takes part in the run.
        let f = unsafe { &*f };
        let tasks = || {
            loop {
                let task = self.next.fetch_add(1, Ordering::Relaxed);
                if task >= job.tasks {
                    break;
                }
                f(task, worker);
            }
        };
        while let Err(panic) = catch_unwind(AssertUnwindSafe(tasks)) {
            self.locked().get_or_insert(panic);
        }
    }

    fn work(&self, worker: usize) {
        let mut seen = 0;
        while let Some(epoch) = self.join_run(seen) {
            seen = epoch;
            // SAFETY: joining succeeded, so the caller leaves the job alone until this worker has left.
            let job = unsafe { *self.job.get() };
            let started = job.kernel.and_then(|_| plimsoll_trace::now());
            self.drain(job, worker);
            let traced = started.map(|started| (started, started.elapsed()));
            let traced = traced.filter(|(_, time)| *time >= SHORTEST_TRACED);
            let before = self.state.fetch_sub(1, Ordering::SeqCst);
            if before & (ACTIVE | OPEN) == 1 && self.caller_sleeps.load(Ordering::SeqCst) {
                drop(self.locked());
                self.done.notify_one();
            }
            // The caller's own share lies inside its span of the whole kernel. Nobody waits for this.
            if let (Some(kernel), Some((started, time))) = (job.kernel, traced) {
                plimsoll_trace::span_later(started, time, "kernel", kernel);
            }
        }
    }

    /// Waits for an open run newer than `seen` and enters it; `None` when the pool is being dropped.
    fn join_run(&self, seen: u64) -> Option<u64> {
        let fresh = |state: u64| state & OPEN != 0 && state / EPOCH != seen;
        let stop = || self.stop.load(Ordering::SeqCst);
        let ready = || fresh(self.state.load(Ordering::SeqCst)) || stop();
        loop {
            if !self.spin_until(ready) {
                let mut guard = self.locked();
                self.sleepers.fetch_add(1, Ordering::SeqCst);
                while !ready() {
                    guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
                }
                self.sleepers.fetch_sub(1, Ordering::SeqCst);
            }
            let state = self.state.load(Ordering::Relaxed);
            if fresh(state) {
                let joined =
                    self.state.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed);
                if joined.is_ok() {
                    return Some(state / EPOCH);
                }
            } else if stop() {
                return None;
            }
        }
    }

    /// Spins until `ready`, for a bounded time; returns whether it is.
    fn spin_until(&self, ready: impl Fn() -> bool) -> bool {
        if ready() {
            return true;
        }
        let start = Instant::now();
        loop {
            for _ in 0..32 {
                std::hint::spin_loop();
                if ready() {
                    return true;
                }
            }
            if self.crowded {
                thread::yield_now();
            }
            if start.elapsed() > SPIN {
                return ready();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each_task_once(threads: usize, tasks: usize, rounds: usize) {
        let pool = Pool::new(threads).expect("threads start");
        assert_eq!(pool.threads(), threads);
        let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
        let inside: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
        for round in 1..=rounds {
            pool.run(tasks, &|task, worker| {
                assert_eq!(inside[worker].fetch_add(1, Ordering::SeqCst), 0, "two calls on one worker");
                counts[task].fetch_add(1, Ordering::Relaxed);
                inside[worker].fetch_sub(1, Ordering::SeqCst);
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == round));
        }
    }

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 3, 7] {
            for tasks in [0, 1, 2, 5, 64] {
                each_task_once(threads, tasks, 500);
            }
        }
    }

    #[test]
    fn sleeping_workers_and_a_sleeping_caller_wake() {
        let pool = Pool::new(2).expect("threads start");
        let (entered, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        for round in 1..=20 {
            thread::sleep(Duration::from_micros(300));
            entered.store(0, Ordering::Relaxed);
            pool.run(2, &|_, worker| {
                // The caller leaves its task only when the worker, which is slow, is inside of its own.
                entered.fetch_add(worker, Ordering::Relaxed);
                while entered.load(Ordering::Relaxed) == 0 {
                    thread::yield_now();
                }
                thread::sleep(Duration::from_millis(worker as u64));
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.load(Ordering::Relaxed), 2 * round);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_after_the_other_tasks() {
        for threads in [1, 2, 7] {
            let pool = Pool::new(threads).expect("threads start");
            let ran = AtomicUsize::new(0);
            let run = || {
                pool.run(40, &|task, _| {
                    ran.fetch_add(1, Ordering::Relaxed);
                    assert!(task != 7, "task seven");
                });
            };
            let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("the panic is raised again");
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"task seven"));
            if threads > 1 {
                assert_eq!(ran.load(Ordering::Relaxed), 40);
            }
            pool.run(10, &|_, _| {});
        }
    }

    #[test]
    fn work_is_shared() {
        let pool = Pool::new(2).expect("threads start");
        let seen = [AtomicUsize::new(0), AtomicUsize::new(0)];
        pool.run(2, &|_, worker| {
            seen[worker].fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(20));
        });
        assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1));
    }
}
