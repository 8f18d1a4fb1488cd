//! The properties of every op, one line each.

use super::*;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;

/// Rematerialization, precision class (operands, rounding, whether it extends a chain), what it may overwrite, whether it
/// is a view, the outputs that fold; and the op in the text form.
const PROPERTIES: &str = r#"
Cheap   AsStored      EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"neg"}}
Cheap   AsStored      EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"abs"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"square"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"sqrt"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"rsqrt"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"exp"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"log"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"tanh"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"sigmoid"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"erf"}}
Cheap   AsStored      EndOfChain -     Elementwise -    -      {"elementwise":{"unary":"relu"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"sin"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"cos"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"log1p"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"expm1"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"softplus"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"floor"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"ceil"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"round"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"unary":"sign"}}
Trivial Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"binary":"add"}}
Trivial Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"binary":"sub"}}
Trivial Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"binary":"mul"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"binary":"div"}}
Trivial Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"binary":"max"}}
Trivial Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"binary":"min"}}
Trivial Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"binary":"pow"}}
Trivial Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"binary":"greater"}}
Trivial Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"binary":"greater_equal"}}
Trivial Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"binary":"equal"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":"select"}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"cast":"f32"}}
Cheap   Wide          EndOfChain chain Elementwise -    -      {"elementwise":{"constant":{"value":1.0,"dtype":"f32"}}}
Costly  Wide          Never      -     Elementwise -    -      {"fused":{"instructions":[],"outputs":[]}}
Cheap   AsStored      Never      -     Never       view -      {"movement":{"reshape":[1]}}
Cheap   AsStored      Never      -     Never       -    -      {"movement":{"transpose":[0]}}
Cheap   AsStored      Never      -     Never       -    -      {"movement":{"broadcast":[1]}}
Cheap   AsStored      Never      -     Never       -    -      {"movement":{"slice":[]}}
Cheap   AsStored      Never      -     Never       -    -      {"movement":{"pad":{"shape":[1],"spans":[],"value":0.0}}}
Cheap   AsStored      Never      -     Never       -    -      {"movement":{"concat":{"axis":1}}}
Costly  AsStored      Never      -     Never       -    -      {"movement":{"split":{"axis":1,"extents":[1,1]}}}
Cheap   AsStored      Never      -     Never       view -      {"movement":"detach"}
Costly  Wide          Never      chain Never       -    [0]    {"reduce":{"sum":{"start":0,"end":1}}}
Costly  Wide          Never      chain Never       -    -      {"reduce":{"sum":{"start":1,"end":2}}}
Costly  Wide          Never      chain Never       -    -      {"reduce":{"square_sum":{"start":0,"end":1}}}
Costly  Wide          Never      chain Never       -    -      {"reduce":{"max":{"start":0,"end":1}}}
Costly  Wide          Never      chain Never       -    -      {"reduce":{"min":{"start":0,"end":1}}}
Costly  Wide          Never      chain Never       -    -      {"reduce":{"product":{"start":0,"end":1}}}
Costly  Wide          Never      chain Never       -    -      {"reduce":{"product_grad":{"start":0,"end":1}}}
Costly  Wide          Never      chain Never       -    -      {"reduce":"argmax"}
Costly  Wide          Never      chain Never       -    -      {"reduce":"argmin"}
Costly  Wide          Never      chain Never       -    -      {"reduce":{"cumulative_sum":{"axis":0,"reverse":false}}}
Costly  Wide          Never      chain Never       -    -      {"reduce":{"top_k":{"k":1}}}
Costly  Low           AfterBias  -     Never       -    [0]    {"mat_mul":{"transpose_a":false,"transpose_b":false}}
Costly  Low           AfterBias  -     Never       -    -      {"mat_mul":{"transpose_a":false,"transpose_b":false,"epilogue":{"bias":true,"relu":false}}}
Costly  Low           AfterBias  -     Never       -    -      {"conv":{"forward":{"geometry":{"window":[1,1],"stride":[1,1],"padding":[[0,0],[0,0]]}}}}
Costly  Low           AfterBias  -     Never       -    -      {"conv":{"input_grad":{"geometry":{"window":[1,1],"stride":[1,1],"padding":[[0,0],[0,0]]},"image":[1,1]}}}
Costly  Wide          AfterBias  -     Never       -    [0]    {"conv":{"weight_grad":{"geometry":{"window":[1,1],"stride":[1,1],"padding":[[0,0],[0,0]]}}}}
Costly  AsStored      AtOnce     -     Never       -    -      {"pool":{"max":{"windows":{"adaptive":{"output":[1,1]}}}}}
Costly  Wide          AtOnce     -     Never       -    -      {"pool":{"max_grad":{"windows":{"adaptive":{"output":[1,1]}},"image":[1,1]}}}
Costly  Wide          AtOnce     -     Never       -    -      {"pool":{"average":{"windows":{"adaptive":{"output":[1,1]}},"count_padding":false}}}
Costly  Wide          AtOnce     -     Never       -    -      {"pool":{"average_grad":{"windows":{"adaptive":{"output":[1,1]}},"count_padding":false,"image":[1,1]}}}
Costly  Wide          AtOnce     -     Never       -    -      {"resize":{"forward":{"mode":"nearest","output":[1,1]}}}
Costly  Wide          AtOnce     -     Never       -    -      {"resize":{"grad":{"mode":"nearest","image":[1,1]}}}
Costly  Wide          AtOnce     -     Never       -    -      {"norm":{"layer":{"eps":0.0}}}
Costly  Wide          AtOnce     -     Never       -    -      {"norm":{"batch":{"eps":0.0}}}
Costly  Wide          Never      chain Never       -    -      {"norm":"log_sum_exp"}
Costly  Wide          Never      -     Never       -    -      {"norm":{"stats":{"axis":"row"}}}
Costly  Wide          Never      -     Never       -    [0]    {"norm":"moments"}
Costly  Wide          Never      -     Never       -    -      {"norm":{"stats_of_moments":{"dtype":"f32"}}}
Costly  Wide          Never      -     Never       -    [0, 1] {"norm":{"sums":{"axis":"row"}}}
Costly  Low           AtOnce     -     Never       -    -      {"attention":{"forward":{"causal":false}}}
Costly  Wide          AtOnce     -     Never       -    -      {"attention":{"grad":{"causal":false}}}
Costly  Wide          AtOnce     -     ReadFirst   -    -      {"attention":{"rotary":{"base":1.0,"inverse":false}}}
Costly  Wide          Never      -     ReadFirst   -    -      {"recurrent":{"lstm":{"reverse":false}}}
Costly  Wide          Never      -     ReadFirst   -    -      {"recurrent":{"lstm_grad":{"reverse":false,"cells":false}}}
Costly  Wide          AtOnce     -     Never       -    -      {"index":"gather"}
Costly  Wide          Never      -     Never       -    [0]    {"index":{"scatter_add":{"rows":1}}}
Costly  Wide          Never      -     Never       -    -      {"index":"take"}
Costly  Wide          Never      -     Never       -    -      {"index":{"put":{"extent":1}}}
Costly  Wide          Never      -     Never       -    -      {"index":{"one_hot":{"classes":1,"dtype":"f32"}}}
Costly  Wide          Never      -     Never       -    -      {"index":{"range":{"extent":1}}}
Costly  Wide          Never      -     Never       -    [0]    {"loss":"cross_entropy"}
Costly  Wide          Never      -     Never       -    -      {"loss":"cross_entropy_grad"}
Costly  FirstAsStored Never      -     Never       -    [0]    {"loss":{"linear_cross_entropy":{"transposed":false}}}
Costly  Wide          Never      -     Never       -    [1]    {"loss":{"linear_cross_entropy_grad":{"transposed":false}}}
Costly  Wide          Never      -     Never       -    [0, 2] {"loss":{"linear_cross_entropy_with_grad":{"transposed":false}}}
Cheap   Wide          Never      -     Never       -    -      {"random":{"distribution":{"uniform":"f32"},"stream":"","shape":[1]}}
Cheap   Wide          Never      -     Never       -    -      {"random":{"distribution":{"normal":"f32"},"stream":"","shape":[1]}}
Cheap   Wide          Never      -     Never       -    -      {"random":{"distribution":{"bernoulli":0.5},"stream":"","shape":[1]}}
Costly  Wide          Never      -     Never       -    -      {"quantise":{"encode":{"signed":true}}}
Costly  Wide          Never      -     Never       -    -      {"quantise":{"decode":{"signed":true}}}
Costly  Wide          Never      -     ReadFirst   -    -      {"prune":"mask"}
Costly  Wide          Never      -     ReadFirst   -    -      {"prune":"apply"}
Costly  Wide          Never      -     Never       -    -      {"prune":{"expand":{"shape":[1]}}}
Costly  Wide          Never      -     Never       -    -      {"int8":{"quantize":{"scale":1.0,"zero":0}}}
Costly  Wide          Never      -     Never       -    -      {"int8":{"dequantize":{"scale":1.0,"zero":0}}}
Costly  Wide          Never      -     Never       -    -      {"int8":{"conv":{"geometry":{"window":[1,1],"stride":[1,1],"padding":[[0,0],[0,0]]},"groups":1,"zero":0,"output":{"zero":0,"low":0,"high":255}}}}
Costly  Wide          Never      -     Never       -    -      {"int8":{"dense":{"zero":0,"output":{"zero":0,"low":0,"high":255}}}}
Costly  Wide          Never      -     Never       -    -      {"int8":{"add":{"operands":[[0,{"multiplier":0,"shift":0}],[0,{"multiplier":0,"shift":0}]],"factor":{"multiplier":0,"shift":0},"output":{"zero":0,"low":0,"high":255}}}}
Costly  Wide          Never      -     Never       -    -      {"int8":{"mean":{"zero":0,"factor":{"multiplier":0,"shift":0},"output":{"zero":0,"low":0,"high":255}}}}
Costly  Wide          Never      -     Never       -    -      {"int8":{"mul":{"zeros":[0,0],"factor":{"multiplier":0,"shift":0},"output":{"zero":0,"low":0,"high":255}}}}
Costly  Wide          Never      -     ReadFirst   -    -      {"int8":{"sigmoid":{"scale":1.0,"zero":0}}}
Costly  Wide          Never      -     ReadFirst   -    -      {"int8":{"swish":{"from":{"scale":1.0,"zero":0},"factor":{"multiplier":0,"shift":0},"output":{"zero":0,"low":0,"high":255}}}}
Costly  Wide          Never      -     Never       -    -      {"int8":{"max_pool":{"windows":{"adaptive":{"output":[1,1]}}}}}
Costly  Wide          Never      -     Never       -    -      {"int8":{"average_pool":{"windows":{"adaptive":{"output":[1,1]}}}}}
Costly  Wide          Never      -     Never       -    -      {"int8":{"resize":{"mode":"nearest","output":[1,1]}}}
Costly  Wide          Never      -     Never       -    [0]    {"exchange":{"receive":{"chain":0,"from":0,"wraps":false,"ty":{"dtype":"f32","shape":[]}}}}
Costly  Wide          Never      -     Never       -    [0]    {"exchange":{"send":{"chain":0,"to":1,"wraps":false,"ty":{"dtype":"f32","shape":[]}}}}
Costly  Wide          Never      -     Never       -    [0]    {"exchange":{"take":{"chain":0,"from":0,"wraps":false,"ty":{"dtype":"f32","shape":[]},"mark":{"axis":false,"relation":"reduced"}}}}
Costly  Wide          Never      -     Never       -    [0]    {"exchange":{"give":{"chain":0,"to":1}}}
Costly  Wide          Never      -     Never       -    -      {"exchange":{"synchronise":{"from":1,"chains":[],"types":[]}}}
Costly  Wide          Never      -     Never       -    -      {"exchange":{"all_reduce":{"devices":2,"chains":[],"types":[]}}}
Costly  Wide          Never      -     Never       -    -      {"exchange":{"share":{"from":1,"chains":[],"to":[],"types":[]}}}
"#;

