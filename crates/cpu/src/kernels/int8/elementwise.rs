//! Codes of numbers, numbers of codes, and sums, products and functions of codes.

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

/// The product of two tensors of codes. `channels`: the second has so many elements for each of the examples, which all pixels of
/// the first are multiplied by; without, it is as long as the first.
pub fn mul(
    ctx: Context<'_>,
    zeros: [u8; 2],
    (multiplier, shift): (i32, i32),
    (zero, bounds): (u8, [u8; 2]),
    channels: Option<usize>,
    x: [&[u8]; 2],
    y: &mut [u8],
) {
    let (zeros, bits) = (zeros.map(i32::from), 31 - shift.clamp(-31, 30));
    let high = (32..=53).contains(&bits).then(|| HighHalf::new(multiplier, bits, zero));
    let part = |a: &[u8], b: &[u8], y: &mut [u8]| match &high {
        Some(scale) => mul_high(ctx.isa, zeros, scale, bounds, a, b, y),
        None => mul_any(ctx.isa, zeros, (multiplier, shift), zero, bounds, a, b, y),
    };
    let (elements, y) = (x[0].len().min(y.len()), Shared::new(y));
    let Some(channels) = channels.filter(|channels| *channels > 0) else {
        each_task(ctx, elements.min(x[1].len()), &|first, len| {
            // SAFETY: every task has its own elements.
            part(&x[0][first..first + len], &x[1][first..first + len], unsafe { y.part(first, len) });
        });
        return;
    };
    let examples = x[1].len() / channels;
    let each = elements / examples.max(1);
    let together = (TASK_ELEMENTS / channels).max(1) * channels;
    let tasks = each.div_ceil(together);
    ctx.pool.run(examples * tasks, &|task, _| {
        let (example, start) = (task / tasks, task % tasks * together);
        let (first, len) = (example * each + start, together.min(each - start));
        let gates = &x[1][example * channels..][..channels];
        // SAFETY: every task has its own elements.
        part(&x[0][first..first + len], gates, unsafe { y.part(first, len) });
    });
}

simd_fn! {
    /// By the high halves of products. The second operand repeats.
    fn mul_high(isa: Isa, zeros: [i32; 2], scale: &HighHalf, bounds: [u8; 2], a: &[u8], b: &[u8], y: &mut [u8]) {
        let [low, high] = bounds.map(i32::from);
        for (a, y) in a.chunks(b.len().max(1)).zip(y.chunks_mut(b.len().max(1))) {
            for ((a, b), y) in a.iter().zip(b).zip(y) {
                let product = (i32::from(*a) - zeros[0]) * (i32::from(*b) - zeros[1]);
                *y = scale.of(product).clamp(low, high) as u8;
            }
        }
    }
}

simd_fn! {
    /// Whatever the factor. The second operand repeats.
    fn mul_any(
        isa: Isa, zeros: [i32; 2], factor: (i32, i32), zero: u8, bounds: [u8; 2], a: &[u8], b: &[u8], y: &mut [u8]
    ) {
        let [low, high] = bounds.map(i32::from);
        for (a, y) in a.chunks(b.len().max(1)).zip(y.chunks_mut(b.len().max(1))) {
            for ((a, b), y) in a.iter().zip(b).zip(y) {
                let product = (i32::from(*a) - zeros[0]) * (i32::from(*b) - zeros[1]);
                let scaled = fixed_point(product, factor.0, factor.1);
                *y = scaled.saturating_add(i32::from(zero)).clamp(low, high) as u8;
            }
        }
    }
}

/// What a table has for each code: of x, or of y itself.
pub fn look_up(ctx: Context<'_>, table: &[u8; 256], x: Option<&[u8]>, y: &mut [u8]) {
    let (elements, y) = (x.map_or(y.len(), |x| x.len().min(y.len())), Shared::new(y));
    each_task(ctx, elements, &|first, len| {
        // SAFETY: every task has its own elements.
        let y = unsafe { y.part(first, len) };
        if let Some(x) = x {
            y.copy_from_slice(&x[first..first + len]);
        }
        match ctx.isa.vectors() {
            // SAFETY: the machine has what is asked for.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if super::avx512::has_byte_tables() => unsafe { super::avx512::look_up(table, y) },
            _ => y.iter_mut().for_each(|code| *code = table[usize::from(*code)]),
        }
    });
}
