//! Operators and methods: what they compute, how they print, what they refuse.

use super::{eager, normal};
use plimsoll_eager::{Eager, Error, Result, Tensor, Value, concat, stack};
use plimsoll_graph::op::Distribution;
use plimsoll_tensor::random::Stream;
use plimsoll_tensor::{DType, Tensor as Host};

#[test]
fn operators_take_tensors_references_values_results_and_numbers() {
    let e = eager();
    let [a, b] = [[1.0f32, 2.0], [3.0, 5.0]].map(|x| e.tensor(x).unwrap());
    let check = |value: Value, wanted: [f32; 2]| assert_eq!(value.to_vec::<f32>().unwrap(), wanted);
    check(&a + &b, [4.0, 7.0]);
    check(a.clone() + &b, [4.0, 7.0]);
    check(&a - b.clone(), [-2.0, -3.0]);
    check((&a + &b) * (&b - &a), [8.0, 21.0]);
    check((&a + &b) / &a, [4.0, 3.5]);
    check(&a * (&a + &b), [4.0, 14.0]);
    check((&a + &b).get() - &a, [3.0, 5.0]);
    check(&b - (&a + &b).get(), [-1.0, -2.0]);
    check(1.0 - &a, [0.0, -1.0]);
    check(6.0 / (&a * &b), [2.0, 0.6]);
    check(&a * 2 + 0.5f32, [2.5, 4.5]);
    check(-(&a - 3.0), [2.0, 1.0]);
    check(a.where_true(a.greater(1.0), &b * 10.0), [30.0, 2.0]);
}

