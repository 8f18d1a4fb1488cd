//! Descriptions of real plans, the page that is made of them, and what is told of their tensors.

use plimsoll_data::{Dataset, Synthetic, SyntheticSpec};
use plimsoll_nn::zoo::Gpt;
use plimsoll_nn::{Activation, AdamW, Dense, Model, Sequential, zoo};
use plimsoll_plan::{NullExecutor, Tiers};
use plimsoll_report::{Kind, View, describe, page, why};
use plimsoll_train::{BatchKind, Trainer, TrainingPlan};

fn data(model: &dyn Model) -> Dataset {
    let spec = SyntheticSpec { inputs: model.inputs(), label: model.target() };
    let source = |part| Box::new(Synthetic::new(spec.clone(), 640, 3, part).unwrap());
    Dataset::new("synthetic", source(0), source(1))
}

fn trainer(model: impl Model + 'static, batch: usize) -> Trainer {
    let kinds = [BatchKind::Train, BatchKind::Evaluate];
    let trainer = Trainer::new(model, AdamW::new(1e-3)).executor(NullExecutor::default());
    trainer.line(usize::MAX).batch(batch).heap(1 << 16).kinds(&kinds)
}

fn view(plans: &TrainingPlan) -> View {
    let times: Vec<_> = (0..plans.plans.len()).map(|plan| plans.step_times(plan).unwrap()).collect();
    describe("a model", plans, &times)
}

/// Dense layers, of which some have names that a page must not obey.
fn deep(layers: usize, hostile: &[&str]) -> Sequential {
    let mut model = Sequential::classifier([24], 5).named("deep");
    for i in 0..layers {
        let name = hostile.get(i).map_or_else(|| format!("dense{i}"), |name| (*name).to_string());
        model = model.layer(name, Dense::new(40)).layer(format!("tanh{i}"), Activation::Tanh);
    }
    model.layer("head", Dense::new(5))
}

/// What is held at every step, added up here again, tensor by tensor.
fn most_held(view: &View, plan: usize) -> u64 {
    let t = &view.plans[plan].tensors;
    let steps = view.plans[plan].steps.layer.len() as u32;
    let at = |step: u32| {
        let live = (0..t.len()).filter(|&i| t.first[i] <= step && step <= t.last[i]);
        live.map(|i| t.footprint[i]).sum::<u64>()
    };
    (0..steps).map(at).max().unwrap_or(0)
}

/// Checks a view against its plans, and the other way round.
fn check(what: &str, plans: &TrainingPlan) -> View {
    let view = view(plans);
    let outside = view.spaces[0].outside_bytes();
    let tops: Vec<u64> =
        (0..view.plans.len()).map(|i| outside + most_held(&view, i) + view.plans[i].gap_bytes).collect();
    assert_eq!(tops.iter().max(), Some(&(plans.sheet.total_bytes as u64)), "{what}");
    for (plan, seen) in plans.plans.iter().zip(&view.plans) {
        let what = format!("{what}, {}", plan.name);
        assert_eq!(
            seen.gap_bytes + seen.held_bytes()[seen.peak_step as usize],
            plan.peak_bytes as u64,
            "{what}"
        );
        assert_eq!(seen.steps.layer.len(), plan.steps.len(), "{what}");
        let again = seen.steps.again.iter().filter(|again| **again == 1).count();
        assert_eq!(again, plan.rematerialized().count(), "{what}");
        // No two tensors hold the same byte at the same time.
        let t = &seen.tensors;
        for step in (0..plan.steps.len() as u32).step_by(1 + plan.steps.len() / 50) {
            let mut live: Vec<usize> =
                (0..t.len()).filter(|&i| t.first[i] <= step && step <= t.last[i]).collect();
            live.sort_by_key(|&i| t.offset[i]);
            for pair in live.windows(2) {
                assert!(t.offset[pair[0]] + t.bytes[pair[0]] <= t.offset[pair[1]], "{what}, step {step}");
            }
        }
        let of = |kind: Kind| {
            (0..t.len()).filter(move |&i| t.kind[i] == kind as u8).map(|i| t.bytes[i]).sum::<u64>()
        };
        let states: usize = plans.states.iter().map(|state| state.arena_range().len()).sum();
        assert_eq!(of(Kind::Parameter) + of(Kind::Optimizer) + of(Kind::Statistic), states as u64, "{what}");
        assert_eq!(of(Kind::Rematerialized) > 0, again > 0, "{what}");
    }
    let text = serde_json::to_string(&view).unwrap();
    assert_eq!(View::read(&text).unwrap(), view, "{what}");
    view
}

