//! Elementwise calls of one source as one launch: the blocks of all, each of which looks up in a table whose it is.
//!
//! The table is the kernel's parameter, so it takes no memory and is there when the kernel starts.

use super::elementwise::{BLOCK, BODY, FUNCTIONS, HEADS};
use super::{Call, Kernel, Launch, Operand, Parameter, Pointer};

/// Bytes of a parameter.
const WORD: usize = 8;

/// The source of a call that [`join`] makes one of with others of the same.
pub fn joins(call: &Call) -> Option<&str> {
    kernel_of(call).map(|kernel| kernel.source.as_str())
}

fn kernel_of(call: &Call) -> Option<&Kernel> {
    match call.launches.as_slice() {
        [Launch::Kernel(kernel)] if kernel.source.starts_with(FUNCTIONS) && !kernel.table => Some(kernel),
        _ => None,
    }
}

/// A call that does what calls of one source do, each with its numbers of inputs and outputs. Its operands are theirs, one call's
/// after the other's. None may touch what another one writes. The elements are computed as each call does it.
pub fn join(calls: &[(&Call, [usize; 2])]) -> Option<Call> {
    let (mut kernels, mut before) = (Vec::with_capacity(calls.len()), [0, 0]);
    for &(call, operands) in calls {
        kernels.push((kernel_of(call)?, before));
        before = [before[0] + operands[0], before[1] + operands[1]];
    }
    let first = kernels.first()?.0;
    if kernels.iter().any(|(kernel, _)| kernel.source != first.source) {
        return None;
    }
    // Beside the table there is the number of its rows.
    let row_bytes = (first.parameters.len() + 1) * WORD;
    let rows = (Kernel::PARAMETER_BYTES - WORD) / row_bytes;
    let source = table_source(&first.source, rows)?;
    let launches = kernels.chunks(rows).map(|rows| launch(rows, &source));
    Some(Call { launches: launches.collect::<Option<_>>()?, ..Call::default() })
}

/// The launch of a table's rows.
fn launch(rows: &[(&Kernel, [usize; 2])], source: &str) -> Option<Launch> {
    if let [(kernel, before)] = rows {
        let parameters = kernel.parameters.iter().map(|parameter| moved(*parameter, *before));
        return Some(Launch::Kernel(Kernel { parameters: parameters.collect(), ..(*kernel).clone() }));
    }
    let (mut parameters, mut blocks) = (Vec::new(), 0_u32);
    for (kernel, before) in rows {
        parameters.push(Parameter::Integer(blocks.into()));
        parameters.extend(kernel.parameters.iter().map(|parameter| moved(*parameter, *before)));
        blocks = blocks.checked_add(kernel.blocks[0])?;
    }
    parameters.push(rows.len().into());
    let threads = rows.first()?.0.threads;
    let blocks = [i32::try_from(blocks).ok()?.unsigned_abs(), 1, 1];
    Some(Launch::Kernel(Kernel { source: source.into(), blocks, threads, parameters, table: true }))
}

/// A parameter behind the operands of earlier calls.
fn moved(parameter: Parameter, [reads, writes]: [usize; 2]) -> Parameter {
    let Parameter::Pointer(pointer) = parameter else { return parameter };
    let operand = match pointer.operand {
        Operand::Read(i) => Operand::Read(reads + i),
        Operand::Write(i) => Operand::Write(writes + i),
        other => other,
    };
    Parameter::Pointer(Pointer { operand, ..pointer })
}

/// The source for a table of so many rows, from that for one call.
fn table_source(source: &str, rows: usize) -> Option<String> {
    let (head, (before, rest)) = HEADS.iter().find_map(|head| Some((head, source.split_once(head)?)))?;
    let (parameters, body) = rest.split_once(BODY)?;
    let parameters: Vec<&str> = parameters.split(", ").collect();
    let fields: String = parameters.iter().map(|field| format!("    {field};\n")).collect();
    let own =
        |field: &&str| field.rsplit([' ', '*']).next().map(|name| format!("    {field} = row.{name};\n"));
    let own: String = parameters.iter().filter_map(own).collect();
    let body = body.replacen(BLOCK, "block", 1);
    Some(format!(
        "{before}struct Row {{
    i64 first_block;
{fields}}};
struct Table {{
    Row rows[{rows}];
}};
{head}const __grid_constant__ Table table, i64 rows{BODY}
    u32 at = 0, end = (u32)rows;
    while (end - at > 1) {{
        const u32 middle = (at + end) / 2;
        if ({BLOCK} < (u32)table.rows[middle].first_block) end = middle;
        else at = middle;
    }}
    const Row &row = table.rows[at];
    const u32 block = {BLOCK} - (u32)row.first_block;
{own}{body}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::find;
    use plimsoll_graph::Op;
    use plimsoll_graph::op::{Binary, Elementwise};
    use plimsoll_plan::KernelQuery;
    use plimsoll_tensor::{DType, TensorType};

    /// The call of an elementwise op on so many elements.
    fn call(op: Binary, elements: usize) -> Call {
        let ty = TensorType::new(DType::F32, [elements]);
        let query = KernelQuery {
            op: &Op::Elementwise(Elementwise::Binary(op)),
            inputs: vec![&ty, &ty],
            outputs: vec![&ty],
            accumulate: false,
            fold_rows: 0,
            mixed: false,
        };
        find(&query).unwrap()
    }

    fn kernels(call: &Call) -> Vec<&Kernel> {
        let kernel = |launch: &'_ Launch| matches!(launch, Launch::Kernel(_));
        assert!(call.launches.iter().all(kernel) && call.workspace == 0 && call.fault.is_none());
        call.launches.iter().filter_map(|l| if let Launch::Kernel(k) = l { Some(k) } else { None }).collect()
    }

    #[test]
    fn a_table_has_the_parameters_of_each_call_behind_its_first_block() {
        let (a, b) = (call(Binary::Add, 5000), call(Binary::Add, 100));
        let joined = join(&[(&a, [2, 1]), (&b, [2, 1])]).unwrap();
        let [kernel] = kernels(&joined)[..] else { panic!("{joined:?}") };
        assert!(kernel.table && joins(&joined).is_none());
        assert_eq!(kernel.blocks, [5 + 1, 1, 1]);
        let (read, write) = (|i| Parameter::from(Operand::Read(i)), |i| Parameter::from(Operand::Write(i)));
        let first = [0_usize.into(), read(0), read(1), write(0), 5000_usize.into()];
        let second = [5_usize.into(), read(2), read(3), write(1), 100_usize.into()];
        assert_eq!(kernel.parameters, [&first[..], &second, &[2_usize.into()]].concat());
    }

    #[test]
    fn other_sources_are_not_joined() {
        let (a, b) = (call(Binary::Add, 5000), call(Binary::Mul, 5000));
        assert!(join(&[(&a, [2, 1]), (&b, [2, 1])]).is_none());
    }

    #[test]
    fn what_has_no_room_in_a_table_is_another_launch() {
        let a = call(Binary::Add, 300);
        let rows = (Kernel::PARAMETER_BYTES - WORD) / (5 * WORD);
        let joined = join(&vec![(&a, [2, 1]); rows + 1]).unwrap();
        let [full, rest] = kernels(&joined)[..] else { panic!("{} launches", joined.launches.len()) };
        assert!(full.table && !rest.table);
        assert!(full.parameters.len() * WORD <= Kernel::PARAMETER_BYTES);
        assert_eq!(rest.parameters[0], Operand::Read(2 * rows).into());
    }
}