/// The ops of the table.
fn ops() -> impl Iterator<Item = &'static str> {
    PROPERTIES.trim().lines().map(|row| &row[row.find('{').unwrap_or(0)..])
}

fn row(json: &str) -> String {
    let op: Op = serde_json::from_str(json).unwrap_or_else(|e| panic!("{json}: {e}"));
    let Properties { rematerialization, precision, in_place, is_view, folds } = op.properties();
    let PrecisionClass { operands, rounding, extends_chain } = precision;
    let cells = [
        format!("{rematerialization:?}"),
        format!("{operands:?}"),
        format!("{rounding:?}"),
        if extends_chain { "chain" } else { "-" }.to_string(),
        format!("{in_place:?}"),
        if is_view { "view" } else { "-" }.to_string(),
        if folds.is_empty() { "-".to_string() } else { format!("{folds:?}") },
    ];
    let [a, b, c, d, e, f, g] = cells;
    format!("{a:7} {b:13} {c:10} {d:5} {e:11} {f:4} {g:6} {json}")
}

#[test]
fn every_op_has_the_properties_that_the_passes_rely_on() {
    let found: Vec<String> = ops().map(row).collect();
    assert!(PROPERTIES.trim() == found.join("\n"), "the table should be\n{}", found.join("\n"));
}

