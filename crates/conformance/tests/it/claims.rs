//! Which ops the CPU supports in which element types: each golden case in every element type that its type rule accepts, run
//! where there is a kernel, and compared. `docs/ops.md` has the table; `PLIMSOLL_WRITE_DOCS=1` writes it.

use plimsoll_conformance::{Case, cast, compare, golden_cases, kernel_sets, run_op, tolerance};
use plimsoll_graph::op::{Distribution, Elementwise, Index};
use plimsoll_graph::{Builder, GraphError, Numerics, Op, ValueId};
use plimsoll_plan::{Executor, KernelQuery};
use plimsoll_reference::Reference;
use plimsoll_tensor::{DType, Tensor, TensorType};
use plimsoll_transform::gradient;
use std::collections::BTreeMap;
use std::fmt::Write;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ops.md");
const BEGIN: &str = "<!-- claims: begin -->\n";
const END: &str = "<!-- claims: end -->\n";

/// A golden case in one element type.
struct Typed {
    dtype: DType,
    op: Op,
    inputs: Vec<Tensor>,
}

impl Typed {
    fn types(&self) -> Vec<&TensorType> {
        self.inputs.iter().map(Tensor::ty).collect()
    }

    /// The output types, if the type rule accepts the inputs.
    fn outputs(&self) -> Option<Vec<TensorType>> {
        self.op.infer(&self.types()).ok()
    }

    /// Whether an executor has a kernel. Views need none.
    fn is_supported(&self, executor: &dyn Executor, outputs: &[TensorType]) -> bool {
        let query = KernelQuery {
            op: &self.op,
            inputs: self.types(),
            outputs: outputs.iter().collect(),
            accumulate: false,
            fold_rows: 0,
            mixed: false,
        };
        self.op.is_view() || executor.target().kernel(&query).is_ok()
    }

    /// The outputs of the reference in f64 on the same inputs, rounded to their types once.
    fn expected(&self, outputs: &[TensorType]) -> Result<Vec<Tensor>, String> {
        if !self.dtype.is_float() {
            return run_op(&Reference, &self.op, &self.inputs, &[], 1);
        }
        let wide: Vec<Tensor> = self.inputs.iter().map(|t| cast(t, DType::F64)).collect();
        let found = run_op(&Reference, &op_in(&self.op, DType::F64), &wide, &[], 1)?;
        Ok(found.iter().zip(outputs).map(|(t, ty)| cast(t, ty.dtype)).collect())
    }

    fn check(&self, executor: &dyn Executor, expected: &[Tensor]) -> Result<(), String> {
        let relative = tolerance(&self.op, &self.types(), self.dtype);
        let found = run_op(executor, &self.op, &self.inputs, &[], 1)?;
        found.iter().zip(expected).try_for_each(|(found, expected)| match found.ty() == expected.ty() {
            true => compare(found, expected, relative),
            false => Err(format!("{} for {}", found.ty(), expected.ty())),
        })
    }
}

/// An op with the float types among its attributes changed; a cast outside a region stays.
fn op_in(op: &Op, dtype: DType) -> Op {
    let other = |d: DType| if d.is_float() { dtype } else { d };
    let constant = |op: Elementwise| match op {
        Elementwise::Constant { value, dtype } => Elementwise::Constant { value, dtype: other(dtype) },
        op => op,
    };
    match op.clone() {
        Op::Elementwise(op) => Op::Elementwise(constant(op)),
        Op::Fused(mut region) => {
            for instruction in &mut region.instructions {
                instruction.dtype = other(instruction.dtype);
                instruction.op = match constant(instruction.op) {
                    Elementwise::Cast(to) => Elementwise::Cast(other(to)),
                    op => op,
                };
            }
            Op::Fused(region)
        }
        Op::Index(Index::OneHot { classes, dtype }) => {
            Op::Index(Index::OneHot { classes, dtype: other(dtype) })
        }
        Op::Random(mut random) => {
            random.distribution = match random.distribution {
                Distribution::Uniform(d) => Distribution::Uniform(other(d)),
                Distribution::Normal(d) => Distribution::Normal(other(d)),
                bernoulli @ Distribution::Bernoulli(_) => bernoulli,
            };
            Op::Random(random)
        }
        op => op,
    }
}

