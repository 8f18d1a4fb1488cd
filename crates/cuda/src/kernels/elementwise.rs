//! Elementwise ops and regions of them: a kernel's source is the region, line by line.
//!
//! A thread computes a few consecutive elements. It reads its elements of every input before it writes any, so outputs may take
//! the place of inputs.

use super::strided::{Axes, merge, signed};
use super::{Call, Kernel, Operand, Parameter};
use plimsoll_graph::Op;
use plimsoll_graph::op::{self, Binary, Elementwise, Instruction, Region};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::{DType, TensorType};
use std::fmt::Write;

const THREADS: u32 = 256;

/// The functions that the lines of a region call.
pub(super) const FUNCTIONS: &str = include_str!("elementwise.cu");

/// What stands before and after a kernel's parameters, and what says which of its blocks runs. The compiler is told the threads of a block
/// by the first, which is for all kernels but those whose inputs take more than [`MOST_WORDS`].
pub(super) const HEADS: [&str; 2] =
    ["extern \"C\" __global__ void __launch_bounds__(256) kernel(", "extern \"C\" __global__ void kernel("];
const _: () = assert!(THREADS == 256, "as in HEADS");
pub(super) const BODY: &str = ") {";
pub(super) const BLOCK: &str = "blockIdx.x";

/// Registers of a thread that inputs take at most where the compiler knows the threads of a block: those of a multiprocessor's 65,536 with
/// eight blocks on it. It aims for that many, and for compute capability 8.0 put on a stack what did not fit: 4 bytes of a thread that
/// holds 43 registers of inputs.
const MOST_WORDS: usize = 32;

pub(super) fn single(op: Elementwise, query: &KernelQuery<'_>) -> Option<Call> {
    let operands = (0..query.inputs.len()).map(op::Operand::Input).collect();
    let instruction = Instruction { op, operands, dtype: query.outputs[0].dtype };
    fused(&Region { instructions: vec![instruction], outputs: vec![0] }, query)
}

pub(super) fn fused(region: &Region, query: &KernelQuery<'_>) -> Option<Call> {
    let Some(output) = query.outputs.first() else { return Some(Call::default()) };
    let n = output.shape.elements();
    if n == 0 {
        return Some(Call::default());
    }
    let strides = query.inputs.iter().map(|x| signed(x.shape.strides_in(&output.shape)));
    let strides: Vec<_> = strides.collect();
    let axes = merge(&output.shape, &strides);
    let width = vector_width(&axes, &query.inputs, &query.outputs);
    let blocks = u32::try_from(n.div_ceil(width * THREADS as usize)).ok()?;
    let source = Source { region, inputs: &query.inputs, outputs: &query.outputs, axes: &axes, width };
    let operands = (0..query.inputs.len()).map(Operand::Read);
    let operands = operands.chain((0..query.outputs.len()).map(Operand::Write));
    let mut parameters: Vec<Parameter> = operands.map(Parameter::from).collect();
    parameters.push(n.into());
    parameters.extend(axes.extents.iter().skip(1).map(|&extent| Parameter::from(extent)));
    let outer = axes.strides.iter().flat_map(|strides| strides.split_last().map_or(&[][..], |(_, s)| s));
    parameters.extend(outer.filter(|&&stride| stride > 0).map(|&stride| Parameter::Integer(stride)));
    let source = source.write(n);
    Some(Call::of(Kernel { source, blocks: [blocks, 1, 1], threads: THREADS, parameters, table: false }))
}

/// Elements of a thread: what 16 bytes hold of the narrowest operand, if the innermost axis is a multiple of them.
fn vector_width(axes: &Axes, inputs: &[&TensorType], outputs: &[&TensorType]) -> usize {
    let varies = |strides: &&Vec<i64>| strides.last() == Some(&1);
    let read = axes.strides.iter().zip(inputs).filter(|(strides, _)| varies(strides)).map(|(_, x)| x);
    let narrowest = read.chain(outputs).map(|ty| ty.dtype.bytes()).min().unwrap_or(1);
    let width = (16 / narrowest).min(8);
    match axes.extents[..] {
        [n] if n >= width => width,
        [.., inner] if axes.extents.len() > 1 && inner.is_multiple_of(width) => width,
        _ => 1,
    }
}

