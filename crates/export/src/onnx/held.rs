//! The memory that a file's structure takes while its model is there.

use super::proto::{AttributeProto, NodeProto, TensorProto, ValueInfoProto};
use super::read::{OnnxFile, StoredTensor};
use std::collections::BTreeMap;

/// What a block takes beside its own bytes.
const PER_BLOCK: usize = 32;
/// Memory of a tree's entries, of which nodes may have half as many as they have room for.
const TREE_ROOM: usize = 2;

fn block(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes + PER_BLOCK }
}

fn list<T>(items: &Vec<T>, each: impl Fn(&T) -> usize) -> usize {
    block(items.capacity() * size_of::<T>()) + items.iter().map(each).sum::<usize>()
}

fn plain<T>(items: &Vec<T>) -> usize {
    list(items, |_| 0)
}

fn text(text: &String) -> usize {
    block(text.capacity())
}

/// The bytes of a map by names.
pub(super) fn map<V>(items: &BTreeMap<String, V>, each: impl Fn(&V) -> usize) -> usize {
    let entries = items.len() * size_of::<(String, V)>() * TREE_ROOM;
    block(entries) + items.iter().map(|(name, item)| text(name) + each(item)).sum::<usize>()
}

fn tensor(tensor: &TensorProto) -> usize {
    let numbers = plain(&tensor.dims) + plain(&tensor.float_data) + plain(&tensor.int32_data);
    let numbers = numbers + plain(&tensor.int64_data) + plain(&tensor.double_data);
    let external = list(&tensor.external_data, |entry| text(&entry.key) + text(&entry.value));
    numbers + external + text(&tensor.name) + tensor.raw_data.as_ref().map_or(0, plain)
}

fn attribute(attribute: &AttributeProto) -> usize {
    let lists = plain(&attribute.floats) + plain(&attribute.ints) + attribute.s.as_ref().map_or(0, plain);
    lists + text(&attribute.name) + attribute.t.as_ref().map_or(0, tensor)
}

fn node(node: &NodeProto) -> usize {
    let names = list(&node.input, text) + list(&node.output, text);
    let names = names + text(&node.name) + text(&node.op_type) + text(&node.domain);
    names + list(&node.attribute, attribute)
}

fn value(value: &ValueInfoProto) -> usize {
    let shape = value.r#type.as_ref().and_then(|ty| ty.tensor_type.as_ref()?.shape.as_ref());
    let extents = |extent: &super::proto::DimensionProto| extent.dim_param.as_ref().map_or(0, text);
    text(&value.name) + shape.map_or(0, |shape| list(&shape.dim, extents))
}

impl StoredTensor {
    /// The bytes that it holds on the heap.
    pub fn held_bytes(&self) -> usize {
        plain(&self.dims) + self.bytes_in_memory().map_or(0, plain)
    }
}

impl OnnxFile {
    /// The bytes that it holds on the heap.
    pub fn held_bytes(&self) -> usize {
        let values = list(&self.inputs, value) + list(&self.outputs, value);
        let tensors = map(&self.tensors, StoredTensor::held_bytes);
        list(&self.nodes, node) + tensors + values + map(&self.notes, text)
    }
}