/// A tensor with its floats in any element type: as integers their magnitudes rounded up, as booleans whether they are
/// positive.
fn tensor_in(tensor: &Tensor, dtype: DType) -> Tensor {
    if dtype.is_float() || !tensor.ty().dtype.is_float() {
        return cast(tensor, dtype);
    }
    let values = tensor.to_f64();
    let whole = |x: f64| if dtype == DType::Bool { f64::from(u8::from(x > 0.0)) } else { x.abs().ceil() };
    let values: Vec<f64> = values.into_iter().map(whole).collect();
    Tensor::from_f64(TensorType::new(dtype, tensor.ty().shape.clone()), &values).unwrap()
}

/// The element type of a case without floats.
fn own_type(case: &Case) -> DType {
    match (&case.op, &case.inputs[..]) {
        (Op::Elementwise(Elementwise::Select), [_, choice, _]) => choice.ty().dtype,
        (Op::Random(_) | Op::Index(Index::OneHot { .. }), _) | (_, []) => case.outputs[0].ty().dtype,
        (_, [x, ..]) => x.ty().dtype,
    }
}

/// A case in every element type; without floats, as it is. A cast is to every type.
fn typed(case: &Case) -> Vec<Typed> {
    let (ops, made) = match case.op {
        Op::Elementwise(Elementwise::Cast(_)) => {
            (DType::ALL.map(|to| Op::Elementwise(Elementwise::Cast(to))).to_vec(), &[][..])
        }
        _ => (vec![case.op.clone()], &case.outputs[..]),
    };
    let has_floats = case.inputs.iter().chain(made).any(|t| t.ty().dtype.is_float());
    let dtypes = if has_floats { DType::ALL.to_vec() } else { vec![own_type(case)] };
    let pairs = dtypes.into_iter().flat_map(|dtype| ops.iter().map(move |op| (dtype, op)));
    pairs
        .map(|(dtype, op)| Typed { dtype, inputs: inputs_in(case, op, dtype), op: op_in(op, dtype) })
        .collect()
}

/// A case's inputs in an element type. An op may take f32 sums beside 16-bit floats: as few inputs are f32 as the type rule
/// accepts.
fn inputs_in(case: &Case, op: &Op, dtype: DType) -> Vec<Tensor> {
    let with = |wide: usize| -> Vec<Tensor> {
        let of = |(i, t): (usize, &Tensor)| match wide >> i & 1 == 1 && t.ty().dtype.is_float() {
            true => cast(t, DType::F32),
            false => tensor_in(t, dtype),
        };
        case.inputs.iter().enumerate().map(of).collect()
    };
    let fits = |inputs: &Vec<Tensor>| {
        op_in(op, dtype).infer(&inputs.iter().map(Tensor::ty).collect::<Vec<_>>()).is_ok()
    };
    // The first input keeps the element type.
    let mut sets: Vec<usize> = (0..1 << case.inputs.len()).filter(|set| set & 1 == 0).collect();
    sets.sort_by_key(|set| set.count_ones());
    sets.retain(|&set| set == 0 || dtype.is_low());
    sets.into_iter().map(with).find(fits).unwrap_or_else(|| with(0))
}

/// Whether `gradient` reaches an input of the case from its first output.
fn has_gradient(case: &Case) -> bool {
    let reaches = |wanted: usize| -> Result<(), GraphError> {
        let mut b = Builder::new(1, 1);
        let inputs = case.inputs.iter().enumerate().map(|(i, t)| b.setting(&format!("x{i}"), t.ty().clone()));
        let inputs: Vec<ValueId> = inputs.collect();
        let y = b.node(case.op.clone(), &inputs)?[0];
        let rank = b.shape(y).rank();
        let sum = b.sum(y, &(0..rank).collect::<Vec<_>>(), true)?;
        let loss = b.reshape(sum, [])?;
        gradient(&mut b, &Numerics::default(), loss, &[inputs[wanted]]).map(|_| ())
    };
    (0..case.inputs.len()).any(|i| case.inputs[i].ty().dtype.is_float() && reaches(i).is_ok())
}

