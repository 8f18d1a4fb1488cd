//! The parts of normalisation.

mod channels;

use super::builder::{CallBuilder, parameters};
use super::reduction::{MEAN, Reduction, SUM, block_rows, each_row};
use super::{Call, Operand, Parameter};
use plimsoll_graph::op::{Norm, NormAxis};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::DType;

/// A device function that [`super::loss`] uses, too.
pub(super) const LOG_SUM_EXP: &str = include_str!("norm/log_sum_exp.cu");

pub(super) fn find(op: &Norm, query: &KernelQuery<'_>) -> Option<Call> {
    let x = &query.inputs[..];
    let shape = &x[0].shape;
    let width = *shape.last()?;
    let rows = shape[..shape.rank() - 1].iter().product();
    let inside = shape.get(1..shape.rank() - 1).map_or(1, |inner| inner.iter().product());
    let mut builder = CallBuilder::default();
    match op {
        Norm::LogSumExp if x[0].dtype == DType::F32 => {
            let text = [LOG_SUM_EXP, include_str!("norm/rows.cu")].join("\n");
            let parameters = parameters![Operand::Read(0), Operand::Write(0), rows, width];
            each_row(&mut builder, rows, width, &[], &text, parameters);
        }
        Norm::Stats { axis: NormAxis::Row } => {
            let vector = vector(width, x[0].dtype).to_string();
            let macros = [("X", x[0].dtype.name()), ("W", x[0].dtype.wide().name()), ("V", &*vector)];
            let parameters = parameters![Operand::Read(0), Operand::Write(0), Operand::Write(1), rows, width];
            each_row(&mut builder, rows, width, &macros, include_str!("norm/row_stats.cu"), parameters);
        }
        Norm::Stats { axis: NormAxis::Channel } if channels::fits(query, rows, width) => {
            channels::stats(&mut builder, query, [rows, width]);
        }
        Norm::Stats { axis: NormAxis::Channel } => channel_stats(&mut builder, query, rows, width),
        Norm::Sums { axis } => {
            let wide = x[1].dtype.wide();
            if x[2..].iter().any(|statistic| statistic.dtype != wide) {
                return None;
            }
            // The axis of the statistics follows from their shape; `[1]` of one row of one channel is both.
            let by_row = if x[2].shape[..] == [width] { "false" } else { "true" };
            let macros =
                [("D", x[0].dtype.name()), ("X", x[1].dtype.name()), ("BY_ROW", by_row), ("W", wide.name())];
            let operands = [0, 1, 2, 3].map(|i| Parameter::from(Operand::Read(i)));
            match axis {
                NormAxis::Row => {
                    let vector = vector(width, x[0].dtype).min(vector(width, x[1].dtype)).to_string();
                    let macros = [&macros[..], &[("V", &*vector)]].concat();
                    let mut parameters = operands.to_vec();
                    parameters.extend(parameters![Operand::Write(0), Operand::Write(1), rows, width]);
                    let text = include_str!("norm/row_sums.cu");
                    each_row(&mut builder, rows, width, &macros, text, parameters);
                }
                NormAxis::Channel if channels::fits(query, rows, width) => {
                    let block_rows = block_rows(query, inside, rows);
                    channels::sums(&mut builder, query, by_row == "true", [rows, width], block_rows);
                }
                NormAxis::Channel => Reduction {
                    macros: vec![macros[2]],
                    wide,
                    stored: wide,
                    combine: "Add",
                    identity: "0",
                    elements: &[x[0].dtype, x[1].dtype],
                    terms: "const i64 s = BY_ROW ? row : column;\n\
                            t[0] = e0;\n\
                            t[1] = e0 * (e1 - ((const W *)c)[s]) * ((const W *)d)[s];",
                    finish: SUM,
                    size: [1, rows, width],
                    block_rows: block_rows(query, inside, rows),
                    accumulate: query.accumulate,
                    operands: &operands,
                    results: &[Operand::Write(0), Operand::Write(1)],
                }
                .launch(&mut builder),
            }
        }
        // `decompose` replaces the composites, and moments are of devices that are one of several.
        Norm::LogSumExp
        | Norm::Layer { .. }
        | Norm::Batch { .. }
        | Norm::Moments
        | Norm::StatsOfMoments { .. } => return None,
    }
    Some(builder.finish())
}

/// Elements of a row that are loaded at once: up to 16 bytes, of which a row has whole ones.
fn vector(width: usize, dtype: DType) -> usize {
    1 << (width | (16 / dtype.bytes())).trailing_zeros()
}

/// Means, then mean squared distances from them.
fn channel_stats(builder: &mut CallBuilder, query: &KernelQuery<'_>, rows: usize, width: usize) {
    let x = query.inputs[0].dtype;
    let operands = [Operand::Read(0), Operand::Write(0)].map(Parameter::from);
    let mean = Reduction {
        macros: Vec::new(),
        elements: &[x],
        wide: x.wide(),
        stored: x.wide(),
        combine: "Add",
        identity: "0",
        terms: "t[0] = e0;",
        finish: MEAN,
        size: [1, rows, width],
        block_rows: rows.max(1),
        accumulate: false,
        operands: &operands,
        results: &[Operand::Write(0)],
    };
    mean.launch(builder);
    builder.reuse_scratch();
    let distance = "const W distance = e0 - ((const W *)b)[column];\n\
                    t[0] = distance * distance;";
    Reduction { terms: distance, results: &[Operand::Write(1)], ..mean }.launch(builder);
}
