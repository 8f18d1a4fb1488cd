//! Groups of elementwise nodes as regions.

use super::groups::Groups;
use super::widening::is_widening;
use super::{is_constant, is_fusible, uses};
use crate::rewriter::Rewriter;
use plimsoll_graph::op::{Instruction, Operand, Region};
use plimsoll_graph::{Graph, GraphError, NodeId, Op, ValueId};
use std::collections::BTreeMap;

/// Emits each group of nodes as one region.
pub(super) fn fuse(graph: &Graph) -> Result<Graph, GraphError> {
    let groups = Groups::new(graph);
    let order = groups.ordered(graph);
    let mut uses = uses(graph);
    let duplicates: Vec<Vec<NodeId>> =
        order.iter().map(|members| groups.duplicates(graph, members)).collect();
    for (members, duplicated) in order.iter().zip(&duplicates) {
        // A region that computes a value itself does not read it.
        for value in duplicated.iter().map(|&m| graph.node(m).outputs[0]) {
            uses[value.index()] -= reads_of(graph, members, value);
        }
    }
    let mut r = Rewriter::new(graph);
    for (members, duplicated) in order.iter().zip(&duplicates) {
        match members[..] {
            [only] if duplicated.is_empty() => {
                // A value that every reader computes itself is not stored.
                let node = graph.node(only);
                if !is_fusible(node) || uses[node.outputs[0].index()] > 0 {
                    r.copy(node)?;
                }
            }
            _ => emit_region(graph, &uses, &mut r, members, duplicated)?,
        }
    }
    r.finish()
}

/// How often nodes read a value.
fn reads_of(graph: &Graph, nodes: &[NodeId], value: ValueId) -> usize {
    nodes.iter().flat_map(|&n| graph.node(n).reads()).filter(|&v| v == value).count()
}

fn emit_region(
    graph: &Graph,
    uses: &[usize],
    r: &mut Rewriter<'_>,
    members: &[NodeId],
    duplicated: &[NodeId],
) -> Result<(), GraphError> {
    let mut inputs: Vec<ValueId> = Vec::new();
    let mut results: BTreeMap<ValueId, usize> = BTreeMap::new();
    let mut instructions: Vec<Instruction> = Vec::new();
    let mut widened: Vec<(usize, ValueId)> = Vec::new();
    for &id in duplicated.iter().chain(members) {
        let node = graph.node(id);
        let Op::Elementwise(op) = node.op else { unreachable!("groups hold elementwise nodes") };
        if is_widening(graph, node) {
            // Once in a region.
            let same = |&(i, other): &(usize, ValueId)| (other == node.inputs[0]).then_some(i);
            if let Some(i) = widened.iter().find_map(same) {
                results.insert(node.outputs[0], i);
                continue;
            }
            widened.push((instructions.len(), node.inputs[0]));
        }
        let mut operands = Vec::new();
        for &value in &node.inputs {
            let constant = graph.producer(value).map(|p| graph.node(p)).filter(|n| is_constant(n));
            if let (Some(producer), false) = (constant, results.contains_key(&value)) {
                // Constants become instructions of the region.
                let Op::Elementwise(op) = producer.op else { unreachable!("constants are elementwise") };
                results.insert(value, instructions.len());
                instructions.push(Instruction { op, operands: Vec::new(), dtype: graph.ty(value).dtype });
            }
            operands.push(match results.get(&value) {
                Some(&i) => Operand::Result(i),
                None => {
                    let place = inputs.iter().position(|&v| v == value);
                    Operand::Input(place.unwrap_or_else(|| {
                        inputs.push(value);
                        inputs.len() - 1
                    }))
                }
            });
        }
        results.insert(node.outputs[0], instructions.len());
        instructions.push(Instruction { op, operands, dtype: graph.ty(node.outputs[0]).dtype });
    }
    // A result is written if anything outside the region reads it.
    let written = members.iter().map(|&m| graph.node(m).outputs[0]);
    let written: Vec<ValueId> = written.filter(|&v| uses[v.index()] > reads_of(graph, members, v)).collect();
    if written.is_empty() {
        return Ok(());
    }
    let region = Region { instructions, outputs: written.iter().map(|v| results[v]).collect() };
    let last = graph.node(*members.last().expect("groups are not empty"));
    let inputs: Vec<ValueId> = inputs.into_iter().map(|v| r.get(v)).collect();
    let outputs = r.replace(last, Op::Fused(region), &inputs)?;
    for (old, new) in written.into_iter().zip(outputs) {
        r.map[old.index()] = Some(new);
    }
    Ok(())
}
