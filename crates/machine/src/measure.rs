//! What this machine does, by short trials.

use plimsoll_cpu::CpuTarget;
use plimsoll_cpu::isa::{Context, Isa};
use plimsoll_cpu::kernels::float::Float;
use plimsoll_cpu::kernels::gemm::{Epilogue, GemmSpec, Mat, gemm, gemm_workspace};
use plimsoll_cpu::threads::Pool;
use plimsoll_graph::Op;
use plimsoll_graph::op::MatMul;
use plimsoll_plan::{KernelQuery, Target};
use plimsoll_tensor::{DType, TensorType, bf16};
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long memory is read and written.
const TRIAL: Duration = Duration::from_millis(150);
/// The most memory of a trial: more than caches hold.
const MOST_BYTES: usize = 192 << 20;

/// Bytes per second that so many threads together read and write in host memory: `a = b + s · c` over arrays of their own, of
/// at most so many bytes in all. It takes about 0.2 seconds.
pub fn memory_bandwidth(threads: usize, most_bytes: usize) -> f64 {
    let threads = threads.max(1);
    let elements = (most_bytes.min(MOST_BYTES) / threads / 3 / size_of::<f32>()).max(1);
    let ready = Barrier::new(threads);
    let rates = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| triad(elements, &ready))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or(0.0)).collect::<Vec<f64>>()
    });
    rates.into_iter().sum()
}

/// Bytes per second of one thread.
fn triad(elements: usize, ready: &Barrier) -> f64 {
    let mut a = vec![0.0_f32; elements];
    let (b, c) = (vec![1.0_f32; elements], vec![2.0_f32; elements]);
    a.fill(3.0);
    ready.wait();
    let start = Instant::now();
    let mut passes = 0_usize;
    while passes == 0 || start.elapsed() < TRIAL {
        let scale = black_box(0.5);
        for ((a, b), c) in a.iter_mut().zip(&b).zip(&c) {
            *a = b + scale * c;
        }
        black_box(&mut a);
        passes += 1;
    }
    (passes * 3 * elements * size_of::<f32>()) as f64 / start.elapsed().as_secs_f64()
}

/// Rows, columns and length of the products of a trial: 12 MiB of f32.
const PRODUCT: usize = 1024;

/// Floating-point operations per second of matrix products of f32 and of bf16 on so many threads with an instruction set, the
/// best of a few; `None` if the threads do not start. It takes about 0.4 seconds and some 20 MiB.
pub fn product_rates(threads: usize, isa: Isa) -> Option<[f64; 2]> {
    let pool = Pool::new(threads).ok()?;
    let context = Context::new(&pool, isa).ok()?;
    Some([product_rate::<f32>(context), product_rate::<bf16>(context)])
}

fn product_rate<T: Float>(context: Context<'_>) -> f64 {
    let mut product = Product::<T>::new(context, PRODUCT);
    let (mut best, start) = (f64::INFINITY, Instant::now());
    while best.is_infinite() || start.elapsed() < TRIAL {
        let run = Instant::now();
        product.run();
        best = best.min(run.elapsed().as_secs_f64());
    }
    2.0 * (PRODUCT * PRODUCT * PRODUCT) as f64 / best
}

/// A product of square matrices, which can be taken again and again.
struct Product<'a, T> {
    context: Context<'a>,
    side: usize,
    spec: GemmSpec,
    operands: [Vec<T>; 2],
    result: Vec<T>,
    space: Vec<f32>,
}

impl<'a, T: Float> Product<'a, T> {
    fn new(context: Context<'a>, side: usize) -> Self {
        let spec = GemmSpec::new(side, side, side);
        let numbers = || (0..side * side).map(|i| T::narrow((i % 13) as f32 / 13.0)).collect();
        let floats = gemm_workspace::<T, T, T>(context.isa(), context.threads(), &spec) / size_of::<f32>();
        // Kernels want whole cache lines.
        let space = vec![0.0_f32; floats + 16];
        let result = vec![T::ZERO; side * side];
        Self { context, side, spec, operands: [numbers(), numbers()], result, space }
    }

    fn run(&mut self) {
        let [a, b] = self.operands.each_ref().map(|data| Mat { data, row_stride: self.side, col_stride: 1 });
        let from = self.space.as_ptr().align_offset(64);
        gemm(self.context, &self.spec, a, b, &mut self.result, Epilogue::NONE, &mut self.space[from..]);
        black_box(&mut self.result);
    }
}

/// Rows, columns and length of the products that each thread takes by itself.
const OWN_PRODUCT: usize = 192;
/// How long and how often they are counted.
const WINDOW: Duration = Duration::from_millis(5);
const WINDOWS: usize = 10;
/// Bytes that [`core_flops`] takes for each thread, at most.
pub const CORE_TRIAL_BYTES: usize = 1 << 20;

