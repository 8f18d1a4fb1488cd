//! What a GPU reaches, measured when it is opened for the first time: predicted times follow it.
//!
//! Rates decide plans, and plans must not change with the noise of a trial. So rates are rounded, and kept in the folder of compiled kernels.

use crate::device::CudaDevice;
use crate::driver::{CudaError, DeviceMemory};
use crate::kernels::{Matrix, Operand, Product};
use crate::products::PreparedProduct;
use plimsoll_tensor::DType;
use std::fmt;
use std::time::Instant;

/// What a GPU reaches, in bytes, or multiplications and additions, a nanosecond.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes that a copy in its memory reads and writes.
    pub memory: f64,
    /// Products of f32.
    pub f32: f64,
    /// Products of 16-bit floats.
    pub half: f64,
}

/// Rates are rounded to powers of this.
const STEP: f64 = 1.05;
/// A trial runs so often, and the shortest time of so many launches in a row counts.
const TRIALS: usize = 4;
const LAUNCHES: u32 = 4;
/// Bytes of a copy: several times what caches hold.
const COPIED_BYTES: usize = 256 << 20;
/// Rows, columns and terms of the sums of a product: enough tiles for every multiprocessor.
const ROWS: usize = 4096;
const COLUMNS: usize = 4096;
const TERMS: usize = 2048;

/// The kind of the files that keep rates.
const KIND: &str = "rates";

impl CudaDevice {
    /// The rates of this GPU: those that are kept, or measured now. `None` where its memory has no room for a trial.
    pub fn rates(&self) -> Result<Option<Rates>, CudaError> {
        let gpu = &self.context.gpu;
        let key = format!("{}, {}, cuBLASLt {}", gpu.uuid, gpu.name, self.products.version());
        if let Some(rates) = self.kept.get(KIND, &key).and_then(|bytes| Rates::of_bytes(&bytes)) {
            return Ok(Some(rates));
        }
        let memory = match DeviceMemory::new(&self.context, 2 * COPIED_BYTES) {
            Err(CudaError::Full { .. }) => return Ok(None),
            memory => memory?,
        };
        let product = |dtype: DType| -> Result<f64, CudaError> {
            let [a, b, c] = [0, ROWS * TERMS, ROWS * TERMS + TERMS * COLUMNS];
            let [a, b, c] = [a, b, c].map(|elements| memory.start + (elements * dtype.bytes()) as u64);
            // A product of zeros takes less time than one of numbers.
            self.fill((a, ROWS * TERMS, dtype), 1)?;
            self.fill((b, TERMS * COLUMNS, dtype), 2)?;
            let prepared = PreparedProduct::new(&self.products, &trial(dtype))?;
            // SAFETY: the matrices have their places in the memory, which nobody else uses.
            let shortest = self.shortest(|| unsafe { prepared.run(&self.stream, [a, b, c], None) })?;
            Ok(2.0 * (ROWS * COLUMNS * TERMS) as f64 / shortest)
        };
        // The longest trial first: a GPU that had nothing to do takes some milliseconds to reach its clocks.
        let (f32, half) = (product(DType::F32)?, product(DType::BF16)?);
        let (from, to) = (memory.start, memory.start + COPIED_BYTES as u64);
        // SAFETY: both ranges are inside the memory and apart, and nobody else uses it.
        let copied = self.shortest(|| unsafe { self.stream.copy(to, from, COPIED_BYTES) })?;
        let measured = Rates { memory: 2.0 * COPIED_BYTES as f64 / copied, f32, half };
        let rates = Rates::of_bytes(&measured.rounded().to_bytes());
        if let Some(rates) = rates {
            self.kept.put(KIND, &key, &rates.to_bytes());
        }
        Ok(rates)
    }

    /// The shortest time of what is queued on the stream, in nanoseconds.
    fn shortest(&self, queue: impl Fn() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        let mut shortest = f64::INFINITY;
        for _ in 0..TRIALS {
            self.stream.finish()?;
            let start = Instant::now();
            (0..LAUNCHES).try_for_each(|_| queue())?;
            self.stream.finish()?;
            shortest = shortest.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(LAUNCHES));
        }
        Ok(shortest)
    }
}

fn trial(dtype: DType) -> Product {
    let matrix = |columns| Matrix {
        start: Operand::Workspace.at(0),
        dtype,
        transposed: false,
        row_stride: columns,
        stride: 0,
    };
    Product {
        m: ROWS,
        n: COLUMNS,
        k: TERMS,
        a: matrix(TERMS),
        b: matrix(COLUMNS),
        c: matrix(COLUMNS),
        accumulate: false,
        count: 1,
        bias: None,
        tf32: false,
    }
}

impl Rates {
    fn rounded(self) -> Self {
        let round = |rate: f64| STEP.powf((rate.ln() / STEP.ln()).round());
        Self { memory: round(self.memory), f32: round(self.f32), half: round(self.half) }
    }

    fn to_bytes(self) -> Vec<u8> {
        [self.memory, self.f32, self.half].iter().flat_map(|rate| rate.to_le_bytes()).collect()
    }

    /// What was kept; `None` unless all are rates: a device that does nothing has others.
    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let (numbers, []) = bytes.as_chunks::<8>() else { return None };
        let &[memory, f32, half] = numbers else { return None };
        let [memory, f32, half] = [memory, f32, half].map(f64::from_le_bytes);
        let is_rate = |rate: f64| rate.is_finite() && rate >= 1.0;
        [memory, f32, half].into_iter().all(is_rate).then_some(Self { memory, f32, half })
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { memory, f32, half } = self;
        write!(
            f,
            "{:.1} TB/s, {:.0} TFLOP/s of 16-bit floats, {:.0} of f32",
            memory / 1e3,
            half / 1e3,
            f32 / 1e3
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Rates;

    #[test]
    fn kept_rates_come_back_and_others_are_measured_again() {
        let rates = Rates { memory: 4312.0, f32: 51_234.0, half: 788_000.0 }.rounded();
        assert_eq!(Rates::of_bytes(&rates.to_bytes()), Some(rates));
        assert_eq!(Rates::of_bytes(&rates.to_bytes()[1..]), None);
        for wrong in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            assert_eq!(Rates::of_bytes(&Rates { half: wrong, ..rates }.to_bytes()), None);
        }
    }

    #[test]
    fn noise_of_a_trial_does_not_change_rates() {
        let rates = Rates { memory: 4300.0, f32: 50_000.0, half: 700_000.0 }.rounded();
        let again = Rates { memory: rates.memory * 1.02, f32: rates.f32 * 0.98, half: rates.half }.rounded();
        assert_eq!(rates, again);
        for (rounded, rate) in [(rates.memory, 4300.0), (rates.f32, 50_000.0), (rates.half, 700_000.0)] {
            assert!((rounded / rate - 1.0).abs() < 0.03, "{rounded} of {rate}");
        }
    }
}
