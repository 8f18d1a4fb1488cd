//! Which algorithm computes a product: the fastest of those that the library proposes, among those with the bits of the first one, which
//! does not depend on the rows at hand.
//!
//! It is found by trial before the first step, in memory that is given back, and never in more than the plan's arena. What was found is kept,
//! like compiled kernels. Since bits are compared, what was measured cannot change results.

use crate::device::CudaDevice;
use crate::driver::{Address, CudaError, DeviceMemory};
use crate::kernels::{Call, Kernel, Launch, Matrix, Operand, Parameter, Product, define, stored};
use crate::products::{PreparedProduct, geometry};
use crate::target::ALIGNMENT;
use plimsoll_tensor::DType;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Algorithms that are tried, at most.
const TRIED: usize = 24;
/// Multiplications and additions of the smallest products that are tried: a microsecond.
const LEAST_FLOPS: u64 = 100_000_000;
/// An algorithm is timed so often, by so many launches, and the shortest time counts.
const TIMES: usize = 3;
const LAUNCHES: u32 = 4;
/// What the time of an algorithm must be of the time of those before it, in percent.
const FASTER: u32 = 98;
/// Threads of a block, and blocks, of the kernels that fill and compare.
const THREADS: u32 = 256;
const BLOCKS: u32 = 1024;

impl CudaDevice {
    /// Chooses the algorithms of the products of calls for which none was chosen yet, with trials in at most so many bytes.
    pub fn tune(&self, calls: &[Call], most_bytes: usize) -> Result<(), CudaError> {
        let mut products = BTreeMap::new();
        for launch in calls.iter().flat_map(|call| &call.launches) {
            if let Launch::Product(product) = launch {
                products.entry(geometry(product)).or_insert(product);
            }
        }
        products.retain(|geometry, product| {
            let flops = 2 * (product.m * product.n) as u64 * (product.k * product.count) as u64;
            let known = self.products.chosen(geometry).is_some() || self.choose_kept(geometry);
            !known && flops >= LEAST_FLOPS && Places::of(product).bytes <= most_bytes
        });
        let Some(bytes) = products.values().map(|product| Places::of(product).bytes).max() else {
            return Ok(());
        };
        let memory = DeviceMemory::new(&self.context, bytes)?;
        for (geometry, product) in products {
            let fastest = self.fastest(&memory, product)?;
            self.kept.put(KIND, &self.profile_key(&geometry), &[fastest as u8]);
            self.products.choose(geometry, fastest);
        }
        self.stream.finish()
    }

    /// Takes the choice that was kept, if there is one.
    fn choose_kept(&self, geometry: &str) -> bool {
        let kept = self.kept.get(KIND, &self.profile_key(geometry));
        let Some(&[proposal]) = kept.as_deref() else { return false };
        let known = usize::from(proposal) < TRIED;
        if known {
            self.products.choose(geometry.to_string(), proposal.into());
        }
        known
    }

    /// All that a choice depends on.
    fn profile_key(&self, geometry: &str) -> String {
        let gpu = &self.context.gpu;
        format!("{}, {:?}, cuBLASLt {}\n{geometry}", gpu.name, gpu.capability, self.products.version())
    }

    /// The fastest algorithm of a product, by its place among the proposed ones.
    fn fastest(&self, memory: &DeviceMemory, product: &Product) -> Result<usize, CudaError> {
        let Places { a, b, c, bias, word, .. } = Places::of(product);
        let [a, b, c] = [(&product.a, a), (&product.b, b), (&product.c, c)]
            .map(|(matrix, place)| (memory.start + place.0, place.1, matrix.dtype));
        let (bias, word) = (memory.start + bias, memory.start + word);
        self.fill(a, 1)?;
        self.fill(b, 2)?;
        self.fill((bias, product.n, product.c.dtype), 4)?;
        let bias = product.bias.map(|_| bias);
        let mut best: Option<(usize, Duration)> = None;
        let mut bits = None;
        for (at, proposed) in PreparedProduct::all(&self.products, product)?.iter().take(TRIED).enumerate() {
            // SAFETY: the matrices have their places in the memory, which nobody else uses.
            let run = || unsafe { proposed.run(&self.stream, [a.0, b.0, c.0], bias) };
            self.fill(c, 3)?;
            // One that cannot run is not chosen.
            if run().and_then(|()| self.stream.finish()).is_err() {
                continue;
            }
            let found = self.digest(c, word)?;
            if *bits.get_or_insert(found) != found {
                continue;
            }
            let mut time = Duration::MAX;
            for _ in 0..TIMES {
                let start = Instant::now();
                (0..LAUNCHES).try_for_each(|_| run())?;
                self.stream.finish()?;
                time = time.min(start.elapsed());
            }
            if best.is_none_or(|(_, before)| time * 100 < before * FASTER) {
                best = Some((at, time));
            }
        }
        Ok(best.map_or(0, |(at, _)| at))
    }