/// A region with the layout of its operands.
struct Source<'a> {
    region: &'a Region,
    inputs: &'a [&'a TensorType],
    outputs: &'a [&'a TensorType],
    axes: &'a Axes,
    width: usize,
}

impl Source<'_> {
    /// The kernel's source for so many elements.
    fn write(&self, elements: usize) -> String {
        let index = if elements < 1 << 31 { "u32" } else { "i64" };
        let mut text = format!("{FUNCTIONS}\nconst int V = {};\ntypedef {index} index;\n", self.width);
        // Writing to a string does not fail.
        let _ = self.write_kernel(&mut text);
        text
    }

    fn write_kernel(&self, text: &mut String) -> std::fmt::Result {
        let parameters = self.parameters().join(", ");
        let head = HEADS[usize::from(self.words() > MOST_WORDS)];
        writeln!(text, "{head}{parameters}{BODY}")?;
        writeln!(text, "    const index start = ((index){BLOCK} * {THREADS} + threadIdx.x) * V;")?;
        writeln!(text, "    if (start >= (index)n) return;")?;
        if !self.whole() {
            writeln!(text, "    const int count = (index)n - start < V ? (int)((index)n - start) : V;")?;
        }
        self.write_offsets(text)?;
        for (i, x) in self.inputs.iter().enumerate() {
            let ty = stored(x.dtype);
            if self.varies(i) && self.whole() {
                writeln!(text, "    {ty} x{i}[V];\n    load_whole<V>(x{i}, p{i} + o{i});")?;
            } else if self.varies(i) {
                writeln!(text, "    {ty} x{i}[V];\n    load_vector<V>(x{i}, p{i} + o{i}, count);")?;
            } else {
                writeln!(text, "    const {ty} x{i} = p{i}[o{i}];")?;
            }
        }
        for (o, y) in self.outputs.iter().enumerate() {
            writeln!(text, "    {} y{o}[V];", stored(y.dtype))?;
        }
        writeln!(text, "#pragma unroll\n    for (int lane = 0; lane < V; lane++) {{")?;
        self.write_instructions(text)?;
        writeln!(text, "    }}")?;
        for o in 0..self.outputs.len() {
            if self.whole() {
                writeln!(text, "    store_whole<V>(q{o} + start, y{o});")?;
            } else {
                writeln!(text, "    store_vector<V>(q{o} + start, y{o}, count);")?;
            }
        }
        writeln!(text, "}}")
    }

    /// Whether all vectors are whole and aligned: the innermost axis is a multiple of them, and operands start at multiples of more.
    fn whole(&self) -> bool {
        self.axes.extents.len() > 1
    }

    /// Registers that a thread's elements of the inputs take.
    fn words(&self) -> usize {
        let elements = |input| if self.varies(input) { self.width } else { 1 };
        let inputs = self.inputs.iter().enumerate();
        inputs.map(|(i, x)| (elements(i) * x.dtype.bytes()).div_ceil(4)).sum()
    }

    /// Whether an input varies along the innermost axis.
    fn varies(&self, input: usize) -> bool {
        self.axes.strides[input].last() == Some(&1)
    }

    /// As [`fused`] passes them.
    fn parameters(&self) -> Vec<String> {
        let reads = self.inputs.iter().enumerate().map(|(i, x)| format!("const {} *p{i}", stored(x.dtype)));
        let writes = self.outputs.iter().enumerate().map(|(o, y)| format!("{} *q{o}", stored(y.dtype)));
        let extents = (1..self.axes.extents.len()).map(|a| format!("i64 e{a}"));
        let mut all: Vec<String> = reads.chain(writes).chain(["i64 n".into()]).chain(extents).collect();
        for (i, strides) in self.axes.strides.iter().enumerate() {
            let outer = strides.split_last().map_or(&[][..], |(_, outer)| outer);
            let varying = outer.iter().enumerate().filter(|(_, stride)| **stride > 0);
            all.extend(varying.map(|(a, _)| format!("i64 s{i}_{a}")));
        }
        all
    }

    /// Where a thread's elements of each input are.
    fn write_offsets(&self, text: &mut String) -> std::fmt::Result {
        let rank = self.axes.extents.len();
        if rank > 1 {
            writeln!(text, "    index rest = start;")?;
        }
        for a in (1..rank).rev() {
            writeln!(text, "    const index c{a} = rest % (index)e{a};\n    rest /= (index)e{a};")?;
        }
        if rank > 1 {
            writeln!(text, "    const index c0 = rest;")?;
        } else if rank == 1 {
            writeln!(text, "    const index c0 = start;")?;
        }
        for (i, strides) in self.axes.strides.iter().enumerate() {
            let term = |(a, &stride): (usize, &i64)| match stride {
                0 => None,
                _ if a + 1 == rank => Some(format!("c{a}")),
                _ => Some(format!("c{a} * (index)s{i}_{a}")),
            };
            let mut terms: Vec<String> = strides.iter().enumerate().filter_map(term).collect();
            if terms.is_empty() {
                terms.push("0".into());
            }
            writeln!(text, "    const index o{i} = {};", terms.join(" + "))?;
        }
        Ok(())
    }

    /// The region for one element.
    fn write_instructions(&self, text: &mut String) -> std::fmt::Result {
        let indent = "        ";
        for (i, x) in self.inputs.iter().enumerate() {
            let element = if self.varies(i) { format!("x{i}[lane]") } else { format!("x{i}") };
            let value =
                if x.dtype == DType::Bool { format!("{element} != 0") } else { format!("widen({element})") };
            writeln!(text, "{indent}const {} a{i} = {value};", computed(x.dtype))?;
        }
        for (i, instruction) in self.region.instructions.iter().enumerate() {
            let operand = |operand: &op::Operand| match *operand {
                op::Operand::Input(k) => format!("a{k}"),
                op::Operand::Result(k) => format!("r{k}"),
            };
            let operands: Vec<String> = instruction.operands.iter().map(operand).collect();
            let value = expression(instruction, &operands);
            writeln!(text, "{indent}const {} r{i} = {value};", computed(instruction.dtype))?;
        }
        for (o, (&from, y)) in self.region.outputs.iter().zip(self.outputs).enumerate() {
            let value = match y.dtype {
                DType::BF16 | DType::F16 => format!("narrow<{}>(r{from})", stored(y.dtype)),
                DType::U8 => format!("(u8)r{from}"),
                DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::Bool => format!("r{from}"),
            };
            writeln!(text, "{indent}y{o}[lane] = {value};")?;
        }
        Ok(())
    }
}

