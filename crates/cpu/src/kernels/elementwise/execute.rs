//! Runs the steps of a program over chunks.

use super::Program;
use super::compile::{Action, Index, Place, Source, Step};
use super::convert::{cast_f32, cast_of, fetch, round, store};
use super::layout::{Chunk, Kind};
use super::loops::{Arg, binary_f32, binary_of, select, select_32, unary, unary_f64};
use super::number::Class;
use crate::isa::Isa;
use std::ops::Range;

/// The memory of one run.
pub(super) struct Operands<'a> {
    pub inputs: &'a [*const u8],
    pub outputs: &'a [*mut u8],
    /// Outputs that are written directly by the step that computes them, one bit each.
    pub direct: u64,
}

// SAFETY: pointers by themselves; whoever follows them says why the parts are disjoint.
unsafe impl Sync for Operands<'_> {}

/// Runs all steps over some chunks.
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
    // Rows that repeat are broadcast over the longest chunk.
    let whole = Chunk { start: 0, len: program.layout.chunk_elements(), row: 0, column: 0 };
    let frame = Frame { isa, program, operands, registers, chunk: whole };
    for step in &program.prologue {
        // SAFETY: the caller's contract.
        unsafe { frame.step(step) };
    }
    for chunk in chunks {
        let frame = Frame { chunk: program.layout.chunk(chunk), ..frame };
        for step in program.body.iter().filter(|step| !frame.is_stored(step)) {
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

impl Frame<'_> {
    #[inline(always)]
    fn is_direct(&self, output: Index) -> bool {
        self.operands.direct >> output & 1 == 1
    }

    /// Whether a step would store what was written directly.
    #[inline(always)]
    fn is_stored(&self, step: &Step) -> bool {
        let Action::Store(o) = step.action else { return false };
        matches!(step.sources[0].place, Place::OutputOr(own, _) if own == o && self.is_direct(o))
    }

    #[inline(always)]
    fn address(&self, place: Place) -> *mut u8 {
        let Self { program, operands, registers, chunk, .. } = self;
        match place {
            Place::Slot(slot) => registers.wrapping_add(usize::from(slot) * program.slot_bytes),
            Place::Cell(cell) => {
                let cells = program.slots * program.slot_bytes;
                registers.wrapping_add(cells + usize::from(cell) * size_of::<u64>())
            }
            Place::Input(k) => {
                let k = usize::from(k);
                let offset = program.layout.offset(k, chunk) * program.inputs[k].bytes();
                operands.inputs[k].wrapping_add(offset).cast_mut()
            }
            Place::OutputOr(o, slot) if !self.is_direct(o) => self.address(Place::Slot(slot)),
            Place::Output(o) | Place::OutputOr(o, _) => {
                let o = usize::from(o);
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
                Action::Load(k) => self.load(usize::from(k), len, target),
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
                    let dtype = self.program.outputs[usize::from(o)].dtype;
                    store(self.isa, dtype, len, target, self.arg::<u8>(a));
                }
            }
        }
    }

    /// Loads an input into a register.
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
            if access.kind == Kind::Tiled {
                // What is filled is copied behind itself until all of it is.
                fetch(self.isa, dtype, layout.row, target, base, access.along_row == 0);
                let (mut filled, bytes) = (step, len / layout.row * step);
                while filled < bytes {
                    let more = filled.min(bytes - filled);
                    target.add(filled).copy_from_nonoverlapping(target, more);
                    filled += more;
                }
                return;
            }
            for (i, row) in (self.chunk.row..).enumerate().take(len / layout.row) {
                let from = base.add(layout.row_offset(k, row) * dtype.bytes());
                fetch(self.isa, dtype, layout.row, target.add(i * step), from, access.along_row == 0);
            }
        }
    }
}
