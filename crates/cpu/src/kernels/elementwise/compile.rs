//! From a region to steps over registers.

use super::layout::{Kind, Layout};
use super::number::{Class, constant_bytes, is_register_type};
use super::{Output, Program, Tasks};
use plimsoll_graph::op::{Binary, Elementwise, Op, Operand, Region, Unary};
use plimsoll_tensor::{DType, TensorType};

/// Bytes of a first-level cache that registers and operands of a chunk may use.
const CACHE_BYTES: usize = 40 * 1024;

/// The number of a register, an input or an output. A plan holds thousands of steps, so they are small.
pub(super) type Index = u16;

/// Instructions, inputs and outputs of a region at most, all together.
const MOST: usize = (Index::MAX / 2) as usize;

fn index(of: usize) -> Index {
    // `compile` refuses regions whose numbers are larger.
    Index::try_from(of).unwrap_or(Index::MAX)
}

/// Where a step reads or writes elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    /// A register of a chunk's length.
    Slot(Index),
    /// A register of one element.
    Cell(Index),
    /// An input's memory.
    Input(Index),
    /// An output's memory.
    Output(Index),
    /// An output's memory if it may be written already, else a register.
    OutputOr(Index, Index),
}

/// An operand of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub place: Place,
    /// One element for all of the chunk.
    pub scalar: bool,
}

/// What a step does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// Writes a constant, as a register holds it.
    Constant([u8; 8]),
    /// Loads an input into a register: converts it, broadcasts it over the chunk, or both.
    Load(Index),
    Unary(Unary, Class),
    Binary(Binary, Class),
    Select(Class),
    Cast {
        from: Class,
        to: DType,
    },
    /// Rounds a register to a type narrower than its class.
    Round(DType),
    /// Writes a register to an output.
    Store(Index),
}

/// One step over a chunk, or over one element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub action: Action,
    pub target: Place,
    pub sources: [Source; 3],
    pub single: bool,
}

// A plan of a deep model holds a hundred thousand of them.
const _: () = assert!(size_of::<Step>() <= 48);

const NOTHING: Source = Source { place: Place::Cell(0), scalar: true };

/// How often a value changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    /// Never.
    Uniform,
    /// From chunk to chunk.
    PerChunk,
    /// From element to element.
    Full,
}

/// A value: an input in a form that steps can read, or a result.
#[derive(Clone, Copy)]
struct Value {
    class: Class,
    level: Level,
    place: Place,
    /// The body step after which its register is free; inputs that fill a register for a whole task keep theirs.
    last_use: usize,
}

impl Value {
    fn source(&self) -> Source {
        Source { place: self.place, scalar: self.level != Level::Full }
    }
}

pub(super) fn compile(
    region: &Region,
    inputs: &[TensorType],
    outputs: &[TensorType],
) -> Result<Program, String> {
    if region.instructions.len() + inputs.len() + outputs.len() > MOST {
        return Err(format!("a region has at most {MOST} instructions and operands"));
    }
    let types: Vec<&TensorType> = inputs.iter().collect();
    let inferred = Op::Fused(region.clone()).infer(&types).map_err(|e| e.to_string())?;
    if inferred != outputs {
        return Err("the outputs do not have the region's types".to_string());
    }
    let shapes: Vec<_> = inputs.iter().map(|t| &t.shape).collect();
    let shape = shapes.iter().try_fold(plimsoll_tensor::Shape::scalar(), |all, s| all.broadcast(s));
    let layout = Layout::new(&shape.ok_or("the inputs do not broadcast")?, &shapes);
    let mut compiler = Compiler {
        region,
        inputs,
        layout,
        input_values: vec![None; inputs.len()],
        results: Vec::new(),
        prologue: Vec::new(),
        body: Vec::new(),
        free: Vec::new(),
        slots: 0,
        cells: 0,
        reads: Vec::new(),
        writes: vec![None; outputs.len()],
    };
    compiler.instructions();
    compiler.stores();
    Ok(compiler.finish(outputs))
}

struct Compiler<'a> {
    region: &'a Region,
    inputs: &'a [TensorType],
    layout: Layout,
    input_values: Vec<Option<Value>>,
    results: Vec<Value>,
    prologue: Vec<Step>,
    body: Vec<Step>,
    /// Registers that are free.
    free: Vec<Index>,
    slots: usize,
    cells: usize,
    /// Which input's memory is read by which step of the body.
    reads: Vec<(usize, usize)>,
    /// The step of the body at which an output's memory may first be written.
    writes: Vec<Option<usize>>,
}

