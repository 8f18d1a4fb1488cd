//! Networks: models and layers of `nn` on tensors, under tapes and in compiled steps.

use super::{eager, normal};
use plimsoll_eager::{
    Compiled, Eager, Error, Network, Optimizer, Result, Tape, Tensor, checkpoint, compile, compile_step,
};
use plimsoll_graph::{GraphError, ValueId};
use plimsoll_nn::{
    AdamW, BatchNorm, Clip, Conv2d, CrossEntropy, Dense, Dropout, Embedding, Field, Flatten, Head, Layer,
    LayerNorm, Lstm, Mode, Model, MultiHeadAttention, Net, Penalty, Recipe, Relu, Sequential, Sgd, Tanh,
    WithLoss,
};
use plimsoll_plan::MiB;

fn bits(tensors: &[&Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(|t| t.to_host().unwrap().as_bytes().to_vec()).collect()
}

/// Convolution, batch norm, dropout.
fn image_model() -> Sequential {
    Sequential::classifier([6, 6, 2], 5)
        .push(Conv2d::new(4, 3))
        .push(BatchNorm::new())
        .push(Relu)
        .push(Dropout::new(0.3))
        .push(Flatten)
        .push(Dense::new(5))
}

fn batch(e: &Eager, name: &str, examples: usize) -> (Tensor, Tensor) {
    let labels = (0..examples as i32).map(|i| i % 5).collect::<Vec<_>>();
    (normal(e, name, &format!("f32[{examples},6,6,2]")), e.tensor(labels).unwrap())
}

/// One step of a custom loop.
fn step(net: &mut Network, optimizer: &mut Optimizer, x: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let tape = Tape::new();
    let loss = net.loss(x, labels)?;
    let gradients = tape.gradient(&loss, &net.variables())?;
    optimizer.apply(net, &gradients)?;
    Ok(loss)
}

fn states(net: &Network) -> Vec<Vec<u8>> {
    bits(&net.states().map(|(_, tensor)| tensor).collect::<Vec<_>>())
}

#[test]
fn every_kind_of_layer_takes_tensors_and_gives_gradients() -> Result<()> {
    let e = eager();
    let tokens = e.tensor([[1, 2, 0], [3, 1, 1]])?;
    let images = normal(&e, "images", "f32[3,6,6,2]");
    let words = normal(&e, "words", "f32[3,4,8]");
    let layers: Vec<(&str, Network, &Tensor)> = vec![
        ("dense", e.layer("dense", Dense::new(3), &words)?, &words),
        ("conv", e.layer("conv", Conv2d::new(3, 3), &images)?, &images),
        ("batch norm", e.layer("norm", BatchNorm::new(), &images)?, &images),
        ("layer norm", e.layer("norm", LayerNorm::new(), &words)?, &words),
        ("embedding", e.layer("embedding", Embedding::new(5, 4), &tokens)?, &tokens),
        ("attention", e.layer("attention", MultiHeadAttention::new(2), &words)?, &words),
        ("lstm", e.layer("lstm", Lstm::new(3), &words)?, &words),
    ];
    for (name, mut net, x) in layers {
        let tape = Tape::new();
        let y = net.call(x, Mode::Train).unwrap_or_else(|error| panic!("{name}: {error}"));
        let axes: Vec<usize> = (0..y.shape().rank()).collect();
        let loss = (&y * (&y + 1.0)).sum(&axes, false).get()?;
        let variables = net.variables();
        assert!(!variables.is_empty(), "{name}");
        let gradients = tape.gradient(&loss, &variables).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (variable, gradient) in variables.iter().zip(&gradients) {
            assert_eq!(variable.ty(), gradient.ty(), "{name}");
        }
        assert!(gradients.iter().any(|g| g.to_vec::<f32>().unwrap().iter().any(|&x| x != 0.0)), "{name}");
    }
    Ok(())
}

/// A dense layer by a network, and the same by ops.
#[test]
fn a_layer_is_what_its_ops_are() -> Result<()> {
    let e = eager();
    let x = normal(&e, "x", "f32[40,7]").batch();
    let mut net = e.layer("dense", Dense::new(3), &x)?;
    let (kernel, bias) = (net.variables()[0].clone(), net.variables()[1].clone());
    let run = |y: Tensor| y.tanh().sum(&[0, 1], false).get();
    let tape = Tape::new();
    let loss = run(net.call(&x, Mode::Train)?)?;
    let found = tape.gradient(&loss, &net.variables())?;
    let tape = Tape::new();
    tape.watch(&kernel);
    tape.watch(&bias);
    let by_hand = run((x.matmul(&kernel) + &bias).get()?)?;
    let wanted = tape.gradient(&by_hand, &[&kernel, &bias])?;
    assert_eq!(bits(&[&loss, &found[0], &found[1]]), bits(&[&by_hand, &wanted[0], &wanted[1]]));
    Ok(())
}

#[test]
fn training_moves_running_statistics_and_prediction_reads_them() -> Result<()> {
    let e = eager();
    let (x, _) = batch(&e, "x", 8);
    let mut net = e.layer("norm", BatchNorm::new(), &x)?;
    let before = states(&net);
    net.predict(&x)?;
    net.call(&x, Mode::Infer)?;
    assert_eq!((states(&net), net.steps()), (before, 0));
    let mean = x.mean(&[0, 1, 2], false).to_vec::<f32>()?;
    net.call(&x, Mode::Train)?;
    let running = net.states().find(|(name, _)| name.ends_with("running_mean")).unwrap().1.to_vec::<f32>()?;
    assert!(running.iter().zip(mean).all(|(r, m)| (r - 0.1 * m).abs() < 1e-6));
    assert_eq!(net.steps(), 1);
    Ok(())
}

#[test]
fn dropout_draws_by_seed_step_and_name() -> Result<()> {
    let e = eager();
    let x = e.full(&"f32[4,50]".parse().unwrap(), 1.0).get()?;
    let drop = |name: &str, step: u64, first: u64| {
        let mut net = e.layer(name, Dropout::new(0.5), &x)?;
        net.set_position(step, first);
        net.call(&x, Mode::Train)?.to_vec::<f32>()
    };
    let mask = drop("drop", 3, 0)?;
    assert_eq!(mask, drop("drop", 3, 0)?);
    assert!(
        [drop("other", 3, 0)?, drop("drop", 4, 0)?, drop("drop", 3, 1)?].iter().all(|other| *other != mask)
    );
    // The second example's numbers do not depend on where the batch begins.
    assert_eq!(mask[50..], drop("drop", 3, 1)?[..150]);
    let zeros = mask.iter().filter(|&&x| x == 0.0).count();
    assert!((60..140).contains(&zeros), "{zeros}");
    Ok(())
}

/// Eager, then compiled, from the same start: bits of losses, parameters, statistics, and what dropout drops.
#[test]
fn a_compiled_training_step_has_the_bits_of_the_eager_one() -> Result<()> {
    let e = eager();
    let recipe = || Recipe::new(AdamW::new(0.01)).clip(Clip::GlobalNorm(1.0)).average(0.9);
    let batches: Vec<_> = (0..4).map(|i| batch(&e, &format!("batch {i}"), 10)).collect();
    let (mut net, mut optimizer) = (e.model(image_model())?, Optimizer::new(recipe()));
    let mut wanted = Vec::new();
    for (x, labels) in &batches {
        wanted.push(step(&mut net, &mut optimizer, x, labels)?.item()?);
    }
    let train = |(net, optimizer): &mut (Network, Optimizer), inputs: &[Tensor]| {
        Ok(vec![step(net, optimizer, &inputs[0], &inputs[1])?])
    };
    let fresh = (e.model(image_model())?, Optimizer::new(recipe()));
    let held = e.pool().held;
    let mut compiled = compile_step(fresh, train, &[&batches[0].0, &batches[0].1], MiB(1))?;
    assert!(e.pool().held < held, "the states are in the session's memory alone");
    let mut found = Vec::new();
    for (i, (x, labels)) in batches.iter().enumerate() {
        found.push(compiled.run(&[x, labels])?[0].item()?);
        if i == 1 {
            // Looking at the states between two steps changes nothing.
            let (net, optimizer) = compiled.states()?;
            assert_eq!((net.steps(), optimizer.steps()), (2, 2));
            net.predict(x)?;
        }
    }
    assert_eq!(found, wanted);
    let (other, compiled_optimizer) = compiled.into_states()?;
    assert_eq!(states(&net), states(&other));
    // The moments, too: both go on alike on tensors.
    let (mut other, mut compiled_optimizer) = (other, compiled_optimizer);
    let (x, labels) = &batches[0];
    assert_eq!((net.steps(), optimizer.steps()), (other.steps(), compiled_optimizer.steps()));
    step(&mut net, &mut optimizer, x, labels)?;
    step(&mut other, &mut compiled_optimizer, x, labels)?;
    assert_eq!(states(&net), states(&other));
    Ok(())
}

/// The last batch of an epoch is smaller.
#[test]
fn compiled_steps_of_two_batch_sizes_share_their_states() -> Result<()> {
    let e = eager();
    let (mut net, mut optimizer) = (e.model(image_model())?, Optimizer::new(Sgd::new(0.1).momentum(0.9)));
    let train = |(net, optimizer): &mut (Network, Optimizer), inputs: &[Tensor]| {
        Ok(vec![step(net, optimizer, &inputs[0], &inputs[1])?])
    };
    let fresh = (e.model(image_model())?, Optimizer::new(Sgd::new(0.1).momentum(0.9)));
    let batches: Vec<_> = [8, 8, 3, 8].iter().map(|&n| batch(&e, &format!("{n}"), n)).collect();
    let compiled = compile_step(fresh, train, &[&batches[0].0, &batches[0].1], MiB(2))?;
    let mut compiled = compiled.trace_new_types();
    for (x, labels) in &batches {
        let loss = step(&mut net, &mut optimizer, x, labels)?;
        assert_eq!(bits(&[&loss]), bits(&[&compiled.run(&[x, labels])?[0]]));
    }
    assert_eq!(compiled.trace_log().len(), 2);
    assert_eq!(states(&net), states(&compiled.states()?.0));
    Ok(())
}

/// Two networks and optimizers, and a tensor that the function itself replaces.
#[test]
fn a_compiled_step_keeps_all_its_parts() -> Result<()> {
    type Parts = (Network, Optimizer, (Network, Optimizer), Tensor);
    let e = eager();
    let x = normal(&e, "x", "f32[6,4]");
    let parts = || -> Result<Parts> {
        let sgd = || Optimizer::new(Sgd::new(0.1).momentum(0.9));
        let (one, other) = (e.layer("one", Dense::new(4), &x)?, e.layer("two", Dense::new(4), &x)?);
        Ok((one, sgd(), (other, sgd()), e.tensor([0.0f32])?))
    };
    let train = |(one, sgd, (two, other), count): &mut Parts, inputs: &[Tensor]| {
        let tape = Tape::persistent();
        let middle = one.call(&inputs[0], Mode::Train)?;
        let loss = two.call(&middle, Mode::Train)?.square().sum(&[0, 1], false).get()?;
        let first = tape.gradient(&loss, &one.variables())?;
        let second = tape.gradient(&loss, &two.variables())?;
        sgd.apply(one, &first)?;
        other.apply(two, &second)?;
        *count = (&*count + 1.0).get()?;
        Ok(vec![loss])
    };
    let (mut on_tensors, mut compiled) = (parts()?, compile_step(parts()?, train, &[&x], MiB(1))?);
    for _ in 0..3 {
        let wanted = train(&mut on_tensors, std::slice::from_ref(&x))?;
        assert_eq!(bits(&[&wanted[0]]), bits(&[&compiled.run(&[&x])?[0]]));
    }
    let (one, _, (two, _), count) = compiled.states()?;
    assert_eq!((states(one), states(two)), (states(&on_tensors.0), states(&on_tensors.2.0)));
    assert_eq!(count.to_vec::<f32>()?, [3.0]);
    // A change is taken up by the next run.
    *count = e.tensor([10.0f32])?;
    compiled.run(&[&x])?;
    assert_eq!(compiled.states()?.3.to_vec::<f32>()?, [11.0]);
    compiled.states()?.3 = e.tensor([1.0f32, 2.0])?;
    let error = compiled.run(&[&x]).unwrap_err().to_string();
    assert!(error.contains("is f32[1], not f32[2]"), "{error}");
    Ok(())
}

#[test]
fn a_compiled_step_holds_its_line() -> Result<()> {
    let e = eager();
    let (x, labels) = batch(&e, "x", 64);
    let train = |(net, optimizer): &mut (Network, Optimizer), inputs: &[Tensor]| {
        Ok(vec![step(net, optimizer, &inputs[0], &inputs[1])?])
    };
    let parts = || -> Result<(Network, Optimizer)> {
        Ok((e.model(image_model())?, Optimizer::new(AdamW::new(0.01))))
    };
    let open = compile_step(parts()?, train, &[&x, &labels], MiB(64))?;
    let line = open.arena_bytes() + 8192;
    let tight: Compiled<_> = compile_step(parts()?, train, &[&x, &labels], plimsoll_plan::Size::Bytes(line))?;
    assert!(tight.arena_bytes() <= line);
    let none = compile_step(parts()?, train, &[&x, &labels], plimsoll_plan::Size::Bytes(4096));
    assert!(matches!(none, Err(Error::Plan(_))));
    Ok(())
}

#[test]
fn frozen_parameters_stay_and_names_reach_the_rule() -> Result<()> {
    let e = eager();
    let (x, labels) = batch(&e, "x", 8);
    let mut net = e.model(image_model())?;
    let mut optimizer = Optimizer::new(Recipe::new(AdamW::new(0.01)).freeze("conv2d"));
    let before: Vec<_> = net.states().map(|(name, t)| (name.to_string(), t.clone())).collect();
    step(&mut net, &mut optimizer, &x, &labels)?;
    for ((name, old), (_, new)) in before.iter().zip(net.states()) {
        let same = bits(&[old]) == bits(&[new]);
        assert_eq!(same, name.starts_with("conv2d/"), "{name}");
    }
    let mut wrong = Optimizer::new(Recipe::new(AdamW::new(0.01)).freeze("conv9"));
    let error = step(&mut net, &mut wrong, &x, &labels).unwrap_err().to_string();
    assert!(error.contains("no parameter is named `conv9`"), "{error}");
    Ok(())
}

/// A loop takes the memory of one step, and the update is in place.
#[test]
fn a_loop_over_a_network_takes_no_more_memory() -> Result<()> {
    let e = eager();
    let (x, labels) = batch(&e, "x", 8);
    let (mut net, mut optimizer) = (e.model(image_model())?, Optimizer::new(AdamW::new(0.01)));
    for _ in 0..2 {
        step(&mut net, &mut optimizer, &x, &labels)?;
    }
    let (held, mapped, live) = (e.pool().held, e.pool().mapped, e.memory_report().len());
    for _ in 0..20 {
        step(&mut net, &mut optimizer, &x, &labels)?;
    }
    assert_eq!((e.pool().held, e.memory_report().len()), (held, live));
    assert!(e.pool().mapped <= mapped);
    Ok(())
}

/// More states than bits in a word: all are written over, none is there twice.
#[test]
fn updates_of_many_variables_are_in_place() -> Result<()> {
    let e = eager();
    let deep = (0..40).fold(Sequential::block(), |layers, _| layers.push(Dense::new(256)));
    let x = normal(&e, "x", "f32[2,256]");
    let mut net = e.layer("deep", deep, &x)?;
    let mut optimizer = Optimizer::new(Sgd::new(0.1).momentum(0.9));
    let gradients: Vec<Tensor> =
        net.variables().iter().map(|v| e.zeros(v.ty().clone())).collect::<Result<_>>()?;
    for _ in 0..3 {
        optimizer.apply(&mut net, &gradients)?;
    }
    let (peak, held) = (e.pool().peak, e.pool().held);
    assert!(held > 3 * 40 * 256 * 256 * 4, "parameters, gradients and moments");
    assert!(peak < held + (4 << 20), "{peak} of {held}");
    Ok(())
}

/// Two networks on two devices; names of layers do not tell where backward runs.
#[test]
fn networks_on_two_devices_have_the_gradients_of_one() -> Result<()> {
    let devices = [eager(), eager()];
    let block = |width| Sequential::block().push(Dense::new(width)).push(Relu);
    let gradients = |other: &Eager| -> Result<_> {
        let x = normal(&devices[0], "x", "f32[40,2000]");
        let mut first = devices[0].layer("1", block(500), &x)?;
        let middle = normal(other, "middle", "f32[40,500]");
        let mut second = other.layer("0", block(3), &middle)?;
        let tape = Tape::new();
        let middle = first.call(&x, Mode::Train)?.to(other)?;
        let loss = second.call(&middle, Mode::Train)?.square().sum(&[0, 1], false).get()?;
        let wanted = [first.variables(), second.variables()].concat();
        let found = tape.gradient(&loss, &wanted)?;
        assert!(found.iter().zip(&wanted).all(|(gradient, variable)| gradient.device() == variable.device()));
        Ok(bits(&found.iter().collect::<Vec<_>>()))
    };
    assert_eq!(gradients(&devices[1])?, gradients(&devices[0])?);
    assert!(
        devices[1].pool().peak < 2000 * 500 * 4,
        "the first network's gradients are computed on its device"
    );
    Ok(())
}

/// Checkpoints draw what was dropped again, and keep fewer bytes; second derivatives go through networks.
#[test]
fn checkpoints_and_nested_tapes_work_on_networks() -> Result<()> {
    let e = eager();
    let x = normal(&e, "x", "f32[16,6,6,2]");
    let run = |checkpointed: bool| -> Result<_> {
        let mut net =
            e.layer("net", Sequential::block().push(image_model()).push(Relu).push(Dense::new(3)), &x)?;
        let tape = Tape::new();
        let held = e.pool().held;
        let y = match checkpointed {
            true => checkpoint(|| net.call(&x, Mode::Train))?,
            false => net.call(&x, Mode::Train)?,
        };
        let kept = e.pool().held - held;
        let loss = y.square().sum(&[0, 1], false).get()?;
        let gradients = tape.gradient(&loss, &net.variables())?;
        Ok((bits(&gradients.iter().collect::<Vec<_>>()), states(&net), kept))
    };
    let (kept, again) = (run(false)?, run(true)?);
    assert_eq!((&kept.0, &kept.1), (&again.0, &again.1));
    assert!(again.2 < kept.2 / 2, "{} of {}", again.2, kept.2);

    let x = e.tensor([[0.5f32, 2.0]])?;
    let mut net = e.layer("dense", Dense::new(1), &x)?;
    let x = net.batch(&x);
    let outer = Tape::new();
    let inner = Tape::new();
    inner.watch(&x);
    let y = net.call(&x, Mode::Train)?.square().sum(&[0, 1], false).get()?;
    let slope = inner.gradient(&y, &[&x])?.remove(0); // 2 y w
    let penalty = slope.square().sum(&[0, 1], false).get()?; // 4 y² (w₁² + w₂²)
    let found = outer.gradient(&penalty, &net.variables()[..1])?[0].to_vec::<f32>()?;
    let w = net.variables()[0].to_vec::<f32>()?;
    let (y, squares) = (0.5 * w[0] + 2.0 * w[1], w[0] * w[0] + w[1] * w[1]);
    for (i, x) in [0.5, 2.0].into_iter().enumerate() {
        let wanted = 8.0 * y * x * squares + 8.0 * y * y * w[i];
        assert!((found[i] - wanted).abs() < 1e-4 * wanted.abs().max(1.0), "{found:?}, {wanted}");
    }
    // Through values inside a network, as through the same ops.
    let deep = |by_ops: bool| {
        let block = Sequential::block().push(Dense::new(3)).push(Tanh).push(Dense::new(1));
        let mut net = e.layer("deep", block, &x)?;
        let v: Vec<Tensor> = net.variables().into_iter().cloned().collect();
        let (outer, inner) = (Tape::new(), Tape::new());
        inner.watch(&x);
        v.iter().filter(|_| by_ops).for_each(|v| [&outer, &inner].into_iter().for_each(|tape| tape.watch(v)));
        let y = match by_ops {
            true => ((x.matmul(&v[0]) + &v[1]).tanh().matmul(&v[2]) + &v[3]).get()?,
            false => net.call(&x, Mode::Train)?,
        };
        let slope = inner.gradient(y.square().sum(&[0, 1], false), &[&x])?.remove(0);
        let penalty = slope.square().sum(&[0, 1], false).get()?;
        let found = outer.gradient(&penalty, &v.iter().collect::<Vec<_>>())?;
        found.iter().map(Tensor::to_vec::<f32>).collect::<Result<Vec<_>>>()
    };
    for (found, wanted) in deep(false)?.concat().into_iter().zip(deep(true)?.concat()) {
        assert!((found - wanted).abs() < 1e-5 * wanted.abs().max(0.01), "{found}, {wanted}");
    }
    Ok(())
}

/// A loss by ops, on labels that nobody marked.
#[test]
fn a_loss_by_ops_is_the_models_own() -> Result<()> {
    let e = eager();
    let (x, labels) = batch(&e, "x", 70);
    let weights = e.full(&"f32[70]".parse().unwrap(), 1.0 / 70.0).get()?;
    let run = |own: bool| -> Result<_> {
        let mut net = e.model(image_model())?;
        let tape = Tape::new();
        let loss = match own {
            true => net.loss(&x, &labels)?,
            false => net.call(&x, Mode::Train)?.cross_entropy(&labels, &weights).get()?,
        };
        let gradients = tape.gradient(&loss, &net.variables())?;
        Ok((bits(&[&loss]), bits(&gradients.iter().collect::<Vec<_>>()), states(&net)))
    };
    assert_eq!(run(true)?, run(false)?);
    Ok(())
}

/// Two inputs, and a penalty that is part of the loss.
struct Towers;

impl Model for Towers {
    fn name(&self) -> &str {
        "towers"
    }

    fn inputs(&self) -> Vec<Field> {
        vec![Field::floats([4]), Field::floats([3])]
    }

    fn target(&self) -> Field {
        Field::floats([2])
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        let left = net.scope("left", |net| Dense::new(2).forward(net, inputs[0]))?;
        let right = net.scope("right", |net| {
            let kernel = net.parameter("kernel", [3, 2], plimsoll_graph::Init::Normal(1.0));
            net.penalise(kernel, Penalty { l1: 0.0, l2: 0.5 })?;
            net.linear(inputs[1], kernel, None)
        })?;
        Ok(Head::Outputs(vec![net.add(left, right)?, left]))
    }
}

#[test]
fn models_of_several_inputs_and_outputs_with_penalties() -> Result<()> {
    let e = eager();
    let mut net = e.model(WithLoss::new(Towers, |net: &mut Net, outputs: &[ValueId], target: ValueId| {
        net.math([outputs[0], target], |[y, t]| (y - t).square().sum(&[1], false))
    }))?;
    let (a, b, t) = (normal(&e, "a", "f32[5,4]"), normal(&e, "b", "f32[5,3]"), normal(&e, "t", "f32[5,2]"));
    assert_eq!(net.outputs([&a, &b], Mode::Infer)?.len(), 2);
    assert!(net.penalty().is_none());
    let y = net.call([&a, &b], Mode::Train)?;
    let squares = (&y - net.batch(&t)).square().sum(&[1], false).mean(&[0], false).item()?;
    let penalty = net.penalty().unwrap().item()?;
    let loss = net.loss([&a, &b], &t)?.item()?;
    assert!(penalty > 0.0 && (loss - squares - penalty).abs() < 1e-5, "{loss} {squares} {penalty}");
    Ok(())
}

/// Errors say what to do.
#[test]
fn what_does_not_fit_a_network_is_named() -> Result<()> {
    let e = eager();
    let (x, labels) = batch(&e, "x", 8);
    let mut net = e.model(image_model())?;
    let says = |result: Result<Tensor>, what: &str| {
        let error = result.err().map_or("no error".to_string(), |error| error.to_string());
        assert!(error.contains(what), "{error}");
    };
    let flat = x.reshape([8, 72]).get()?;
    says(net.predict(&flat), "`sequential` takes an input f32[batch,6,6,2], not f32[8,72]: reshape");
    says(net.predict([&x, &x]), "takes 1 inputs, not 2");
    says(net.loss(&x, &flat), "takes targets i32[8], not f32[8,72]");
    says(net.weighted_loss(&x, &labels, &labels), "takes row weights f32[8], not i32[8]");
    let wrong = e.tensor([0, 1, 2, 3, 4, 5, 6, 7])?;
    says(net.loss(&x, &wrong), "5");
    let weighted =
        WithLoss::new(image_model(), CrossEntropy::new().class_weights(vec![1.0, 2.0, 1.0, 1.0, 1.0]));
    says(e.model(weighted)?.loss(&x, &labels), "`weighted_loss`");
    let mut layer = e.layer("dense", Dense::new(3), &flat)?;
    says(layer.loss(&flat, &labels), "`dense` is a layer, which has no loss");
    says(layer.call(&x, Mode::Train), "takes an input f32[batch,72]");

    let other = eager();
    says(net.predict(&x.to(&other)?), "copy one to the other");
    let away = other.model(image_model())?;
    let mut optimizer = Optimizer::new(Sgd::new(0.1));
    let gradients: Vec<Tensor> = away.variables().into_iter().cloned().collect();
    let error = optimizer.apply(&mut net, &gradients).unwrap_err().to_string();
    assert!(error.contains("on one device"), "{error}");
    let error = optimizer.apply(&mut net, &gradients[1..]).unwrap_err().to_string();
    assert!(error.contains("6 variables and 5 gradients"), "{error}");

    // A network that was called before the tape was made.
    let loss = net.loss(&x, &labels)?;
    let tape = Tape::persistent();
    says(tape.gradient(&loss, &net.variables()).map(|mut g| g.remove(0)), "after the tape was made");
    // An input that is watched without a mark.
    tape.watch(&x);
    says(net.loss(&x, &labels), "mark it before, with `network.batch(&tensor)`");
    let marked = net.batch(&normal(&e, "marked", "f32[8,6,6,2]"));
    tape.watch(&marked);
    let loss = net.loss(&marked, &labels)?;
    assert_eq!(tape.gradient(&loss, &[&marked])?[0].shape(), marked.shape());
    Ok(())
}

#[test]
fn what_does_not_fit_a_compiled_step_is_named() -> Result<()> {
    let e = eager();
    let (x, labels) = batch(&e, "x", 8);
    let says = |error: Option<Error>, what: &str| {
        let error = error.map_or("no error".to_string(), |error| error.to_string());
        assert!(error.contains(what), "{error}");
    };
    // A network and an optimizer that the step does not own.
    let captured = std::cell::RefCell::new(e.model(image_model())?);
    let train = move |inputs: &[Tensor]| Ok(vec![captured.borrow_mut().loss(&inputs[0], &inputs[1])?]);
    says(compile(train, &[&x, &labels], MiB(4)).err(), "`compile_step`");
    let optimizer = std::cell::RefCell::new(Optimizer::new(Sgd::new(0.1)));
    let train = move |net: &mut Network, inputs: &[Tensor]| {
        Ok(vec![step(net, &mut optimizer.borrow_mut(), &inputs[0], &inputs[1])?])
    };
    says(compile_step(e.model(image_model())?, train, &[&x, &labels], MiB(4)).err(), "`compile_step`");
    // An input that is changed before it is a batch.
    let scaled =
        |net: &mut Network, inputs: &[Tensor]| Ok(vec![net.loss(&(&inputs[0] * 2.0).get()?, &inputs[1])?]);
    says(
        compile_step(e.model(image_model())?, scaled, &[&x, &labels], MiB(4)).err(),
        "mark the function's inputs before",
    );
    let mut marked = compile_step(e.model(image_model())?, scaled, &[&x.batch(), &labels.batch()], MiB(4))?;
    let mut net = e.model(image_model())?;
    let wanted = net.loss((&x.batch() * 2.0).get()?, &labels.batch())?;
    assert_eq!(bits(&[&marked.run(&[&x.batch(), &labels.batch()])?[0]]), bits(&[&wanted]));
    assert_eq!(states(&net), states(marked.states()?));
    // A state of another device.
    let other = eager().model(image_model())?;
    says(compile_step(other, scaled, &[&x.batch(), &labels.batch()], MiB(4)).err(), "two devices");
    // A run that fails leaves states that nobody should use.
    let train = |(net, optimizer): &mut (Network, Optimizer), inputs: &[Tensor]| {
        Ok(vec![step(net, optimizer, &inputs[0], &inputs[1])?])
    };
    let parts = (e.model(image_model())?, Optimizer::new(Sgd::new(0.1)));
    let mut failing = compile_step(parts, train, &[&x, &labels], MiB(4))?;
    let wrong = e.tensor([0, 1, 2, 3, 4, 5, 6, 7])?;
    assert!(failing.run(&[&x, &wrong]).is_err());
    says(failing.run(&[&x, &labels]).err(), "compile the step again");
    says(failing.states().err(), "compile the step again");
    Ok(())
}

/// Prediction of a network inside a compiled function: its states are captured.
#[test]
fn a_compiled_prediction_captures_its_network() -> Result<()> {
    let e = eager();
    let (x, _) = batch(&e, "x", 8);
    let net = e.model(image_model())?;
    let wanted = net.predict(&x)?;
    let mut compiled = compile(move |inputs| Ok(vec![net.predict(&inputs[0])?]), &[&x], MiB(4))?;
    assert_eq!(bits(&[&compiled.run(&[&x])?[0]]), bits(&[&wanted]));
    Ok(())
}
