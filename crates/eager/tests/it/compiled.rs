//! Compiled functions have the bits of eager ones.

use super::{eager, normal};
use plimsoll_eager::{Eager, Error, Result, Tape, Tensor, compile, layer};
use plimsoll_graph::op::{Geometry, Windows};
use plimsoll_plan::{MiB, Size};

/// The loss and its gradients, of a model with these parameters.
fn step(inputs: &[Tensor], model: impl Fn(&Tensor, &[Tensor]) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let [x, labels, weights, parameters @ ..] = inputs else {
        return Err(Error::Argument("a batch, labels, weights, and parameters".into()));
    };
    let tape = Tape::new();
    parameters.iter().for_each(|parameter| tape.watch(parameter));
    let loss = model(x, parameters)?.cross_entropy(labels, weights).get()?;
    let gradients = tape.gradient(&loss, &parameters.iter().collect::<Vec<_>>())?;
    Ok([vec![loss], gradients].concat())
}

fn mlp(x: &Tensor, p: &[Tensor]) -> Result<Tensor> {
    let h = (x.matmul(&p[0]) + &p[1]).relu();
    (h.matmul(&p[2]) + &p[3]).get()
}

fn conv_net(x: &Tensor, p: &[Tensor]) -> Result<Tensor> {
    let geometry = |window, stride, padding| Geometry {
        window: [window; 2],
        stride: [stride; 2],
        padding: [[padding; 2]; 2],
        dilation: [1; 2],
    };
    let h = (x.conv2d(&p[0], geometry(3, 1, 1), 1) + &p[1]).relu();
    let h = h.max_pool(Windows::Sliding(geometry(2, 2, 0)));
    let h = h.conv2d(&p[2], geometry(3, 2, 1), 1).tanh().get()?;
    let features = h.shape()[1..].iter().product::<usize>();
    let h = h.reshape([h.shape()[0], features]);
    h.matmul(&p[3]).get()
}

fn attention(x: &Tensor, p: &[Tensor]) -> Result<Tensor> {
    let [n, positions, width] = x.shape()[..] else { return Err(Error::Argument("three axes".into())) };
    let rows = x.reshape([n * positions, width]).get()?;
    let heads = |w: &Tensor| rows.matmul(w).reshape([n, positions, 2, width / 2]);
    let mixed = heads(&p[0]).attention(heads(&p[1]), heads(&p[2]), true).reshape([n * positions, width]);
    let h = (mixed + &rows).get()?;
    let centred = (&h - h.mean(&[1], true)).get()?;
    let normal = &centred * (centred.square().mean(&[1], true) + 1e-5).rsqrt();
    normal.matmul(&p[3]).reshape([n, positions, 5]).mean(&[1], false).get()
}

/// A batch of examples and parameters of these types.
fn inputs(e: &Eager, name: &str, x: &str, parameters: &[&str], marked: bool) -> Vec<Tensor> {
    let mark = |t: Tensor| if marked { t.batch() } else { t };
    let x = normal(e, name, x);
    let n = x.shape()[0];
    let labels = e.tensor((0..n as i32).map(|i| i % 5).collect::<Vec<_>>()).unwrap();
    let weights = e.full(&format!("f32[{n}]").parse().unwrap(), 1.0 / n as f64).get().unwrap();
    let parameters = parameters
        .iter()
        .enumerate()
        .map(|(i, ty)| (normal(e, &format!("{name} {i}"), ty) * 0.3).get().unwrap());
    [mark(x), mark(labels), mark(weights)].into_iter().chain(parameters).collect()
}

fn bits(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(|t| t.to_host().unwrap().as_bytes().to_vec()).collect()
}

