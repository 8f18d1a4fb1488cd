//! Codes of numbers, numbers of codes, and sums of codes.

use crate::isa::Context;
#[cfg(target_arch = "x86_64")]
use crate::isa::Isa;
use crate::kernels::math::{Shared, TASK_ELEMENTS, simd_fn};
use plimsoll_tensor::fixed_point;

/// Runs tasks of elements.
fn each_task(ctx: Context<'_>, elements: usize, task: &(dyn Fn(usize, usize) + Sync)) {
    ctx.pool.run(elements.div_ceil(TASK_ELEMENTS), &|i, _| {
        let first = i * TASK_ELEMENTS;
        task(first, TASK_ELEMENTS.min(elements - first));
    });
}

/// The codes of numbers.
pub fn quantize(ctx: Context<'_>, scale: f32, zero: u8, x: &[f32], y: &mut [u8]) {
    let elements = x.len().min(y.len());
    let y = Shared::new(y);
    each_task(ctx, elements, &|first, len| {
        // SAFETY: every task has its own elements.
        let y = unsafe { y.part(first, len) };
        quantize_part(ctx.isa, scale, zero, &x[first..first + len], y);
    });
}

simd_fn! {
    fn quantize_part(isa: Isa, scale: f32, zero: u8, x: &[f32], y: &mut [u8]) {
        let zero = f32::from(zero);
        for (x, y) in x.iter().zip(y) {
            // As `grid_code`, in steps that are instructions of vectors.
            let code = (x / scale).round_ties_even() + zero;
            let code = if code.is_nan() { zero } else { code };
            let code = if code > 0.0 { code } else { 0.0 };
            let code = if code < 255.0 { code } else { 255.0 };
            // SAFETY: it is from 0 to 255.
            *y = unsafe { code.to_int_unchecked::<i32>() } as u8;
        }
    }
}

/// What codes stand for.
pub fn dequantize(ctx: Context<'_>, scale: f32, zero: u8, x: &[u8], y: &mut [f32]) {
    let elements = x.len().min(y.len());
    let y = Shared::new(y);
    each_task(ctx, elements, &|first, len| {
        // SAFETY: every task has its own elements.
        let y = unsafe { y.part(first, len) };
        dequantize_part(ctx.isa, scale, zero, &x[first..first + len], y);
    });
}

simd_fn! {
    fn dequantize_part(isa: Isa, scale: f32, zero: u8, x: &[u8], y: &mut [f32]) {
        let zero = i32::from(zero);
        for (x, y) in x.iter().zip(y) {
            *y = scale * (i32::from(*x) - zero) as f32;
        }
    }
}

/// An operand of a sum: its code of zero, multiplier and shift.
pub type Operand = (i32, i32, i32);

/// The sum of two tensors of codes, each of which is shifted up by so many bits, from 1 to 22, before it is scaled.
pub fn add(
    ctx: Context<'_>,
    operands: [Operand; 2],
    factor: (i32, i32),
    (zero, bounds, up): (u8, [u8; 2], u32),
    x: [&[u8]; 2],
    y: &mut [u8],
) {
    let (elements, y) = (x[0].len().min(x[1].len()).min(y.len()), Shared::new(y));
    // The operand of the larger scale is halved: it comes first.
    let is_half = |(_, multiplier, shift): Operand| (multiplier, shift) == (1 << 30, 0);
    let swap = !is_half(operands[0]);
    let ([first, second], x) = if swap { ([operands[1], operands[0]], [x[1], x[0]]) } else { (operands, x) };
    let bits = |shift: i32| 31 - shift.clamp(-31, 30);
    let high = is_half(first) && bits(second.2) >= 31 && (32..=53).contains(&bits(factor.1));
    let sum = high.then(|| HighSum {
        zeros: [first.0, second.0],
        // It is shifted up by a bit more.
        second: HighHalf::new(second.1, bits(second.2) + 1, 0),
        total: HighHalf::new(factor.0, bits(factor.1), zero),
        bounds: bounds.map(i32::from),
        up,
    });
    each_task(ctx, elements, &|start, len| {
        // SAFETY: every task has its own elements.
        let y = unsafe { y.part(start, len) };
        let x = x.map(|x| &x[start..start + len]);
        match &sum {
            // SAFETY: an instruction set is only chosen on machines that have it.
            #[cfg(target_arch = "x86_64")]
            Some(sum) if ctx.isa.vectors() == Isa::Avx512 => unsafe { super::avx512::add_codes(sum, x, y) },
            Some(sum) => add_high(ctx.isa, sum, x, y),
            None => add_any(ctx.isa, [first, second], factor, zero, bounds, up, x, y),
        }
    });
}

/// A fixed-point factor by the high halves of products: `(number · multiplier + half) >> 32 >> shift`.
pub(super) struct HighHalf {
    pub multiplier: i32,
    pub half: i64,
    pub shift: i32,
}

impl HighHalf {
    /// Products are shifted by so many bits, at least 32; then something is added.
    fn new(multiplier: i32, bits: i32, then: u8) -> Self {
        Self { multiplier, half: (1 << (bits - 1)) + (i64::from(then) << bits), shift: bits - 32 }
    }

    #[inline(always)]
    fn of(&self, number: i32) -> i32 {
        let product = i64::from(number) * i64::from(self.multiplier) + self.half;
        ((product >> 32) as i32) >> self.shift
    }
}

/// A sum whose first operand is halved, and for the rest of which the high halves of products are enough.
pub(super) struct HighSum {
    pub zeros: [i32; 2],
    /// Of the second operand, shifted up by a bit more.
    pub second: HighHalf,
    pub total: HighHalf,
    pub bounds: [i32; 2],
    pub up: u32,
}

simd_fn! {
    /// By the high halves of products.
    fn add_high(isa: Isa, sum: &HighSum, x: [&[u8]; 2], y: &mut [u8]) {
        let ([low, high], [first, second]) = (sum.bounds, sum.zeros);
        for ((a, b), y) in x[0].iter().zip(x[1]).zip(y) {
            let a = (i32::from(*a) - first) << (sum.up - 1);
            let b = sum.second.of((i32::from(*b) - second) << (sum.up + 1));
            *y = sum.total.of(a + b).clamp(low, high) as u8;
        }
    }
}

simd_fn! {
    /// Whatever the factors.
    fn add_any(
        isa: Isa, operands: [Operand; 2], factor: (i32, i32), zero: u8, bounds: [u8; 2], up: u32, x: [&[u8]; 2], y: &mut [u8]
    ) {
        let [low, high] = bounds.map(i32::from);
        let scaled = |side: usize, code: u8| {
            let (zero, multiplier, shift) = operands[side];
            fixed_point((i32::from(code) - zero) << up, multiplier, shift)
        };
        for ((a, b), y) in x[0].iter().zip(x[1]).zip(y) {
            let sum = fixed_point(scaled(0, *a).saturating_add(scaled(1, *b)), factor.0, factor.1);
            *y = sum.saturating_add(i32::from(zero)).clamp(low, high) as u8;
        }
    }
}