/// The names of an enum's variants in the text form, from serde's own message for one that does not exist.
fn variants<T: DeserializeOwned>() -> Vec<String> {
    let message = serde_json::from_str::<T>("\"?\"").err().expect("no variant is named `?`").to_string();
    message.split('`').skip(3).step_by(2).map(str::to_string).collect()
}

#[test]
fn the_table_of_properties_lists_every_op() {
    let mut missing = BTreeSet::new();
    let mut check = |path: &[&str], names: Vec<String>| {
        assert!(names.len() > 1, "{path:?}: {names:?}");
        for name in names {
            // An object's key, or a name by itself.
            let start: String = path.iter().map(|key| format!("{{\"{key}\":")).collect();
            let listed = |op: &str| {
                op.strip_prefix(&start)
                    .is_some_and(|rest| rest.trim_start_matches('{').starts_with(&format!("\"{name}\"")))
            };
            if !ops().any(listed) {
                missing.insert(format!("{start}{name}"));
            }
        }
    };
    check(&[], variants::<Op>());
    check(&["elementwise"], variants::<Elementwise>());
    check(&["elementwise", "unary"], variants::<Unary>());
    check(&["elementwise", "binary"], variants::<Binary>());
    check(&["movement"], variants::<Movement>());
    check(&["reduce"], variants::<Reduce>());
    check(&["conv"], variants::<Conv>());
    check(&["pool"], variants::<Pool>());
    check(&["resize"], variants::<Resize>());
    check(&["norm"], variants::<Norm>());
    check(&["attention"], variants::<Attention>());
    check(&["index"], variants::<Index>());
    check(&["loss"], variants::<Loss>());
    check(&["random", "distribution"], variants::<Distribution>());
    check(&["quantise"], variants::<Quantise>());
    check(&["prune"], variants::<Prune>());
    check(&["int8"], variants::<Int8>());
    check(&["exchange"], variants::<Exchange>());
    check(&["recurrent"], variants::<Recurrent>());
    assert!(missing.is_empty(), "no row for {missing:?}");
}
