//! Calls of several launches, put together one launch after the other.

use super::{Call, Kernel, Launch, Operand, Parameter, Pointer, Product};
use plimsoll_tensor::DType;

/// `parameters![a, b]`: a kernel's parameters.
macro_rules! parameters {
    ($($value:expr),* $(,)?) => {
        vec![$(crate::kernels::Parameter::from($value)),*]
    };
}

pub(super) use parameters;

/// Threads of a block where each thread computes an element by itself.
const THREADS: u32 = 256;
/// Parts of the scratch memory start at multiples of this.
const ALIGNMENT: usize = 256;

/// A call, launch by launch.
#[derive(Default)]
pub(super) struct CallBuilder {
    call: Call,
    used: usize,
}

impl CallBuilder {
    /// So many bytes of scratch memory.
    pub fn scratch(&mut self, bytes: usize) -> Pointer {
        let start = self.used;
        self.used = (start + bytes).next_multiple_of(ALIGNMENT);
        self.call.workspace = self.call.workspace.max(self.used);
        Operand::Workspace.at(start)
    }

    /// Lets the next launches use all scratch memory again: what earlier ones left there is not needed.
    pub fn reuse_scratch(&mut self) {
        self.used = 0;
    }

    /// A kernel with a thread for each element; none if there are no elements.
    pub fn each(&mut self, elements: usize, source: String, parameters: Vec<Parameter>) {
        self.kernel([elements.div_ceil(THREADS as usize), 1, 1], THREADS, source, parameters);
    }

    /// A kernel; none if there are no blocks.
    pub fn kernel(&mut self, blocks: [usize; 3], threads: u32, source: String, parameters: Vec<Parameter>) {
        if !blocks.contains(&0) {
            let blocks = blocks.map(|extent| extent as u32);
            self.call.launches.push(Launch::Kernel(Kernel {
                source,
                blocks,
                threads,
                parameters,
                table: false,
            }));
        }
    }

    /// Products; none if the result has no elements.
    pub fn product(&mut self, product: Product) {
        if ![product.m, product.n, product.count].contains(&0) {
            self.call.launches.push(Launch::Product(product));
        }
    }

    /// Sets all elements of an operand to zero.
    pub fn zero(&mut self, operand: Operand, elements: usize, dtype: DType) {
        let (unit, size) = copy_unit(elements, dtype);
        let source = define(&[("UNIT", unit)], include_str!("zero.cu"));
        self.each(elements / size, source, parameters![operand, elements / size]);
    }

    /// The call.
    pub fn finish(self) -> Call {
        self.call
    }
}

/// A kernel's source behind definitions of its macros.
pub(crate) fn define(macros: &[(&str, &str)], text: &str) -> String {
    let mut source: String = macros.iter().map(|(name, value)| format!("#define {name} {value}\n")).collect();
    source.push_str(text);
    source
}

/// A macro's value that switches a part of a source on or off.
pub(super) fn flag(on: bool) -> &'static str {
    if on { "1" } else { "0" }
}

/// The type that counts so many elements, or that indexes them.
pub(super) fn index_type(elements: usize) -> &'static str {
    // Threads past the end have larger indices.
    if elements < 1 << 31 { "u32" } else { "i64" }
}

/// The largest type that copies a run of so many elements of 2 or 4 bytes in whole pieces, and its elements.
pub(super) fn copy_unit(run: usize, dtype: DType) -> (&'static str, usize) {
    let (name, bytes) = match (run * dtype.bytes()).trailing_zeros() {
        0 | 1 => ("u16", 2),
        2 => ("u32", 4),
        3 => ("uint2", 8),
        _ => ("uint4", 16),
    };
    (name, bytes / dtype.bytes())
}