/// An instruction's value, rounded to its type, in the type that it is computed in.
fn expression(instruction: &Instruction, operands: &[String]) -> String {
    let call = || format!("op_{}({})", Op::Elementwise(instruction.op).name(), operands.join(", "));
    let value = match instruction.op {
        Elementwise::Binary(Binary::Max | Binary::Min) => return call(),
        Elementwise::Unary(_) | Elementwise::Binary(_) => call(),
        Elementwise::Select => return format!("{} ? {} : {}", operands[0], operands[1], operands[2]),
        Elementwise::Cast(dtype) => return format!("to_{}({})", dtype.name(), operands[0]),
        Elementwise::Constant { value, dtype } => return constant(value, dtype),
    };
    match instruction.dtype {
        DType::BF16 => format!("to_bf16({value})"),
        DType::F16 => format!("to_f16({value})"),
        DType::U8 => format!("clamp_u8({value})"),
        DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::Bool => value,
    }
}

/// A constant, rounded to its type.
fn constant(value: f64, dtype: DType) -> String {
    let rounded = plimsoll_tensor::round(value, dtype);
    match dtype {
        DType::F32 | DType::BF16 | DType::F16 => {
            format!("__uint_as_float({:#x}u)", (rounded as f32).to_bits())
        }
        DType::F64 => format!("__longlong_as_double({:#x}ll)", rounded.to_bits()),
        DType::I32 | DType::U8 => format!("(i32){}ll", rounded as i64),
        DType::I64 => format!("(i64){:#x}ull", rounded as i64),
        DType::Bool => format!("{}", rounded != 0.0),
    }
}

/// The C type of an element in memory.
pub(crate) fn stored(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::BF16 => "bf16",
        DType::F16 => "f16",
        DType::F64 => "f64",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::U8 | DType::Bool => "u8",
    }
}

/// The C type that an element is computed in.
fn computed(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::BF16 | DType::F16 => "float",
        DType::F64 => "double",
        DType::I32 | DType::U8 => "i32",
        DType::I64 => "i64",
        DType::Bool => "bool",
    }
}
