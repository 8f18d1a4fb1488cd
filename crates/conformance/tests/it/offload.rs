//! Offload changes no bit on any executor.

use plimsoll_conformance::{executors, long_tests, synthetic, trained_states};
use plimsoll_nn::{AdamW, Model, zoo};
use plimsoll_plan::{Action, Executor, PlanSet};
use plimsoll_runtime::spill::SpillFile;
use plimsoll_train::Trainer;
use std::path::Path;

/// A folder on a disk that a spill file can be in.
fn folder() -> &'static Path {
    let folders = [env!("CARGO_TARGET_TMPDIR"), "/var/tmp"].map(Path::new);
    folders.into_iter().find(|folder| SpillFile::create(folder, 1).is_ok()).expect("a disk with direct I/O")
}

/// Models with their batch size, large enough that offload pays for its buffers. The first has states that are updated in
/// chunks, the last of which is shorter.
fn models() -> [(&'static str, Box<dyn Model>, usize); 2] {
    let gpt = zoo::Gpt {
        layers: 1,
        width: 192,
        heads: 3,
        context: 24,
        vocabulary: 531,
        gpt2: false,
        key_heads: None,
        window: None,
    };
    [("mlp", Box::new(zoo::mlp_of(&[37], &[1025, 1301], 7)), 64), ("gpt", Box::new(gpt), 4)]
}

fn count(plans: &PlanSet, is: fn(&Action) -> bool) -> usize {
    plans.plans.iter().flat_map(|plan| &plan.steps).filter(|step| is(&step.action)).count()
}

#[test]
fn offload_does_not_change_bits() {
    for (entry, (name, model, batch)) in executors().iter().flat_map(|e| models().map(|model| (e, model))) {
        let data = synthetic(&model, 2 * batch + batch / 2, 3, 5);
        let trainer = |executor: Box<dyn Executor>| {
            let model = models().into_iter().find(|(other, ..)| *other == name).map(|(_, model, _)| model);
            Trainer::new(model.expect("its name"), AdamW::new(1e-2))
                .executor(executor)
                .line(usize::MAX)
                .batch(batch)
                .steps(3)
                .seed(9)
        };
        let plain = trained_states(&trainer(entry.on(2)), &data).unwrap();
        let offloading = |checked| trainer(entry.offloading(3, checked, folder()));
        // The floor in `.ci/long`, where the search takes most of the time.
        let line = if long_tests() {
            offloading(false).forecast(&data).floor().unwrap()
        } else {
            offloading(false).plan(&data).unwrap().sheet.total_bytes * 7 / 10
        };
        let plans = offloading(false).computing_line(line).plan(&data).unwrap();
        assert!(count(&plans, |action| matches!(action, Action::Load { .. })) > 0, "{name}: no loads");
        assert!(count(&plans, |action| matches!(action, Action::Store { .. })) > 0, "{name}: no stores");
        let chunked = count(&plans, |action| matches!(action, Action::ChunkedUpdate { .. }));
        assert!(name != "mlp" || chunked > 0, "{name}: no chunked updates");
        for checked in [false, true] {
            let found = trained_states(&offloading(checked).computing_line(line), &data).unwrap();
            assert!(found == plain, "{name} on {}, checked {checked}: offload changed states", entry.name);
        }
    }
}