#[test]
fn the_timeline_reaches_the_planned_peak_for_models_and_lines() {
    let gpt = Gpt {
        layers: 2,
        width: 32,
        heads: 2,
        context: 32,
        vocabulary: 64,
        gpt2: false,
        key_heads: None,
        window: None,
    };
    let runs = [
        ("lenet", trainer(zoo::lenet(), 64), data(&zoo::lenet())),
        ("resnet20", trainer(zoo::resnet20(), 16), data(&zoo::resnet20())),
        ("gpt", trainer(gpt, 16), data(&gpt)),
        ("deep", trainer(deep(8, &[]), 64).micro_batches(1), data(&deep(8, &[]))),
    ];
    let mut rematerialized = 0;
    for (name, trainer, data) in runs {
        let mut forecast = trainer.forecast(&data);
        let whole = forecast.plan(usize::MAX).unwrap();
        let view = check(&format!("{name} without a line"), &whole);
        assert_eq!(view.spaces[0].line_bytes, None);
        assert!(view.plans[0].tensors.kind.contains(&(Kind::Saved as u8)), "{name}");
        assert!(view.plans[0].tensors.kind.contains(&(Kind::Gradient as u8)), "{name}");
        assert!(!view.plans.last().unwrap().tensors.kind.contains(&(Kind::Gradient as u8)), "{name}");
        let floor = forecast.floor().unwrap();
        for line in [floor, floor + (whole.sheet.total_bytes - floor) / 2] {
            let plans = forecast.plan(line).unwrap();
            let view = check(&format!("{name} under {line}"), &plans);
            assert_eq!(view.spaces[0].line_bytes, Some(line as u64));
            rematerialized += view.plans[0].steps.again.iter().filter(|again| **again == 1).count();
            // Steps are one after the other, and end when the step does.
            let steps = &view.plans[0].steps;
            let sum: u64 = steps.end_ns.iter().zip(&steps.start_ns).map(|(end, start)| end - start).sum();
            assert_eq!(steps.end_ns.last(), Some(&sum), "{name}");
        }
    }
    assert!(rematerialized > 0, "the lines are low enough for rematerialization");
}

#[test]
fn hostile_names_cannot_leave_their_place_in_the_page() {
    let names = [
        "</script><script>alert(1)</script>",
        "<!--<script>",
        "]]><img src=x onerror=alert(1)>",
        "\u{2028}alert(1)\u{2029}",
        "\"};alert(1);//",
        "@TITLE@",
    ];
    let model = deep(8, &names);
    let plans = trainer(deep(8, &names), 64).plan(&data(&model)).unwrap();
    let times = [plans.step_times(0).unwrap(), plans.step_times(1).unwrap()];
    let view = describe("</title><script>alert(1)</script>", &plans, &times);
    let text = page(&view);
    // The end of the data, and of the code.
    assert_eq!(text.matches("</script").count(), 2);
    assert_eq!(text.matches("<script").count(), 2);
    assert_eq!(text.matches("</title").count(), 1);
    assert!(!text.contains("<img") && !text.contains("<!--"), "marks of HTML in names");
    assert!(!text.contains(['\u{2028}', '\u{2029}']));
    // The data is what went in.
    let start = text.find("id=\"data\">").unwrap() + "id=\"data\">".len();
    let json = &text[start..start + text[start..].find("</script>").unwrap()];
    assert_eq!(View::read(json).unwrap(), view);
    let layers = &view.plans[0].layers;
    assert!(names.iter().all(|name| layers.iter().any(|layer| layer.contains(name))), "{layers:?}");
    // Nothing is loaded, whatever a name says.
    assert!(text.contains("default-src 'none'") && text.contains("connect-src 'none'"));
}

#[test]
fn damaged_descriptions_are_refused() {
    let plans = trainer(deep(2, &[]), 64).plan(&data(&deep(2, &[]))).unwrap();
    let whole = view(&plans);
    type Damage = fn(&mut View);
    let damages: [Damage; 10] = [
        |view| view.version = 99,
        |view| view.spaces.clear(),
        |view| view.plans[0].steps.layer[0] = u32::MAX,
        |view| view.plans[0].steps.what.push(0),
        |view| view.plans[0].tensors.kind[0] = 200,
        |view| view.plans[0].tensors.last[0] = u32::MAX,
        |view| view.plans[0].tensors.first[0] = u32::MAX,
        |view| view.plans[0].peak_step = u32::MAX,
        |view| view.plans[0].space = 1,
        |view| view.plans[0].measured_ns = vec![Some(1)],
    ];
    for (i, damage) in damages.into_iter().enumerate() {
        let mut damaged = whole.clone();
        damage(&mut damaged);
        assert!(View::read(&serde_json::to_string(&damaged).unwrap()).is_err(), "damage {i}");
    }
    for text in ["", "{", "[]", "null", "{\"version\":1}"] {
        assert!(View::read(text).is_err(), "{text}");
    }
}

#[test]
fn why_tells_what_is_kept_and_computed_again_and_what_else_it_would_cost() {
    // Without an account of the heap: a search that might pass the line is not begun.
    let trainer = Trainer::new(deep(8, &[]), AdamW::new(1e-3)).executor(NullExecutor::default());
    let trainer = trainer.line(usize::MAX).batch(64).micro_batches(1);
    let mut forecast = trainer.forecast(&data(&deep(8, &[])));
    let whole = forecast.plan(usize::MAX).unwrap();
    let told = why(&whole, &view(&whole), &Tiers::default(), "tanh3").unwrap();
    assert!(
        told.contains("saved activations") && told.contains("It is kept, because backward reads it"),
        "{told}"
    );
    let told = why(&whole, &view(&whole), &Tiers::default(), "dense3/kernel").unwrap();
    assert!(told.contains("parameters") && told.contains("It stays in memory"), "{told}");
    let floor = forecast.floor().unwrap();
    let low = forecast.plan(floor).unwrap();
    let seen = view(&low);
    let t = &seen.plans[0].tensors;
    let again = (0..t.len()).find(|&i| t.kind[i] == Kind::Rematerialized as u8).unwrap();
    let layer = &seen.plans[0].layers[t.layer[again] as usize];
    let told = why(&low, &seen, &Tiers::default(), layer).unwrap();
    assert!(
        told.contains("It is computed again in step") && told.contains("instead, it would hold"),
        "{told}"
    );
    let unknown = why(&whole, &view(&whole), &Tiers::default(), "tahn3").unwrap_err();
    assert!(unknown.near.contains(&"tanh3".to_string()), "{unknown}");
    assert!(why(&whole, &view(&whole), &Tiers::default(), "").is_err());
}