/// Floating-point operations per second at the peak of one of so many threads, as [`CpuTarget`] has it, while all of them multiply small
/// matrices of f32: the best of a few counts, so that others' work for a part of the time does not lower it. `None` if the threads do not
/// start. It takes about 60 milliseconds, and [`CORE_TRIAL_BYTES`] for each thread.
pub fn core_flops(threads: usize, isa: Isa) -> Option<f64> {
    let threads = threads.max(1);
    let products = AtomicUsize::new(0);
    let done = AtomicBool::new(false);
    let counts = std::thread::scope(|scope| {
        for _ in 0..threads {
            let started = std::thread::Builder::new().spawn_scoped(scope, || {
                let pool = Pool::new(1).ok()?;
                let mut product = Product::<f32>::new(Context::new(&pool, isa).ok()?, OWN_PRODUCT);
                while !done.load(Ordering::Relaxed) {
                    product.run();
                    products.fetch_add(1, Ordering::Relaxed);
                }
                Some(())
            });
            if started.is_err() {
                done.store(true, Ordering::Relaxed);
                return None;
            }
        }
        let mut best = 0.0_f64;
        // The first window warms up.
        for _ in 0..=WINDOWS {
            let (start, before) = (Instant::now(), products.load(Ordering::Relaxed));
            std::thread::sleep(WINDOW);
            let counted = products.load(Ordering::Relaxed) - before;
            best = best.max(counted as f64 / start.elapsed().as_secs_f64());
        }
        done.store(true, Ordering::Relaxed);
        Some(best)
    });
    let taken_ns = 1e9 * threads as f64 / counts.filter(|best| *best > 0.0)?;
    let typical = CpuTarget::new(isa, 1);
    Some(typical.flops_per_ns * own_product_ns(&typical)? / taken_ns * 1e9)
}

/// The nanoseconds that a target predicts for [`OWN_PRODUCT`].
fn own_product_ns(target: &CpuTarget) -> Option<f64> {
    let (op, square) = (Op::MatMul(MatMul::default()), TensorType::new(DType::F32, [OWN_PRODUCT; 2]));
    let (inputs, outputs) = (vec![&square; 2], vec![&square]);
    let query = KernelQuery { op: &op, inputs, outputs, accumulate: false, fold_rows: 0, mixed: false };
    target.kernel(&query).ok().map(|kernel| kernel.nanoseconds as f64)
}

/// Bytes of a long message, how often it is sent, and how often a short one.
const LONG: (usize, usize) = (1 << 20, 32);
const SHORT: (usize, usize) = (8, 200);

/// Bytes per second of long messages, and nanoseconds of a short one, between two threads over the loopback of this machine: what processes
/// that share it have without shared memory. It takes some 50 milliseconds.
pub fn loopback() -> io::Result<(f64, u64)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    std::thread::scope(|scope| {
        let other = scope.spawn(move || answer(&TcpStream::connect(address)?));
        // From this process alone: the port is its own, and known to nobody else.
        let times = ask(&listener.accept()?.0);
        let answered = other.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        answered.and(times)
    })
}

/// The median times of messages that come back.
fn ask(mut stream: &TcpStream) -> io::Result<(f64, u64)> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; LONG.0];
    let mut around = |(bytes, count): (usize, usize)| -> io::Result<f64> {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let start = Instant::now();
            stream.write_all(&buffer[..bytes])?;
            stream.read_exact(&mut buffer[..bytes])?;
            times.push(start.elapsed().as_secs_f64() / 2.0);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[count / 2])
    };
    let (short, long) = (around(SHORT)?, around(LONG)?);
    Ok((LONG.0 as f64 / (long - short).max(f64::MIN_POSITIVE), (short * 1e9) as u64))
}

/// Sends everything back, until there is nothing more.
fn answer(mut stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; LONG.0];
    for (bytes, count) in [SHORT, LONG] {
        for _ in 0..count {
            stream.read_exact(&mut buffer[..bytes])?;
            stream.write_all(&buffer[..bytes])?;
        }
    }
    Ok(())
}

/// Free bytes of a folder's disk; `None` where the system does not tell.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    #[cfg(unix)]
    return rustix::fs::statvfs(folder).ok().map(|about| about.f_bavail.saturating_mul(about.f_frsize));
    #[cfg(not(unix))]
    {
        let _ = folder;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_moves_bytes_and_little_memory_is_enough() {
        assert!(memory_bandwidth(2, usize::MAX) > 1e8);
        assert!(memory_bandwidth(1, 0) > 0.0);
    }

    #[test]
    fn products_have_a_speed() {
        let rates = product_rates(2, Isa::detect()).unwrap();
        assert!(rates.iter().all(|rate| *rate > 1e8 && rate.is_finite()), "{rates:?}");
    }

    #[test]
    fn a_thread_has_a_speed_near_its_share_of_all() {
        let isa = Isa::detect();
        let typical = CpuTarget::new(isa, 1).flops_per_ns * 1e9;
        let found = core_flops(2, isa).unwrap();
        assert!((typical / 50.0..typical * 5.0).contains(&found), "{found} where {typical} is typical");
    }

    #[test]
    fn messages_take_time_on_the_loopback() {
        let (bytes_per_second, latency_ns) = loopback().unwrap();
        assert!(bytes_per_second > 1e6 && bytes_per_second.is_finite(), "{bytes_per_second}");
        assert!((100..1_000_000_000).contains(&latency_ns), "{latency_ns}");
    }

    #[test]
    #[cfg(unix)]
    fn a_folder_has_free_bytes() {
        assert!(free_bytes(Path::new("/")).is_some());
        assert_eq!(free_bytes(Path::new("/no/such/folder")), None);
    }
}
