//! Writes a TFLite file: the flatbuffer first, with the places of all elements, then the elements one after another.

use super::emit::{Data, Emitted, Scales, Stored, TfOp, TfTensor, emit};
use super::schema::{Code, Options, field};
use crate::batch::ExportGraph;
use crate::file::PartialFile;
use crate::weights::{Elements, Source};
use crate::{ExportError, Exported, Weights};
use flatbuffers::{FlatBufferBuilder, ForwardsUOffset, TableFinishedWIPOffset, Vector, WIPOffset};
use plimsoll_tensor::f16;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;

/// How weights are stored in a TFLite file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TfliteWeights {
    /// As they are.
    #[default]
    F32,
    /// As 16-bit floats, which are widened when the model is loaded.
    F16,
    /// Those of products and convolutions as bytes, with a scale for each output channel of a convolution and one for a dense
    /// layer. Activations stay f32.
    DynamicRange,
}

/// The version of the file format.
const VERSION: u32 = 3;
/// What elements are aligned to.
const ALIGNMENT: u64 = 16;
/// The largest weight of a byte: symmetric, so that zero is exact.
const MOST: f32 = 127.0;
/// The name of the signature that a serving program looks for.
const SIGNATURE: &str = "serving_default";

type Table = WIPOffset<TableFinishedWIPOffset>;
type Tables<'b> = WIPOffset<Vector<'b, ForwardsUOffset<TableFinishedWIPOffset>>>;

/// Writes a model of a fixed batch as TFLite. The file is written under a partial name and renamed when it is whole; weights pass
/// through a buffer of [`crate::BUFFER_BYTES`].
pub fn tflite(
    step: &ExportGraph,
    weights: &dyn Weights,
    path: &Path,
    stored: TfliteWeights,
) -> Result<Exported, ExportError> {
    let source = Source { graph: step.graph(), weights };
    let mut emitted = emit(step, &source, stored)?;
    for tensor in &mut emitted.tensors {
        if let Some(scales) = scales_of(&source, tensor)? {
            tensor.scales = Some(scales);
        }
    }
    let file = Writer { step, emitted: &emitted, source: &source };
    let bytes = file.write(path)?;
    Ok(Exported { ops: emitted.ops.len(), tensors: emitted.tensors.len(), bytes })
}