#[test]
fn methods_have_the_builders_results() -> Result<()> {
    let e = eager();
    let x = e.tensor([[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
    assert_eq!(x.slice(1, 1..).to_vec::<f32>()?, [2.0, 3.0, 5.0, 6.0]);
    assert_eq!(x.slice(0, ..=0).slice(1, ..2).to_vec::<f32>()?, [1.0, 2.0]);
    assert_eq!(x.transpose(&[1, 0]).reshape([6]).to_vec::<f32>()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!(x.mean(&[0, 1], false).item()?, 3.5);
    assert_eq!(x.einsum("ij,kj->ik", &x).to_vec::<f32>()?, [14.0, 32.0, 32.0, 77.0]);
    assert_eq!(concat(&[&x, &x], 1).get()?.shape()[..], [2, 6]);
    assert_eq!(stack(&[&x, &x], 0).get()?.shape()[..], [2, 2, 3]);
    let (values, indices) = x.top_k(1, 1)?;
    assert_eq!((values.to_vec::<f32>()?, indices.to_vec::<i32>()?), (vec![3.0, 6.0], vec![2, 2]));
    assert_eq!(x.split(1, &[1, 2])?[1].to_vec::<f32>()?, [2.0, 3.0, 5.0, 6.0]);
    assert!(x.softmax().sum(&[1], false).to_vec::<f32>()?.iter().all(|x| (x - 1.0).abs() < 1e-6));
    assert_eq!(e.range(3).cast(DType::I64).to_vec::<i64>()?, [0, 1, 2]);
    assert_eq!(e.full(&"bf16[2,2]".parse().unwrap(), 0.5).cast(DType::F64).to_vec::<f64>()?, [0.5; 4]);
    assert!(e.tensor(vec![0.0f32; 0])?.exp().to_vec::<f32>()?.is_empty());
    let drawn = e.key(7, 3)?.draw(Distribution::Normal(DType::F32), "noise", [4, 5]).to_vec::<f32>()?;
    let stream = Stream::new(7, 3, "noise");
    let wanted: Vec<f32> = (0..4).flat_map(|n| (0..5).map(move |i| stream.normal(n, i))).collect();
    assert_eq!(drawn, wanted);
    Ok(())
}

#[test]
fn tensors_print_as_numpys_do() {
    let e = eager();
    let check = |host: Host, wanted: &str| assert_eq!(e.tensor(host).unwrap().to_string(), wanted);
    check(Host::from([1.0f32, 2.5, -3.25]), "[ 1.    2.5  -3.25]");
    check(Host::from([[1.0f32, 2.0], [3.0, 10.0]]), "[[ 1.  2.]\n [ 3. 10.]]");
    check(Host::from([1, -20, 300]), "[  1 -20 300]");
    check(Host::from([[[1u8, 2]], [[3, 4]]]), "[[[1 2]]\n\n [[3 4]]]");
    check(Host::from([1.0f32, 1e-5]), "[1.e+00 1.e-05]");
    check(Host::from([0.1f64, 1.0 / 3.0]), "[0.1        0.33333333]");
    check(Host::from([f32::NAN, 1.0, f32::INFINITY]), "[nan  1. inf]");
    check(Host::from_f64("bool[2]".parse().unwrap(), &[1.0, 0.0]).unwrap(), "[ True False]");
    check(Host::from_f64("f32[]".parse().unwrap(), &[2.5]).unwrap(), "2.5");
    check(Host::from(vec![0.0f32; 0]), "[]");
    let many: Vec<i32> = (0..2000).collect();
    check(Host::from(many.clone()), "[   0    1    2 ... 1997 1998 1999]");
    let square = Host::from(many).reshape([40, 50]).unwrap();
    let text = e.tensor(square).unwrap().to_string();
    assert!(text.starts_with("[[   0    1    2 ...   47   48   49]\n [  50"), "{text}");
    assert!(text.contains("\n ...\n [1850"), "{text}");
    let long: Vec<i32> = (0..30).collect();
    let text = e.tensor(long).unwrap().to_string();
    assert!(text.contains("23\n 24"), "{text}");
}

/// Messages are the graph's, and say what to do.
#[test]
fn refusals_say_what_is_wrong() -> Result<()> {
    let (e, other) = (eager(), eager());
    let (x, y) = (normal(&e, "x", "f32[2,3]"), normal(&e, "y", "f32[2,4]"));
    let refused = |value: Value| value.get().unwrap_err().to_string();
    assert_eq!(refused(&x + &y), "add(f32[2,3], f32[2,4]): [2,4] does not broadcast with [2,3]");
    assert_eq!(
        refused((&x + &y).exp() * 2.0 + &x),
        "add(f32[2,3], f32[2,4]): [2,4] does not broadcast with [2,3]"
    );
    assert_eq!(refused(x.sum(&[2], false)), "sum(f32[2,3]): f32[2,3] has no axis 2");
    assert!(refused(x.matmul(&x)).starts_with("matmul(f32[2,3], f32[2,3]): "));
    let there = normal(&other, "x", "f32[2,3]");
    assert!(refused(&x + &there).contains("two devices"));
    assert!(matches!((&x + &there).get(), Err(Error::Devices { op: "add", .. })));
    assert!(x.to_vec::<i32>().unwrap_err().to_string().contains("f32, not i32"));
    assert!(x.item().unwrap_err().to_string().contains("not one number"));
    let table = x.gather(&e.tensor([0, 5])?);
    assert!(refused(table).contains("gather: "), "a kernel's error");
    let batches = [normal(&e, "a", "f32[2,3]").batch(), normal(&e, "b", "f32[1,3]").batch()];
    assert!(refused(&batches[0] + &batches[1]).contains("batches of 2 and 1 examples"));
    assert!(refused(x.slice(5, ..)).contains("slice"));
    // Nothing is left behind by an op that failed.
    drop((x, y, batches));
    assert_eq!(e.pool().held, 0);
    Ok(())
}

#[test]
fn the_default_context_is_configured_before_its_first_use_or_not_at_all() -> Result<()> {
    let first = plimsoll_eager::tensor([1.0f32])?;
    let late = Eager::builder().threads(1).make_default();
    assert!(late.err().unwrap().to_string().contains("before the first tensor"));
    let second: Tensor = plimsoll_eager::tensor([2.0f32])?;
    assert_eq!((first + second).to_vec::<f32>()?, [3.0]);
    Ok(())
}