/// What is supported of one op.
#[derive(Default)]
struct Support {
    gradient: bool,
    /// For each element type that the type rule accepts: whether the CPU supports a case, and whether it lacks one.
    cpu: BTreeMap<DType, (bool, bool)>,
}

impl Support {
    fn row(&self, name: &str) -> String {
        let mut row = format!("| `{name}` | {} |", if self.gradient { "rule" } else { "" });
        for dtype in DType::ALL {
            let cell = match self.cpu.get(&dtype) {
                None => "",
                Some((false, _)) => "ref",
                Some((true, false)) => "cpu",
                Some((true, true)) => "some",
            };
            write!(row, " {cell} |").unwrap();
        }
        row + "\n"
    }
}

/// The families in the order of the page.
fn family(op: &Op) -> usize {
    match op {
        Op::Elementwise(Elementwise::Unary(_)) => 0,
        Op::Elementwise(Elementwise::Binary(_)) => 1,
        Op::Elementwise(_) => 2,
        Op::Fused(_) => 3,
        Op::Movement(_) => 4,
        Op::Reduce(_) => 5,
        Op::MatMul(_) => 6,
        Op::Conv(_) => 7,
        Op::Pool(_) => 8,
        Op::Resize(_) => 9,
        Op::Norm(_) => 10,
        Op::Attention(_) => 11,
        Op::Index(_) => 12,
        Op::Loss(_) => 13,
        Op::Random(_) => 14,
        Op::Quantise(_) => 15,
        Op::Prune(_) => 16,
        Op::Int8(_) => 17,
        Op::Recurrent(_) => 18,
        Op::Exchange(_) => 19,
    }
}

fn table(found: &BTreeMap<(usize, &'static str), Support>) -> String {
    let types = DType::ALL.map(DType::name).join(" | ");
    let mut table = format!("| op | gradient | {types} |\n|---|---|{}\n", "---|".repeat(DType::ALL.len()));
    found.iter().for_each(|((_, name), support)| table += &support.row(name));
    table
}

#[test]
fn supported_ops_match_the_reference_and_the_docs() {
    let executors: Vec<_> = kernel_sets().map(|entry| entry.checked(2)).collect();
    let mut found: BTreeMap<(usize, &'static str), Support> = BTreeMap::new();
    let mut failures = Vec::new();
    for case in golden_cases() {
        let support = found.entry((family(&case.op), case.op.name())).or_default();
        support.gradient |= has_gradient(&case);
        for typed in typed(&case) {
            let Some(outputs) = typed.outputs() else { continue };
            let mut fail = |who: String, e: String| {
                failures.push(format!("{} in {} on {who}: {e}", case.name, typed.dtype));
            };
            let on_cpu = executors.iter().filter(|e| typed.is_supported(*e, &outputs)).count();
            assert!(on_cpu == 0 || on_cpu == executors.len(), "{}: kernel sets differ", case.name);
            let (supported, missing) = support.cpu.entry(typed.dtype).or_default();
            *supported |= on_cpu > 0;
            *missing |= on_cpu == 0;
            let expected = match typed.expected(&outputs) {
                Ok(expected) => expected,
                Err(e) => {
                    fail("the reference".into(), e);
                    continue;
                }
            };
            if let Err(e) = typed.check(&Reference, &expected) {
                fail("the reference".into(), e);
            }
            for executor in executors.iter().take(on_cpu) {
                if let Err(e) = typed.check(executor, &expected) {
                    fail(executor.target().name(), e);
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
    let table = table(&found);
    let page = std::fs::read_to_string(PAGE).unwrap_or_default();
    let (before, rest) =
        page.split_once(BEGIN).unwrap_or_else(|| panic!("no {BEGIN} in docs/ops.md\n{table}"));
    let (written, after) = rest.split_once(END).expect("the table's end");
    for (_, name) in found.keys() {
        assert!(before.contains(&format!("`{name}`")), "docs/ops.md does not say what `{name}` is");
    }
    if std::env::var_os("PLIMSOLL_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
    } else {
        assert!(
            written == table,
            "docs/ops.md has another table: PLIMSOLL_WRITE_DOCS=1 writes this\n{table}"
        );
    }
}