#[test]
fn a_compiled_step_has_the_bits_of_an_eager_one() {
    type Model = fn(&Tensor, &[Tensor]) -> Result<Tensor>;
    let models: [(&str, Model, &str, &[&str]); 3] = [
        ("mlp", mlp, "f32[70,20]", &["f32[20,33]", "f32[33]", "f32[33,5]", "f32[5]"]),
        ("conv net", conv_net, "f32[10,12,12,3]", &["f32[3,3,3,8]", "f32[8]", "f32[3,3,8,4]", "f32[36,5]"]),
        ("attention", attention, "f32[6,9,8]", &["f32[8,8]", "f32[8,8]", "f32[8,8]", "f32[8,5]"]),
    ];
    for (name, model, x, parameters) in models {
        for marked in [false, true] {
            let e = eager();
            let inputs = inputs(&e, name, x, parameters, marked);
            let references: Vec<&Tensor> = inputs.iter().collect();
            let run = move |inputs: &[Tensor]| step(inputs, model);
            let found = run(&inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
            let mut compiled = compile(run, &references, MiB(64)).unwrap_or_else(|e| panic!("{name}: {e}"));
            for _ in 0..2 {
                let again = compiled.run(&references).unwrap();
                assert_eq!(bits(&found), bits(&again), "{name}, marked: {marked}");
            }
        }
    }
}

#[test]
fn new_types_are_traced_again_or_refused() -> Result<()> {
    let e = eager();
    let double = |inputs: &[Tensor]| Ok(vec![(&inputs[0] * 2.0).get()?]);
    let (small, large) = (e.tensor([1.0f32])?, e.tensor([1.0f32, 2.0])?);
    let mut strict = compile(double, &[&small], MiB(1))?;
    let error = strict.run(&[&large]).unwrap_err().to_string();
    assert!(error.contains("compiled for (f32[1]), not (f32[2])"), "{error}");
    let mut open = strict.trace_new_types();
    assert_eq!(open.run(&[&large])?[0].to_vec::<f32>()?, [2.0, 4.0]);
    assert_eq!(open.run(&[&small])?[0].to_vec::<f32>()?, [2.0]);
    assert_eq!(open.run(&[&large])?[0].to_vec::<f32>()?, [2.0, 4.0]);
    let log = open.trace_log();
    assert_eq!(log.len(), 2);
    assert!(
        log[0].starts_with("compiled for (f32[1])") && log[1].starts_with("new types for (f32[2])"),
        "{log:?}"
    );
    Ok(())
}

#[test]
fn reading_a_value_while_tracing_is_an_error() -> Result<()> {
    let e = eager();
    let x = e.tensor([1.0f32])?;
    let reads = |inputs: &[Tensor]| {
        let sum = inputs[0].sum(&[0], false).item()?;
        Ok(vec![(&inputs[0] * sum).get()?])
    };
    let error = compile(reads, &[&x], MiB(1)).err().unwrap().to_string();
    assert!(error.starts_with("reading: this is a tracing tensor (f32[])"), "{error}");
    assert!(matches!(compile(|i| Ok(i.to_vec()), &[&x, &x], Size::Bytes(100)), Err(Error::Plan(_))));
    Ok(())
}

#[test]
fn captured_tensors_keep_their_values() -> Result<()> {
    let e = eager();
    let (x, w) = (e.tensor([1.0f32, 2.0])?, e.tensor([10.0f32, 20.0])?);
    let captured = w.clone();
    let mut compiled =
        compile(move |i| Ok(vec![(&i[0] * &captured).get()?, captured.clone()]), &[&x], MiB(1))?;
    drop(w);
    let found = compiled.run(&[&x])?;
    assert_eq!(found[0].to_vec::<f32>()?, [10.0, 40.0]);
    assert_eq!(found[1].to_vec::<f32>()?, [10.0, 20.0]);
    Ok(())
}

#[test]
fn lifetimes_name_layers_and_follow_views_to_the_last_use() {
    let e = eager();
    let x = normal(&e, "x", "f32[6,4]");
    let function = |inputs: &[Tensor]| {
        let [x] = inputs else { return Err(Error::Argument("one input".into())) };
        let outer = layer("outer", || layer("inner", || x.matmul(x.transpose(&[1, 0])))).get()?; // f32[6,6]
        let view = outer.reshape([36]).get()?;
        drop(outer);
        let sum = layer("sum", || view.sum(&[0], false)).get()?;
        let last = layer("last", || x.matmul(x.transpose(&[1, 0]).matmul(x))).get()?; // f32[6,4]
        Ok(vec![sum, last])
    };
    let compiled = compile(function, &[&x], MiB(1)).unwrap();
    let lifetimes = compiled.lifetimes();
    let find = |layer: &str| lifetimes.iter().filter(|value| value.layer == layer).collect::<Vec<_>>();
    let (inner, sum, last) = (find("outer/inner"), find("sum"), find("last"));
    let product = inner.iter().find(|value| value.bytes == 6 * 6 * 4).unwrap();
    assert_eq!(product.last_use, sum[0].made, "{lifetimes:?}");
    let end = lifetimes.iter().map(|value| value.last_use).max().unwrap();
    assert!([sum.last(), last.last()].iter().all(|output| output.unwrap().last_use == end), "{lifetimes:?}");
    assert_eq!(find("input0")[0].made, 0);
    assert!(lifetimes.iter().all(|value| value.made <= value.last_use && !value.layer.is_empty()));
}
