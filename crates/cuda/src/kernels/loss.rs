//! Losses and their gradients.

use super::builder::{CallBuilder, define, parameters};
use super::norm::LOG_SUM_EXP;
use super::reduction::{Reduction, SUM, block_rows, each_row};
use super::{Call, Fault, Operand, Parameter};
use plimsoll_graph::op::Loss;
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::DType;

pub(super) fn find(op: &Loss, query: &KernelQuery<'_>) -> Option<Call> {
    let x = query.inputs[0];
    match op {
        Loss::CrossEntropy if x.dtype == DType::F32 => Some(cross_entropy(query, x.shape[0], x.shape[1])),
        Loss::CrossEntropyGrad if x.dtype == DType::F32 => Some(cross_entropy_grad(x.shape[0], x.shape[1])),
        Loss::CrossEntropy
        | Loss::CrossEntropyGrad
        | Loss::LinearCrossEntropy { .. }
        | Loss::LinearCrossEntropyGrad { .. }
        | Loss::LinearCrossEntropyWithGrad { .. } => None,
    }
}

/// The error for labels out of range.
pub(super) fn label_fault(classes: usize) -> Fault {
    Fault::Index { what: "label: index", bound: classes }
}

fn cross_entropy(query: &KernelQuery<'_>, rows: usize, classes: usize) -> Call {
    let mut builder = CallBuilder::default();
    let losses = builder.scratch(rows * DType::F32.bytes());
    let mut parameters: Vec<Parameter> = (0..3).map(|i| Operand::Read(i).into()).collect();
    parameters.extend(parameters![Operand::Write(1), losses, Operand::Fault, rows, classes]);
    let text = [LOG_SUM_EXP, include_str!("loss/cross_entropy.cu")].join("\n");
    each_row(&mut builder, rows, classes, &[], &text, parameters);
    sum_rows(&mut builder, query, rows, losses.into());
    Call { fault: Some(label_fault(classes)), ..builder.finish() }
}

/// Adds the parts of the rows to the loss, block by block.
pub(super) fn sum_rows(builder: &mut CallBuilder, query: &KernelQuery<'_>, rows: usize, losses: Parameter) {
    Reduction {
        macros: Vec::new(),
        wide: DType::F32,
        stored: DType::F32,
        combine: "Add",
        identity: "0",
        elements: &[DType::F32],
        terms: "t[0] = e0;",
        finish: SUM,
        size: [1, rows, 1],
        block_rows: block_rows(query, 1, rows),
        accumulate: query.accumulate,
        operands: &[losses],
        results: &[Operand::Write(0)],
    }
    .launch(builder);
}

fn cross_entropy_grad(rows: usize, classes: usize) -> Call {
    let mut builder = CallBuilder::default();
    let mut parameters: Vec<Parameter> = (0..5).map(|i| Operand::Read(i).into()).collect();
    parameters.extend(parameters![Operand::Write(0), Operand::Fault, rows, classes]);
    builder.each(rows * classes, define(&[], include_str!("loss/cross_entropy_grad.cu")), parameters);
    Call { fault: Some(label_fault(classes)), ..builder.finish() }
}