/// The number of channels along an axis, and elements between two of them.
fn channels(tensor: &TfTensor, axis: Option<usize>) -> (usize, usize) {
    let extent = |axis: usize| tensor.shape[axis].max(1) as usize;
    match axis {
        None => (1, usize::MAX),
        Some(axis) => (extent(axis), tensor.shape[axis + 1..].iter().map(|&n| n.max(1) as usize).product()),
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// The scales of a tensor that is stored as bytes: of each channel its largest magnitude, by 127.
fn scales_of(source: &Source<'_>, tensor: &TfTensor) -> Result<Option<Scales>, ExportError> {
    let Some(Data { elements, stored: Stored::Int8 { axis } }) = &tensor.data else { return Ok(None) };
    let (count, inner) = channels(tensor, *axis);
    let (mut most, mut at) = (vec![0.0f32; count], 0usize);
    source.each(elements, |bytes| {
        for value in floats(bytes) {
            let channel = at / inner % count;
            most[channel] = most[channel].max(value.abs());
            at += 1;
        }
        Ok(())
    })?;
    let scales = most.into_iter().map(|most| if most > 0.0 { most / MOST } else { 1.0 }).collect();
    Ok(Some(Scales { scales, zero: 0, axis: axis.unwrap_or(0) }))
}

struct Writer<'a> {
    step: &'a ExportGraph,
    emitted: &'a Emitted,
    source: &'a Source<'a>,
}

impl Writer<'_> {
    /// Bytes of a constant tensor as it is stored.
    fn bytes_of(&self, data: &Data) -> u64 {
        let bytes = match &data.elements {
            Elements::Bytes(bytes) => bytes.len() as u64,
            Elements::State { state, .. } => {
                let graph = self.source.graph;
                graph.ty(graph.states[*state].input).bytes() as u64
            }
        };
        match data.stored {
            Stored::Same => bytes,
            Stored::Half => bytes / 2,
            Stored::Int8 { .. } => bytes / 4,
        }
    }

    fn constants(&self) -> impl Iterator<Item = (usize, &Data)> {
        self.emitted.tensors.iter().enumerate().filter_map(|(i, tensor)| Some((i, tensor.data.as_ref()?)))
    }

    fn write(&self, path: &Path) -> Result<u64, ExportError> {
        let failed = |e| ExportError::write(path, e);
        // Places have the same length whatever they are, so a first try tells where the elements start.
        let start = self.flatbuffer(ALIGNMENT).len() as u64;
        let start = start.next_multiple_of(ALIGNMENT);
        let mut head = self.flatbuffer(start);
        head.resize(start as usize, 0);
        let mut out = PartialFile::create(path).map_err(failed)?;
        out.write_all(&head).map_err(failed)?;
        let mut at = start;
        for (i, data) in self.constants() {
            self.elements(i, data, &mut out, path)?;
            let end = at + self.bytes_of(data);
            at = end.next_multiple_of(ALIGNMENT);
            out.write_all(&[0; ALIGNMENT as usize][..(at - end) as usize]).map_err(failed)?;
        }
        out.commit().map_err(failed)?;
        Ok(at)
    }

    /// Writes the elements of a constant.
    fn elements(&self, i: usize, data: &Data, out: &mut PartialFile, path: &Path) -> Result<(), ExportError> {
        let failed = |e| ExportError::write(path, e);
        let Stored::Int8 { axis } = data.stored else {
            return self.source.each(&data.elements, |bytes| match data.stored {
                Stored::Half => {
                    let halves: Vec<u8> =
                        floats(bytes).flat_map(|v| f16::from_f32(v).to_le_bytes()).collect();
                    out.write_all(&halves).map_err(failed)
                }
                _ => out.write_all(bytes).map_err(failed),
            });
        };
        let tensor = &self.emitted.tensors[i];
        let scales = tensor.scales.as_ref().map_or(&[1.0][..], |scales| &scales.scales);
        let (count, inner) = channels(tensor, axis);
        let mut at = 0usize;
        self.source.each(&data.elements, |bytes| {
            let quantised = floats(bytes).map(|value| {
                let scale = scales[at / inner % count];
                at += 1;
                (value / scale).round().clamp(-MOST, MOST) as i8 as u8
            });
            let quantised: Vec<u8> = quantised.collect();
            out.write_all(&quantised).map_err(failed)
        })
    }

    /// The flatbuffer of a file whose elements start at a place.
    fn flatbuffer(&self, start: u64) -> Vec<u8> {
        let b = &mut FlatBufferBuilder::new();
        let Emitted { tensors, ops, inputs, outputs } = self.emitted;
        // Buffer 0 is that of tensors without one.
        let mut buffers = vec![{
            let table = b.start_table();
            b.end_table(table)
        }];
        let mut buffer_of = vec![0u32; tensors.len()];
        let mut at = start;
        for (i, data) in self.constants() {
            let bytes = self.bytes_of(data);
            let table = b.start_table();
            b.push_slot_always(field(1), at);
            b.push_slot_always(field(2), bytes);
            buffer_of[i] = buffers.len() as u32;
            buffers.push(b.end_table(table));
            at = (at + bytes).next_multiple_of(ALIGNMENT);
        }
        let mut once = Once::default();
        let written: Vec<Table> = tensors
            .iter()
            .zip(buffer_of)
            .map(|(tensor, buffer)| table_of(b, tensor, buffer, &mut once))
            .collect();
        let codes: Vec<(Code, bool)> =
            ops.iter().map(|op| (op.code, op.codes)).collect::<BTreeSet<_>>().into_iter().collect();
        let operators: Vec<Table> = ops.iter().map(|op| operator(b, op, &codes, &mut once)).collect();
        let subgraph = {
            let (tensors, operators) = (tables(b, &written), tables(b, &operators));
            let (inputs, outputs) = (b.create_vector(inputs), b.create_vector(outputs));
            let name = b.create_string(self.step.name());
            let table = b.start_table();
            b.push_slot_always(field(0), tensors);
            b.push_slot_always(field(1), inputs);
            b.push_slot_always(field(2), outputs);
            b.push_slot_always(field(3), operators);
            b.push_slot_always(field(4), name);
            b.end_table(table)
        };
        let codes: Vec<Table> =
            codes.into_iter().map(|(code, codes)| operator_code(b, code, codes)).collect();
        let signature = self.signature(b);
        let (codes, subgraphs) = (tables(b, &codes), tables(b, &[subgraph]));
        let (buffers, signatures) = (tables(b, &buffers), tables(b, &[signature]));
        let description = b.create_string(concat!("plimsoll ", env!("CARGO_PKG_VERSION")));
        let table = b.start_table();
        b.push_slot_always(field(0), VERSION);
        b.push_slot_always(field(1), codes);
        b.push_slot_always(field(2), subgraphs);
        b.push_slot_always(field(3), description);
        b.push_slot_always(field(4), buffers);
        b.push_slot_always(field(7), signatures);
        let model = b.end_table(table);
        b.finish(model, Some("TFL3"));
        b.finished_data().to_vec()
    }

    /// Tensors with their names.
    fn named<'b>(&self, b: &mut FlatBufferBuilder<'b>, tensors: &[i32]) -> Tables<'b> {
        let mut named = Vec::new();
        for &tensor in tensors {
            let name = b.create_string(&self.emitted.tensors[tensor as usize].name);
            let table = b.start_table();
            b.push_slot_always(field(0), name);
            b.push_slot_always(field(1), tensor as u32);
            named.push(b.end_table(table));
        }
        tables(b, &named)
    }

    /// Names of inputs and outputs, for programs that run models by them.
    fn signature(&self, b: &mut FlatBufferBuilder<'_>) -> Table {
        let (inputs, outputs) = (self.named(b, &self.emitted.inputs), self.named(b, &self.emitted.outputs));
        let key = b.create_string(SIGNATURE);
        let table = b.start_table();
        b.push_slot_always(field(0), inputs);
        b.push_slot_always(field(1), outputs);
        b.push_slot_always(field(2), key);
        b.push_slot_always(field(4), 0u32);
        b.end_table(table)
    }
}