impl Compiler<'_> {
    fn instructions(&mut self) {
        let region = self.region;
        for (i, instruction) in region.instructions.iter().enumerate() {
            let operands: Vec<Value> = instruction.operands.iter().map(|&o| self.operand(o)).collect();
            let level = operands.iter().map(|v| v.level).max().unwrap_or(Level::Uniform);
            let class = Class::of(instruction.dtype);
            let action = match instruction.op {
                Elementwise::Unary(op) => Action::Unary(op, class),
                Elementwise::Binary(op) => Action::Binary(op, operands[0].class),
                Elementwise::Select => Action::Select(class),
                Elementwise::Cast(to) => Action::Cast { from: operands[0].class, to },
                Elementwise::Constant { value, dtype } => Action::Constant(constant_bytes(value, dtype)),
            };
            // Before its operands' registers are free: a loop whose result overlaps an operand is not vectorised.
            let place = match level {
                Level::Full => self.target(i),
                _ => self.cell(),
            };
            self.release(instruction.operands.iter().copied(), i);
            let mut sources = [NOTHING; 3];
            sources.iter_mut().zip(&operands).for_each(|(s, v)| *s = v.source());
            self.push(level, Step { action, target: place, sources, single: level != Level::Full });
            let computes = matches!(instruction.op, Elementwise::Unary(_) | Elementwise::Binary(_));
            if computes && matches!(instruction.dtype, DType::BF16 | DType::F16 | DType::U8) {
                let action = Action::Round(instruction.dtype);
                let sources = [Source { place, scalar: false }, NOTHING, NOTHING];
                self.push(level, Step { action, target: place, sources, single: level != Level::Full });
            }
            self.results.push(Value { class, level, place, last_use: self.last_use(Operand::Result(i)) });
            self.release([Operand::Result(i)].into_iter(), i);
        }
    }

    /// The instruction that reads a value last; past the end for outputs.
    fn last_use(&self, value: Operand) -> usize {
        if matches!(value, Operand::Result(i) if self.region.outputs.contains(&i)) {
            return usize::MAX;
        }
        let reads = |i: &usize| self.region.instructions[*i].operands.contains(&value);
        let own = if let Operand::Result(i) = value { i } else { 0 };
        (0..self.region.instructions.len()).rev().find(reads).unwrap_or(own)
    }

    /// An input or an earlier result, brought into a form that steps can read.
    fn operand(&mut self, operand: Operand) -> Value {
        let k = match operand {
            Operand::Result(i) => return self.results[i],
            Operand::Input(k) => k,
        };
        if let Some(value) = self.input_values[k] {
            return value;
        }
        let dtype = self.inputs[k].dtype;
        let class = Class::of(dtype);
        let access = &self.layout.inputs[k];
        let (kind, along_row) = (access.kind, access.along_row);
        let in_place = is_register_type(dtype);
        let long_rows = self.layout.has_long_rows();
        let level = match kind {
            Kind::Scalar => Level::Uniform,
            Kind::Strided if long_rows && along_row == 0 => Level::PerChunk,
            _ => Level::Full,
        };
        let spread = !long_rows && matches!(kind, Kind::Tiled | Kind::Strided);
        let mut last_use = self.last_use(operand);
        // Rows that repeat are broadcast once for all chunks of a task, which start with a row. So their register must be
        // one that no earlier step has used.
        let once = spread && kind == Kind::Tiled;
        let place = if in_place && !spread {
            Place::Input(index(k))
        } else if once {
            Place::Slot(self.new_slot())
        } else if level == Level::Full {
            Place::Slot(self.slot())
        } else {
            self.cell()
        };
        if place != Place::Input(index(k)) {
            if once {
                last_use = usize::MAX;
            }
            let step = Step {
                action: Action::Load(index(k)),
                target: place,
                sources: [NOTHING; 3],
                single: level != Level::Full,
            };
            self.push(if once { Level::Uniform } else { level }, step);
        }
        let value = Value { class, level, place, last_use };
        self.input_values[k] = Some(value);
        value
    }

    fn push(&mut self, level: Level, step: Step) {
        if level == Level::Uniform {
            self.prologue.push(step);
            return;
        }
        let at = self.body.len();
        if let Action::Load(k) = step.action {
            self.reads.push((at, usize::from(k)));
        }
        for source in &step.sources {
            if let Place::Input(k) = source.place {
                self.reads.push((at, usize::from(k)));
            }
        }
        if let Place::Output(o) | Place::OutputOr(o, _) = step.target {
            self.writes[usize::from(o)].get_or_insert(at);
        }
        self.body.push(step);
    }

    fn slot(&mut self) -> Index {
        self.free.pop().unwrap_or_else(|| self.new_slot())
    }

    fn new_slot(&mut self) -> Index {
        self.slots += 1;
        index(self.slots - 1)
    }

    fn cell(&mut self) -> Place {
        self.cells += 1;
        Place::Cell(index(self.cells - 1))
    }

    /// Where a result goes: to its output, if that holds elements as registers do.
    fn target(&mut self, instruction: usize) -> Place {
        let dtype = self.region.instructions[instruction].dtype;
        let output = self.region.outputs.iter().position(|&i| i == instruction);
        match output.filter(|&o| o < 64 && is_register_type(dtype)) {
            // Whether a register is needed is known only after all steps.
            Some(o) => Place::OutputOr(index(o), self.slot()),
            None => Place::Slot(self.slot()),
        }
    }

    /// Frees the registers of values that are read for the last time by an instruction.
    fn release(&mut self, operands: impl Iterator<Item = Operand>, instruction: usize) {
        for operand in operands {
            let value = match operand {
                Operand::Input(k) => self.input_values[k],
                Operand::Result(i) => Some(self.results[i]),
            };
            if let Some(Value { place: Place::Slot(slot), last_use, .. }) = value
                && last_use <= instruction
                && !self.free.contains(&slot)
            {
                self.free.push(slot);
            }
        }
    }

    /// Outputs that no step writes directly are written at the end.
    fn stores(&mut self) {
        for (o, &i) in self.region.outputs.iter().enumerate() {
            let (value, o) = (self.results[i], index(o));
            if value.place != Place::Output(o) {
                let sources = [value.source(), NOTHING, NOTHING];
                let step =
                    Step { action: Action::Store(o), target: Place::Output(o), sources, single: false };
                self.body.push(step);
            }
        }
    }

    fn finish(mut self, outputs: &[TensorType]) -> Program {
        let late = |write: Option<usize>| {
            let write = write.unwrap_or(usize::MAX);
            let mut inputs: Vec<usize> =
                self.reads.iter().filter(|(at, _)| *at >= write).map(|(_, k)| *k).collect();
            inputs.sort_unstable();
            inputs.dedup();
            inputs
        };
        let memory = |ty: &TensorType| ty.dtype.bytes();
        let dense = self.inputs.iter().zip(&self.layout.inputs).filter(|(_, a)| a.kind == Kind::Dense);
        let in_memory: usize = dense.map(|(t, _)| memory(t)).chain(outputs.iter().map(memory)).sum();
        let wide = |v: &Value| v.class.bytes();
        let values = self.results.iter().chain(self.input_values.iter().flatten());
        let slot_element = values.map(wide).max().unwrap_or(4);
        // A result written to its output's memory seldom uses its register.
        let idle = self.body.iter().filter(|step| matches!(step.target, Place::OutputOr(..))).count();
        let per_element = in_memory + self.slots.saturating_sub(idle) * slot_element;
        self.layout.cut((CACHE_BYTES / per_element.max(1) / 64 * 64).clamp(512, 2048));
        let output = |(ty, write): (&TensorType, &Option<usize>)| Output {
            dtype: ty.dtype,
            late_inputs: late(*write),
        };
        let work = self.inputs.len() + outputs.len() + self.body.len();
        Program {
            tasks: Tasks::new(&self.layout, work),
            inputs: self.inputs.iter().map(|t| t.dtype).collect(),
            outputs: outputs.iter().zip(&self.writes).map(output).collect(),
            prologue: self.prologue.into(),
            body: self.body.into(),
            slots: self.slots,
            slot_bytes: (self.layout.chunk_elements() * slot_element).next_multiple_of(64),
            cells: self.cells,
            layout: self.layout,
        }
    }
}