    /// Fills a matrix with numbers between -1 and 1.
    pub fn fill(&self, (start, elements, dtype): Filled, seed: usize) -> Result<(), CudaError> {
        let source = define(&[("T", stored(dtype))], include_str!("kernels/trial_fill.cu"));
        self.launch_on(source, &[start], &[elements, seed])
    }

    /// A number that tells the bits of a matrix from others.
    fn digest(&self, (start, elements, dtype): Filled, word: Address) -> Result<u64, CudaError> {
        let mut sum = [0; 8];
        // SAFETY: the word is inside the memory; the copy is done before the bytes are read.
        unsafe { self.stream.fill(word, sum.len(), 0)? };
        let halves = elements * dtype.bytes() / 2;
        self.launch_on(include_str!("kernels/trial_digest.cu").into(), &[start, word], &[halves])?;
        // SAFETY: as above.
        unsafe { self.stream.copy_out(sum.as_mut_ptr(), word, sum.len())? };
        self.stream.finish()?;
        Ok(u64::from_le_bytes(sum))
    }

    /// Queues a kernel that takes addresses and numbers.
    fn launch_on(&self, source: String, addresses: &[Address], numbers: &[usize]) -> Result<(), CudaError> {
        let module = self.module(&source)?;
        let pointers = (0..addresses.len()).map(|i| Parameter::from(Operand::Write(i)));
        let parameters = pointers.chain(numbers.iter().map(|&number| number.into())).collect();
        let kernel = Kernel { source, blocks: [BLOCKS, 1, 1], threads: THREADS, parameters, table: false };
        let address = |pointer: crate::kernels::Pointer| match pointer.operand {
            Operand::Write(i) => addresses[i],
            Operand::Read(_) | Operand::Workspace | Operand::Fault => 0,
        };
        // SAFETY: the kernel writes to the matrix, or to the word, that it is given.
        unsafe { self.launch(module.function, &kernel, &address) }
            .map_err(|error| CudaError::Call { call: "a trial of products", error })
    }
}

/// The kind of the files that keep choices; they count those of `PreparedProduct::all`.
const KIND: &str = "proposal";

/// The start of a matrix on the device, its elements and their type.
pub(crate) type Filled = (Address, usize, DType);

/// Where the matrices of a trial are: byte offsets with numbers of elements, a bias, and a word.
struct Places {
    a: (Address, usize),
    b: (Address, usize),
    c: (Address, usize),
    bias: Address,
    word: Address,
    bytes: usize,
}

impl Places {
    fn of(product: &Product) -> Self {
        let Product { m, n, k, count, .. } = *product;
        let mut end = 0;
        let mut place = |matrix: &Matrix, rows: usize, columns: usize| {
            let (rows, columns) = if matrix.transposed { (columns, rows) } else { (rows, columns) };
            let elements = (count - 1) * matrix.stride + rows.saturating_sub(1) * matrix.row_stride + columns;
            // Products of matrices at offsets are aligned no better in a trial.
            let start = end + matrix.start.offset % ALIGNMENT;
            end = (start + elements * matrix.dtype.bytes()).next_multiple_of(ALIGNMENT);
            (start as Address, elements)
        };
        let (a, b, c) = (place(&product.a, m, k), place(&product.b, k, n), place(&product.c, m, n));
        let word = end + (n * product.c.dtype.bytes()).next_multiple_of(ALIGNMENT);
        Self { a, b, c, bias: end as Address, word: word as Address, bytes: word + ALIGNMENT }
    }
}

#[cfg(test)]
mod tests {
    use super::Places;
    use crate::kernels::{Matrix, Operand, Product};
    use plimsoll_tensor::DType;

    #[test]
    fn the_matrices_of_a_trial_are_apart() {
        let matrix = |transposed, row_stride, stride, offset| Matrix {
            start: Operand::Workspace.at(offset),
            dtype: DType::BF16,
            transposed,
            row_stride,
            stride,
        };
        let product = Product {
            m: 100,
            n: 30,
            k: 50,
            a: matrix(true, 100, 5000, 16),
            b: matrix(false, 32, 1600, 0),
            c: matrix(false, 30, 3000, 0),
            accumulate: false,
            count: 3,
            bias: None,
            tf32: false,
        };
        let Places { a, b, c, bias, word, bytes } = Places::of(&product);
        assert_eq!((a, b.1, c.1), ((16, 15_000), 2 * 1600 + 49 * 32 + 30, 9_000));
        assert!(
            b.0 >= a.0 + 2 * 15_000
                && c.0 >= b.0 + 2 * b.1 as u64
                && bias >= c.0 + 18_000
                && word >= bias + 60
        );
        assert!(bytes as u64 >= word + 8);
    }
}
