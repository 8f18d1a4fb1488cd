//! The loops of arithmetic steps: one action on the elements of a chunk.

use super::number::{Class, Number, erf_f64};
use crate::kernels::math::{REACH, cos, erf, exp, exp_m1, ln, ln_1p, sigmoid, simd_fn, sin, softplus, tanh};
use plimsoll_graph::op::{Binary, Unary};

/// An operand: as many elements as the step has, or one for all.
#[derive(Clone, Copy)]
pub(super) struct Arg<T> {
    pub ptr: *const T,
    pub scalar: bool,
}

impl Arg<u8> {
    /// The operand as elements of a type.
    #[inline(always)]
    pub(super) fn of<T>(self) -> Arg<T> {
        Arg { ptr: self.ptr.cast(), scalar: self.scalar }
    }
}

/// Writes `f(i)` to every element.
///
/// # Safety
///
/// `target` is good for `len` elements.
#[inline(always)]
pub(super) unsafe fn fill<R>(len: usize, target: *mut R, f: impl Fn(usize) -> R) {
    for i in 0..len {
        // SAFETY: inside the target.
        unsafe { target.add(i).write(f(i)) };
    }
}

/// One element from `a`, one result.
///
/// # Safety
///
/// Both are good for `len` elements. They do not overlap, or loops would not be vectorised; only rounding is done in
/// place.
#[inline(always)]
pub(super) unsafe fn map<A: Copy, R>(len: usize, target: *mut R, a: *const A, f: impl Fn(A) -> R) {
    // SAFETY: the caller's contract.
    unsafe { fill(len, target, |i| f(*a.add(i))) }
}

/// One element from each of `a` and `b`, one result.
///
/// # Safety
///
/// As for [`map`].
#[inline(always)]
unsafe fn map2<T: Copy, R: Copy>(len: usize, target: *mut R, a: Arg<T>, b: Arg<T>, f: impl Fn(T, T) -> R) {
    // SAFETY: the caller's contract; scalars are read before anything is written.
    unsafe {
        match (a.scalar, b.scalar) {
            (false, false) => fill(len, target, |i| f(*a.ptr.add(i), *b.ptr.add(i))),
            (false, true) => {
                let b = *b.ptr;
                fill(len, target, |i| f(*a.ptr.add(i), b));
            }
            (true, false) => {
                let a = *a.ptr;
                fill(len, target, |i| f(a, *b.ptr.add(i)));
            }
            (true, true) => {
                let value = f(*a.ptr, *b.ptr);
                fill(len, target, |_| value);
            }
        }
    }
}

/// As [`map`] for periodic functions, with `far` for the rare elements beyond the range of the fast one.
///
/// # Safety
///
/// As for [`map`].
#[inline(always)]
unsafe fn map_periodic(
    len: usize,
    y: *mut f32,
    x: *const f32,
    near: impl Fn(f32) -> f32,
    far: fn(f64) -> f64,
) {
    // SAFETY: the caller's contract.
    unsafe {
        map(len, y, x, near);
        // Without an early exit, so that the search is vector code.
        let beyond = |x: f32| x.abs() > REACH;
        if (0..len).fold(false, |any, i| any | beyond(*x.add(i))) {
            for i in (0..len).filter(|&i| beyond(*x.add(i))) {
                y.add(i).write(far(f64::from(*x.add(i))) as f32);
            }
        }
    }
}

simd_fn! {
    /// # Safety
    ///
    /// As for [`map`].
    pub(super) unsafe fn unary(isa: Isa, op: Unary, len: usize, y: *mut f32, x: *const f32) {
        // SAFETY: the caller's contract.
        unsafe {
            match op {
                Unary::Neg => map(len, y, x, |x: f32| -x),
                Unary::Abs => map(len, y, x, |x: f32| x.abs()),
                Unary::Square => map(len, y, x, |x: f32| x * x),
                Unary::Sqrt => map(len, y, x, |x: f32| x.sqrt()),
                Unary::Rsqrt => map(len, y, x, |x: f32| 1.0 / x.sqrt()),
                Unary::Exp => map(len, y, x, exp::<FMA>),
                Unary::Log => map(len, y, x, ln::<FMA>),
                Unary::Tanh => map(len, y, x, tanh::<FMA>),
                Unary::Sigmoid => map(len, y, x, sigmoid::<FMA>),
                Unary::Erf => map(len, y, x, erf::<FMA>),
                Unary::Relu => map(len, y, x, |x: f32| if x > 0.0 || x.is_nan() { x } else { 0.0 }),
                Unary::Sin => map_periodic(len, y, x, sin::<FMA>, f64::sin),
                Unary::Cos => map_periodic(len, y, x, cos::<FMA>, f64::cos),
                Unary::Log1p => map(len, y, x, ln_1p::<FMA>),
                Unary::Expm1 => map(len, y, x, exp_m1::<FMA>),
                Unary::Softplus => map(len, y, x, softplus::<FMA>),
                Unary::Floor => map(len, y, x, |x: f32| x.floor()),
                Unary::Ceil => map(len, y, x, |x: f32| x.ceil()),
                Unary::Round => map(len, y, x, |x: f32| x.round_ties_even()),
                Unary::Sign => map(len, y, x, |x: f32| if x == 0.0 || x.is_nan() { x.abs() } else { x.signum() }),
            }
        }
    }
}

