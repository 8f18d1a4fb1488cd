//! Writes an ONNX file from front to back: everything but the weights is encoded first, so that all lengths are known, and the
//! weights follow piece by piece.

use super::emit::{NamedTensor, element_type, emit};
use super::proto::{
    DimensionProto, EXTERNAL, GraphProto, ModelProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use crate::batch::{ExportGraph, Extent};
use crate::file::{PartialFile, is_written_in_place};
use crate::weights::{Elements, Source};
use crate::{ExportError, Exported, Weights};
use plimsoll_graph::ValueId;
use plimsoll_tensor::Field;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The version of the file format, and of the ops.
const IR_VERSION: i64 = 10;
const OPSET: i64 = 21;

/// Field numbers of what is written by hand.
const MODEL_GRAPH: u32 = 7;
const GRAPH_INITIALIZER: u32 = 5;
const TENSOR_RAW_DATA: u32 = 9;

/// A protobuf message has fewer bytes than this.
const MOST_BYTES: u64 = i32::MAX as u64;
/// Where a tensor begins in a file of weights, so that it can be mapped.
const ALIGNMENT: u64 = 4096;

/// How a model is written as ONNX.
#[derive(Clone, Debug)]
pub struct OnnxOptions {
    /// Files above this many bytes have their weights in a second one beside them, `FILE.data`. No ONNX file may be larger than
    /// the default, 2 GiB.
    pub external_above: u64,
}

impl Default for OnnxOptions {
    fn default() -> Self {
        Self { external_above: MOST_BYTES }
    }
}

/// Writes a model as ONNX. The file is written under a partial name and renamed when it is whole; weights pass through a
/// buffer of [`crate::BUFFER_BYTES`].
pub fn onnx(
    step: &ExportGraph,
    weights: &dyn Weights,
    path: &Path,
    options: &OnnxOptions,
) -> Result<Exported, ExportError> {
    let source = Source { graph: step.graph(), weights };
    let emitted = emit(step, &source)?;
    let model = ModelProto {
        ir_version: IR_VERSION,
        producer_name: "plimsoll".into(),
        producer_version: env!("CARGO_PKG_VERSION").into(),
        graph: None,
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPSET }],
        metadata_props: vec![target_entry(step.target())],
    };
    let ops = emitted.nodes.len();
    let graph = GraphProto {
        node: emitted.nodes,
        name: step.name().to_string(),
        initializer: Vec::new(),
        input: step.graph().inputs.iter().map(|i| value_info(step, &i.name, i.value)).collect(),
        output: step.graph().outputs.iter().map(|o| value_info(step, &o.name, o.value)).collect(),
    };
    let writer = Writer { model, graph, tensors: &emitted.tensors, source, path };
    let bytes = writer.write(options.external_above)?;
    Ok(Exported { ops, tensors: emitted.tensors.len(), bytes })
}

/// The key of the target in a file's notes.
pub(crate) const TARGET: &str = "plimsoll.target";

/// A model's target as a note: `classes 10 of [28,28]`, or `values of [3]`.
fn target_entry(target: &Field) -> StringStringEntryProto {
    let shape = &target.ty.shape;
    let value =
        target.bound.map_or(format!("values of {shape}"), |bound| format!("classes {bound} of {shape}"));
    StringStringEntryProto { key: TARGET.into(), value }
}

fn value_info(step: &ExportGraph, name: &str, value: ValueId) -> ValueInfoProto {
    let dim = |extent| match extent {
        Extent::Fixed(n) => DimensionProto { dim_value: Some(n as i64), dim_param: None },
        Extent::PerExample(1) => DimensionProto { dim_value: None, dim_param: Some("batch".into()) },
        Extent::PerExample(n) => DimensionProto { dim_value: None, dim_param: Some(format!("{n}*batch")) },
    };
    let dim = step.extents(value).into_iter().map(dim).collect();
    let tensor = TensorTypeProto {
        elem_type: element_type(step.graph().ty(value).dtype),
        shape: Some(TensorShapeProto { dim }),
    };
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { tensor_type: Some(tensor) }) }
}

struct Writer<'a> {
    model: ModelProto,
    graph: GraphProto,
    tensors: &'a [NamedTensor],
    source: Source<'a>,
    path: &'a Path,
}

/// Bytes of a field that holds this many.
fn field_len(tag: u32, bytes: u64) -> u64 {
    key_len(tag) as u64 + encoded_len_varint(bytes) as u64 + bytes
}

/// The key and length in front of a field's bytes.
fn field_start(tag: u32, bytes: u64) -> Vec<u8> {
    let mut start = Vec::new();
    encode_key(tag, WireType::LengthDelimited, &mut start);
    encode_varint(bytes, &mut start);
    start
}