fn tables<'b>(b: &mut FlatBufferBuilder<'b>, tables: &[Table]) -> Tables<'b> {
    b.create_vector(tables)
}

/// What several tensors or ops have in common, which is written once.
#[derive(Default)]
struct Once<'b> {
    /// Vectors of one zero point, by its value and their length.
    zeros: BTreeMap<(i64, usize), WIPOffset<Vector<'b, i64>>>,
    shapes: BTreeMap<Vec<i32>, WIPOffset<Vector<'b, i32>>>,
    /// Grids of activations, by the bits of their scale and their zero point.
    grids: BTreeMap<(u32, i64), Table>,
    options: Vec<(Options, Option<(u8, Table)>)>,
}

impl<'b> Once<'b> {
    fn shape(&mut self, b: &mut FlatBufferBuilder<'b>, shape: &[i32]) -> WIPOffset<Vector<'b, i32>> {
        *self.shapes.entry(shape.to_vec()).or_insert_with(|| b.create_vector(shape))
    }

    /// What the elements of a tensor stand for.
    fn scales(&mut self, b: &mut FlatBufferBuilder<'b>, scales: &Scales) -> Table {
        let key = match scales.scales[..] {
            [scale] => Some((scale.to_bits(), scales.zero)),
            _ => None,
        };
        if let Some(table) = key.and_then(|key| self.grids.get(&key)) {
            return *table;
        }
        let Scales { scales, zero, axis } = scales;
        let zeros = self.zeros.entry((*zero, scales.len()));
        let zeros = *zeros.or_insert_with(|| b.create_vector(&vec![*zero; scales.len()]));
        let scales = b.create_vector(scales);
        let table = b.start_table();
        b.push_slot_always(field(2), scales);
        b.push_slot_always(field(3), zeros);
        b.push_slot(field(6), *axis as i32, 0);
        let table = b.end_table(table);
        if let Some(key) = key {
            self.grids.insert(key, table);
        }
        table
    }

    fn options(&mut self, b: &mut FlatBufferBuilder<'b>, options: Options) -> Option<(u8, Table)> {
        if let Some((_, written)) = self.options.iter().find(|(known, _)| *known == options) {
            return *written;
        }
        let written = options.write(b);
        self.options.push((options, written));
        written
    }
}

fn table_of<'b>(b: &mut FlatBufferBuilder<'b>, tensor: &TfTensor, buffer: u32, once: &mut Once<'b>) -> Table {
    let quantisation = tensor.scales.as_ref().map(|scales| once.scales(b, scales));
    let (shape, name) = (once.shape(b, &tensor.shape), b.create_string(&tensor.name));
    let table = b.start_table();
    b.push_slot_always(field(0), shape);
    b.push_slot_always(field(1), tensor.element);
    b.push_slot(field(2), buffer, 0);
    b.push_slot_always(field(3), name);
    if let Some(quantisation) = quantisation {
        b.push_slot_always(field(4), quantisation);
    }
    b.end_table(table)
}

fn operator<'b>(
    b: &mut FlatBufferBuilder<'b>,
    op: &TfOp,
    codes: &[(Code, bool)],
    once: &mut Once<'b>,
) -> Table {
    let options = once.options(b, op.options);
    let (inputs, outputs) = (b.create_vector(&op.inputs), b.create_vector(&op.outputs));
    let code = codes.iter().position(|code| *code == (op.code, op.codes)).unwrap_or(0) as u32;
    let table = b.start_table();
    b.push_slot_always(field(0), code);
    b.push_slot_always(field(1), inputs);
    b.push_slot_always(field(2), outputs);
    if let Some((kind, options)) = options {
        b.push_slot_always(field(3), kind);
        b.push_slot_always(field(4), options);
    }
    b.end_table(table)
}

fn operator_code(b: &mut FlatBufferBuilder<'_>, code: Code, codes: bool) -> Table {
    let number = code as i32;
    let table = b.start_table();
    // Programs of before the field for all numbers read the first, up to 127.
    b.push_slot_always(field(0), number.min(127) as i8);
    b.push_slot_always(field(2), code.version(codes));
    b.push_slot_always(field(3), number);
    b.end_table(table)
}