/// # Safety
///
/// As for [`map`].
#[inline(never)]
pub(super) unsafe fn unary_f64(op: Unary, len: usize, y: *mut f64, x: *const f64) {
    // SAFETY: the caller's contract.
    unsafe {
        match op {
            Unary::Neg => map(len, y, x, |x: f64| -x),
            Unary::Abs => map(len, y, x, |x: f64| x.abs()),
            Unary::Square => map(len, y, x, |x: f64| x * x),
            Unary::Sqrt => map(len, y, x, |x: f64| x.sqrt()),
            Unary::Rsqrt => map(len, y, x, |x: f64| 1.0 / x.sqrt()),
            Unary::Exp => map(len, y, x, |x: f64| x.exp()),
            Unary::Log => map(len, y, x, |x: f64| x.ln()),
            Unary::Tanh => map(len, y, x, |x: f64| x.tanh()),
            Unary::Sigmoid => map(len, y, x, |x: f64| 1.0 / (1.0 + (-x).exp())),
            Unary::Erf => map(len, y, x, erf_f64),
            Unary::Relu => map(len, y, x, |x: f64| if x > 0.0 || x.is_nan() { x } else { 0.0 }),
            Unary::Sin => map(len, y, x, |x: f64| x.sin()),
            Unary::Cos => map(len, y, x, |x: f64| x.cos()),
            Unary::Log1p => map(len, y, x, |x: f64| x.ln_1p()),
            Unary::Expm1 => map(len, y, x, |x: f64| x.exp_m1()),
            Unary::Softplus => {
                map(len, y, x, |x: f64| (if x < 0.0 { 0.0 } else { x }) + (-x.abs()).exp().ln_1p())
            }
            Unary::Floor => map(len, y, x, |x: f64| x.floor()),
            Unary::Ceil => map(len, y, x, |x: f64| x.ceil()),
            Unary::Round => map(len, y, x, |x: f64| x.round_ties_even()),
            Unary::Sign => map(len, y, x, |x: f64| if x == 0.0 || x.is_nan() { x.abs() } else { x.signum() }),
        }
    }
}

/// # Safety
///
/// As for [`map`].
#[inline(always)]
unsafe fn binary<T: Number>(op: Binary, len: usize, target: *mut u8, a: Arg<T>, b: Arg<T>) {
    let (y, truth) = (target.cast::<T>(), target.cast::<f32>());
    let bit = |b: bool| if b { 1.0 } else { 0.0 };
    // SAFETY: the caller's contract.
    unsafe {
        match op {
            Binary::Add => map2(len, y, a, b, T::add),
            Binary::Sub => map2(len, y, a, b, T::sub),
            Binary::Mul => map2(len, y, a, b, T::mul),
            Binary::Div => map2(len, y, a, b, T::div),
            Binary::Max => map2(len, y, a, b, T::max),
            Binary::Min => map2(len, y, a, b, T::min),
            Binary::Pow => map2(len, y, a, b, T::pow),
            Binary::Greater => map2(len, truth, a, b, |a, b| bit(a.greater(b))),
            Binary::GreaterEqual => map2(len, truth, a, b, |a, b| bit(a.greater_equal(b))),
            Binary::Equal => map2(len, truth, a, b, |a, b| bit(a.equal(b))),
        }
    }
}

simd_fn! {
    /// # Safety
    ///
    /// As for [`map`].
    pub(super) unsafe fn binary_f32(isa: Isa, op: Binary, len: usize, target: *mut u8, a: Arg<f32>, b: Arg<f32>) {
        // SAFETY: the caller's contract.
        unsafe { binary::<f32>(op, len, target, a, b) }
    }
}

/// For the rarer classes, whose bits do not depend on the instruction set: compiled once.
///
/// # Safety
///
/// As for [`map`].
#[inline(never)]
pub(super) unsafe fn binary_of(
    class: Class,
    op: Binary,
    len: usize,
    target: *mut u8,
    a: Arg<u8>,
    b: Arg<u8>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match class {
            Class::F32 => binary::<f32>(op, len, target, a.of(), b.of()),
            Class::F64 => binary::<f64>(op, len, target, a.of(), b.of()),
            Class::I32 => binary::<i32>(op, len, target, a.of(), b.of()),
            Class::I64 => binary::<i64>(op, len, target, a.of(), b.of()),
        }
    }
}

/// Chooses between elements by their bits.
///
/// # Safety
///
/// As for [`map`].
#[inline(always)]
pub(super) unsafe fn select<T: Copy>(len: usize, y: *mut T, condition: Arg<f32>, a: Arg<T>, b: Arg<T>) {
    // SAFETY: the caller's contract.
    unsafe {
        if condition.scalar {
            let chosen = if *condition.ptr != 0.0 { a } else { b };
            if chosen.scalar {
                let value = *chosen.ptr;
                return fill(len, y, |_| value);
            }
            return map(len, y, chosen.ptr, |x| x);
        }
        let pick = |i, a, b| if *condition.ptr.add(i) != 0.0 { a } else { b };
        match (a.scalar, b.scalar) {
            (false, false) => fill(len, y, |i| pick(i, *a.ptr.add(i), *b.ptr.add(i))),
            (false, true) => {
                let b = *b.ptr;
                fill(len, y, |i| pick(i, *a.ptr.add(i), b));
            }
            (true, false) => {
                let a = *a.ptr;
                fill(len, y, |i| pick(i, a, *b.ptr.add(i)));
            }
            (true, true) => {
                let (a, b) = (*a.ptr, *b.ptr);
                fill(len, y, |i| pick(i, a, b));
            }
        }
    }
}

simd_fn! {
    /// # Safety
    ///
    /// As for [`map`].
    pub(super) unsafe fn select_32(isa: Isa, len: usize, y: *mut u32, condition: Arg<f32>, a: Arg<u32>, b: Arg<u32>) {
        // SAFETY: the caller's contract.
        unsafe { select(len, y, condition, a, b) }
    }
}