impl Writer<'_> {
    /// Writes the files and returns their bytes. Both are whole before either gets its name.
    fn write(&self, external_above: u64) -> Result<u64, ExportError> {
        let offsets = (self.lengths(None).file > external_above).then(|| self.offsets());
        if offsets.is_some() && is_written_in_place(self.path) {
            let reason = "the weights need a file of their own beside it: name a file";
            return Err(ExportError::write(self.path, io::Error::other(reason)));
        }
        let data = offsets.as_deref().map(|offsets| self.write_data(offsets)).transpose()?;
        let (model, mut bytes) = self.write_model(offsets.as_deref())?;
        let mut files = vec![model];
        if let Some((data, data_bytes)) = data {
            files.insert(0, data);
            bytes += data_bytes;
        }
        PartialFile::commit_all(files).map_err(|(path, error)| ExportError::write(&path, error))?;
        Ok(bytes)
    }

    /// The file of weights beside the model's.
    fn data_path(&self) -> PathBuf {
        let mut path = self.path.as_os_str().to_owned();
        path.push(".data");
        path.into()
    }

    fn bytes_of(&self, tensor: &NamedTensor) -> u64 {
        match &tensor.elements {
            Elements::Bytes(bytes) => bytes.len() as u64,
            Elements::State { state, .. } => {
                let graph = self.source.graph;
                graph.ty(graph.states[*state].input).bytes() as u64
            }
        }
    }

    /// Where each state is in the file of weights; other tensors stay in the model's.
    fn offsets(&self) -> Vec<Option<u64>> {
        let mut end = 0u64;
        let mut offset = |tensor: &NamedTensor| {
            matches!(tensor.elements, Elements::State { .. }).then(|| {
                let start = end.next_multiple_of(ALIGNMENT);
                end = start + self.bytes_of(tensor);
                start
            })
        };
        self.tensors.iter().map(&mut offset).collect()
    }

    /// A tensor's message without its elements.
    fn message(&self, tensor: &NamedTensor, offset: Option<u64>) -> TensorProto {
        let mut message = TensorProto {
            dims: tensor.dims.iter().map(|&n| n as i64).collect(),
            data_type: tensor.element,
            name: tensor.name.clone(),
            ..TensorProto::default()
        };
        if let Some(offset) = offset {
            let location = self.data_path();
            let location = location.file_name().map(|name| name.to_string_lossy().into_owned());
            let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
            message.data_location = EXTERNAL;
            message.external_data = vec![
                entry("location", location.unwrap_or_default()),
                entry("offset", offset.to_string()),
                entry("length", self.bytes_of(tensor).to_string()),
            ];
        }
        message
    }

    /// Bytes of a tensor's message with its elements.
    fn message_len(&self, tensor: &NamedTensor, offset: Option<u64>) -> u64 {
        let own = self.message(tensor, offset).encoded_len() as u64;
        if offset.is_some() { own } else { own + field_len(TENSOR_RAW_DATA, self.bytes_of(tensor)) }
    }

    fn lengths(&self, offsets: Option<&[Option<u64>]>) -> Lengths {
        let tensors = self.tensors.iter().enumerate();
        let tensors = tensors.map(|(i, tensor)| self.message_len(tensor, offsets.and_then(|o| o[i])));
        let graph = tensors
            .fold(self.graph.encoded_len() as u64, |sum, bytes| sum + field_len(GRAPH_INITIALIZER, bytes));
        let file = self.model.encoded_len() as u64 + field_len(MODEL_GRAPH, graph);
        Lengths { graph, file }
    }

    /// Writes the states at their places in a file of their own.
    fn write_data(&self, offsets: &[Option<u64>]) -> Result<(PartialFile, u64), ExportError> {
        let path = self.data_path();
        let failed = |e| ExportError::write(&path, e);
        let mut out = PartialFile::create(&path).map_err(failed)?;
        let mut at = 0;
        for (tensor, offset) in self.tensors.iter().zip(offsets) {
            let Some(offset) = offset else { continue };
            out.write_all(&vec![0; (offset - at) as usize]).map_err(failed)?;
            self.source.write(&tensor.elements, &mut out, &path)?;
            at = offset + self.bytes_of(tensor);
        }
        Ok((out, at))
    }

    /// Writes the model's file, up to its name.
    fn write_model(&self, offsets: Option<&[Option<u64>]>) -> Result<(PartialFile, u64), ExportError> {
        let failed = |e| ExportError::write(self.path, e);
        let lengths = self.lengths(offsets);
        let mut out = PartialFile::create(self.path).map_err(failed)?;
        let mut start = self.model.encode_to_vec();
        start.extend(field_start(MODEL_GRAPH, lengths.graph));
        out.write_all(&start).and_then(|()| out.write_all(&self.graph.encode_to_vec())).map_err(failed)?;
        for (i, tensor) in self.tensors.iter().enumerate() {
            let offset = offsets.and_then(|offsets| offsets[i]);
            let mut start = field_start(GRAPH_INITIALIZER, self.message_len(tensor, offset));
            start.extend(self.message(tensor, offset).encode_to_vec());
            if offset.is_some() {
                out.write_all(&start).map_err(failed)?;
                continue;
            }
            start.extend(field_start(TENSOR_RAW_DATA, self.bytes_of(tensor)));
            out.write_all(&start).map_err(failed)?;
            self.source.write(&tensor.elements, &mut out, self.path)?;
        }
        Ok((out, lengths.file))
    }
}

/// Bytes of a file and of the graph in it.
struct Lengths {
    graph: u64,
    file: u64,
}
