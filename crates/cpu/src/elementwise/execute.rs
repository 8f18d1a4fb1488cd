//! Steps over chunks.

use super::Program;
use super::compile::{Action, Place, Source, Step};
use super::layout::{Chunk, Kind};
use super::number::{Class, Number, erf_f64, to_bf16_bits};
use crate::float::Float;
use crate::isa::Isa;
use crate::math::{REACH, cos, erf, exp, exp_m1, ln, ln_1p, sigmoid, simd_fn, sin, softplus, tanh};
use plimsoll_graph::op::{Binary, Unary};
use plimsoll_tensor::{DType, f16};
use std::ops::Range;

/// The memory of one run.
pub(super) struct Operands<'a> {
    pub inputs: &'a [*const u8],
    pub outputs: &'a [*mut u8],
    /// Outputs that are written where they are computed, one bit each.
    pub direct: u64,
}

// SAFETY: pointers by themselves; whoever follows them says why the parts are disjoint.
unsafe impl Sync for Operands<'_> {}

/// Takes chunks through all steps.
///
/// # Safety
///
/// The operands are good for the program's types, the registers for what it needs, and no other thread touches the
/// registers or these chunks of the outputs.
pub(super) unsafe fn run_chunks(
    isa: Isa,
    program: &Program,
    operands: &Operands<'_>,
    registers: *mut u8,
    chunks: Range<usize>,
) {
    // Rows that repeat are spread over the longest chunk.
    let whole = Chunk { start: 0, len: program.layout.chunk_elements(), row: 0, column: 0 };
    let frame = Frame { isa, program, operands, registers, chunk: whole };
    for step in &program.prologue {
        // SAFETY: the caller's contract.
        unsafe { frame.step(step) };
    }
    for chunk in chunks {
        let frame = Frame { chunk: program.layout.chunk(chunk), ..frame };
        for step in &program.body {
            // SAFETY: the caller's contract.
            unsafe { frame.step(step) };
        }
    }
}

/// What a step works on.
#[derive(Clone, Copy)]
struct Frame<'a> {
    isa: Isa,
    program: &'a Program,
    operands: &'a Operands<'a>,
    registers: *mut u8,
    chunk: Chunk,
}

/// An operand: as many elements as the step has, or one for all.
#[derive(Clone, Copy)]
struct Arg<T> {
    ptr: *const T,
    scalar: bool,
}

impl Arg<u8> {
    /// The operand as what it holds.
    #[inline(always)]
    fn of<T>(self) -> Arg<T> {
        Arg { ptr: self.ptr.cast(), scalar: self.scalar }
    }
}

impl Frame<'_> {
    #[inline(always)]
    fn is_direct(&self, output: usize) -> bool {
        self.operands.direct >> output & 1 == 1
    }

    #[inline(always)]
    fn address(&self, place: Place) -> *mut u8 {
        let Self { program, operands, registers, chunk, .. } = self;
        match place {
            Place::Slot(slot) => registers.wrapping_add(slot * program.slot_bytes),
            Place::Cell(cell) => {
                registers.wrapping_add(program.slots * program.slot_bytes + cell * size_of::<u64>())
            }
            Place::Input(k) => {
                let offset = program.layout.offset(k, chunk) * program.inputs[k].bytes();
                operands.inputs[k].wrapping_add(offset).cast_mut()
            }
            Place::OutputOr(o, slot) if !self.is_direct(o) => self.address(Place::Slot(slot)),
            Place::Output(o) | Place::OutputOr(o, _) => {
                operands.outputs[o].wrapping_add(chunk.start * program.outputs[o].dtype.bytes())
            }
        }
    }

    #[inline(always)]
    fn arg<T>(&self, source: Source) -> Arg<T> {
        Arg { ptr: self.address(source.place).cast_const().cast(), scalar: source.scalar }
    }

    /// # Safety
    ///
    /// As for [`run_chunks`].
    unsafe fn step(&self, step: &Step) {
        let len = if step.single { 1 } else { self.chunk.len };
        let [a, b, c] = step.sources;
        let target = self.address(step.target);
        // SAFETY: places are good for a chunk by the caller's contract, and hold the class that the step names.
        unsafe {
            match step.action {
                Action::Constant(bytes) => target.cast::<[u8; 8]>().write(bytes),
                Action::Load(k) => self.load(k, len, target),
                Action::Unary(op, Class::F32) => unary(self.isa, op, len, target.cast(), self.arg(a).ptr),
                Action::Unary(op, _) => unary_f64(op, len, target.cast(), self.arg(a).ptr),
                Action::Binary(op, Class::F32) => {
                    binary_f32(self.isa, op, len, target, self.arg(a), self.arg(b))
                }
                Action::Binary(op, class) => binary_of(class, op, len, target, self.arg(a), self.arg(b)),
                Action::Select(class) if class.bytes() == 4 => {
                    select_32(self.isa, len, target.cast(), self.arg(a), self.arg(b), self.arg(c));
                }
                Action::Select(_) => select::<u64>(len, target.cast(), self.arg(a), self.arg(b), self.arg(c)),
                Action::Cast { from: Class::F32, to } => {
                    cast_f32(self.isa, to, len, target, self.arg::<f32>(a).ptr);
                }
                Action::Cast { from, to } => cast_of(from, to, len, target, self.arg(a)),
                Action::Round(dtype) => round(self.isa, dtype, len, target),
                Action::Store(o) => {
                    let stays = matches!(a.place, Place::OutputOr(own, _) if own == o && self.is_direct(o));
                    if !stays {
                        store(self.isa, self.program.outputs[o].dtype, len, target, self.arg::<u8>(a));
                    }
                }
            }
        }
    }

    /// Brings an input into a register.
    ///
    /// # Safety
    ///
    /// As for [`run_chunks`].
    unsafe fn load(&self, k: usize, len: usize, target: *mut u8) {
        let layout = &self.program.layout;
        let dtype = self.program.inputs[k];
        let access = &layout.inputs[k];
        let base = self.operands.inputs[k];
        let spread = len > 1 && !layout.has_long_rows() && matches!(access.kind, Kind::Tiled | Kind::Strided);
        // SAFETY: offsets stay inside the input, targets inside the register.
        unsafe {
            if !spread {
                let from = base.add(layout.offset(k, &self.chunk) * dtype.bytes());
                return fetch(self.isa, dtype, len, target, from, false);
            }
            let step = layout.row * Class::of(dtype).bytes();
            for (i, row) in (self.chunk.row..).enumerate().take(len / layout.row) {
                let offset = if access.kind == Kind::Tiled { 0 } else { layout.row_offset(k, row) };
                let from = base.add(offset * dtype.bytes());
                fetch(self.isa, dtype, layout.row, target.add(i * step), from, access.along_row == 0);
            }
        }
    }
}

/// Writes `f(i)` to every element.
///
/// # Safety
///
/// `target` is good for `len` elements.
#[inline(always)]
unsafe fn fill<R>(len: usize, target: *mut R, f: impl Fn(usize) -> R) {
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
unsafe fn map<A: Copy, R>(len: usize, target: *mut R, a: *const A, f: impl Fn(A) -> R) {
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

/// As [`map`], with `far` for the rare elements beyond the reach of the fast function.
///
/// # Safety
///
/// As for [`map`].
#[inline(always)]
unsafe fn turn(len: usize, y: *mut f32, x: *const f32, near: impl Fn(f32) -> f32, far: fn(f64) -> f64) {
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
    unsafe fn unary(isa: Isa, op: Unary, len: usize, y: *mut f32, x: *const f32) {
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
                Unary::Sin => turn(len, y, x, sin::<FMA>, f64::sin),
                Unary::Cos => turn(len, y, x, cos::<FMA>, f64::cos),
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
unsafe fn unary_f64(op: Unary, len: usize, y: *mut f64, x: *const f64) {
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
    unsafe fn binary_f32(isa: Isa, op: Binary, len: usize, target: *mut u8, a: Arg<f32>, b: Arg<f32>) {
        // SAFETY: the caller's contract.
        unsafe { binary::<f32>(op, len, target, a, b) }
    }
}

/// For the rarer classes, whose bits no instruction set changes: compiled once.
///
/// # Safety
///
/// As for [`map`].
#[inline(never)]
unsafe fn binary_of(class: Class, op: Binary, len: usize, target: *mut u8, a: Arg<u8>, b: Arg<u8>) {
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
unsafe fn select<T: Copy>(len: usize, y: *mut T, condition: Arg<f32>, a: Arg<T>, b: Arg<T>) {
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
    unsafe fn select_32(isa: Isa, len: usize, y: *mut u32, condition: Arg<f32>, a: Arg<u32>, b: Arg<u32>) {
        // SAFETY: the caller's contract.
        unsafe { select(len, y, condition, a, b) }
    }
}

simd_fn! {
    /// # Safety
    ///
    /// As for [`map`].
    unsafe fn cast_f32(isa: Isa, to: DType, len: usize, target: *mut u8, x: *const f32) {
        // SAFETY: the caller's contract.
        unsafe { cast::<f32>(to, len, target, x) }
    }
}

/// As [`binary_of`].
///
/// # Safety
///
/// As for [`map`].
#[inline(never)]
unsafe fn cast_of(from: Class, to: DType, len: usize, target: *mut u8, x: Arg<u8>) {
    // SAFETY: the caller's contract.
    unsafe {
        match from {
            Class::F32 => cast::<f32>(to, len, target, x.of().ptr),
            Class::F64 => cast::<f64>(to, len, target, x.of().ptr),
            Class::I32 => cast::<i32>(to, len, target, x.of().ptr),
            Class::I64 => cast::<i64>(to, len, target, x.of().ptr),
        }
    }
}

/// # Safety
///
/// As for [`map`].
#[inline(always)]
unsafe fn cast<T: Number>(to: DType, len: usize, target: *mut u8, x: *const T) {
    // SAFETY: the caller's contract.
    unsafe {
        match to {
            DType::F32 => map(len, target.cast(), x, T::to_f32),
            DType::BF16 => map(len, target.cast(), x, T::to_bf16),
            DType::F16 => map(len, target.cast(), x, T::to_f16),
            DType::F64 => map(len, target.cast(), x, T::to_f64),
            DType::I32 => map(len, target.cast(), x, T::to_i32),
            DType::I64 => map(len, target.cast(), x, T::to_i64),
            DType::U8 => map(len, target.cast(), x, |x: T| i32::from(x.to_u8())),
            DType::Bool => map(len, target.cast(), x, |x: T| if x.is_true() { 1.0f32 } else { 0.0 }),
        }
    }
}

simd_fn! {
    /// # Safety
    ///
    /// As for [`map`].
    unsafe fn round(isa: Isa, dtype: DType, len: usize, target: *mut u8) {
        let (float, integer) = (target.cast::<f32>(), target.cast::<i32>());
        // SAFETY: the caller's contract.
        unsafe {
            match dtype {
                DType::BF16 => map(len, float, float, f32::to_bf16),
                DType::F16 => map(len, float, float, f32::to_f16),
                DType::U8 => map(len, integer, integer, |x: i32| x.clamp(0, 255)),
                _ => {}
            }
        }
    }
}

simd_fn! {
    /// Reads elements from memory into a register, or one element again and again.
    ///
    /// # Safety
    ///
    /// As for [`map`].
    unsafe fn fetch(isa: Isa, dtype: DType, len: usize, target: *mut u8, from: *const u8, repeat: bool) {
        /// # Safety
        ///
        /// As for [`map`].
        #[inline(always)]
        unsafe fn convert<M: Copy, R: Copy>(
            len: usize, target: *mut u8, from: *const u8, repeat: bool, f: impl Fn(M) -> R,
        ) {
            let (target, from) = (target.cast::<R>(), from.cast::<M>());
            // SAFETY: the caller's contract.
            unsafe {
                if repeat {
                    let value = f(*from);
                    fill(len, target, |_| value);
                } else {
                    map(len, target, from, f);
                }
            }
        }
        // SAFETY: the caller's contract.
        unsafe {
            match dtype {
                DType::F32 | DType::I32 => convert(len, target, from, repeat, |x: u32| x),
                DType::F64 | DType::I64 => convert(len, target, from, repeat, |x: u64| x),
                DType::BF16 => convert(len, target, from, repeat, |x: u16| f32::from_bits(u32::from(x) << 16)),
                DType::F16 => convert(len, target, from, repeat, |x: f16| x.widen()),
                DType::U8 => convert(len, target, from, repeat, |x: u8| i32::from(x)),
                DType::Bool => convert(len, target, from, repeat, |x: u8| if x != 0 { 1.0f32 } else { 0.0 }),
            }
        }
    }
}

simd_fn! {
    /// Writes a register to memory.
    ///
    /// # Safety
    ///
    /// As for [`map`].
    unsafe fn store(isa: Isa, dtype: DType, len: usize, target: *mut u8, from: Arg<u8>) {
        /// # Safety
        ///
        /// As for [`map`].
        #[inline(always)]
        unsafe fn convert<T: Copy, M: Copy>(len: usize, target: *mut u8, from: Arg<u8>, f: impl Fn(T) -> M) {
            let target = target.cast::<M>();
            // SAFETY: the caller's contract.
            unsafe {
                if from.scalar {
                    let value = f(*from.ptr.cast::<T>());
                    fill(len, target, |_| value);
                } else {
                    map(len, target, from.ptr.cast::<T>(), f);
                }
            }
        }
        // SAFETY: the caller's contract.
        unsafe {
            match dtype {
                DType::F32 | DType::I32 => convert(len, target, from, |x: u32| x),
                DType::F64 | DType::I64 => convert(len, target, from, |x: u64| x),
                DType::BF16 => convert(len, target, from, to_bf16_bits),
                DType::F16 => convert(len, target, from, f16::narrow),
                DType::U8 => convert(len, target, from, |x: i32| x as u8),
                DType::Bool => convert(len, target, from, |x: f32| u8::from(x != 0.0)),
            }
        }
    }
}
