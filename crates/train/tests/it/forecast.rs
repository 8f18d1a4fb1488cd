//! Forecasts: floor, curve, lower bound and naive activation bytes of a run.

use crate::support;

use plimsoll_nn::{AdamW, Sequential};
use plimsoll_plan::NullExecutor;
use plimsoll_train::{TrainError, Trainer, tally};
use support::{data, deep};

fn model() -> Sequential {
    deep(8)
}

fn trainer() -> Trainer {
    Trainer::new(model(), AdamW::new(1e-3))
        .executor(NullExecutor::default())
        .line(usize::MAX)
        .batch(64)
        .micro_batches(1)
}

/// Backward reads each tanh's output (for the products and tanh's own derivative), the softmax sum, and constants.
#[test]
fn naive_activations_match_a_count_by_hand() {
    let data = data(&model());
    let trainer = trainer();
    let found = trainer.forecast(&data).naive_activation_bytes().unwrap();
    let tanh = 8 * 64 * 40 * 4;
    assert!(found > tanh && found < tanh + 64 * (5 + 4) * 4, "{found}, tanh alone {tanh}");
}

#[test]
fn floor_curve_and_lower_bound_agree() -> Result<(), TrainError> {
    let data = data(&model());
    let trainer = trainer();
    let mut forecast = trainer.forecast(&data);
    let floor = forecast.floor()?;
    let curve = forecast.curve(4)?;
    assert!(curve.len() >= 2, "{}", curve.len());
    assert_eq!(curve.last().map(|p| p.sheet.line_bytes), Some(floor));
    for plans in &curve {
        let (sheet, first) = (&plans.sheet, &plans.plans[0]);
        let extra_ns = first.nanoseconds - sheet.unlimited_ns;
        assert!(sheet.total_bytes <= sheet.line_bytes);
        assert!(
            forecast.least_rematerialization(sheet.line_bytes)? <= extra_ns,
            "{} bytes",
            sheet.line_bytes
        );
        let tally = tally(plans);
        assert_eq!((tally.recomputed > 0, tally.recomputed_bytes > 0), (extra_ns > 0, extra_ns > 0));
        assert!(tally.fragmentation >= 0.0 && tally.offloaded == Default::default());
    }
    assert!(forecast.least_rematerialization(floor)? > 0);
    let kept = |i: usize| tally(&curve[i]).kept;
    assert!(kept(curve.len() - 1) < kept(0), "rematerialized values are not kept");
    Ok(())
}
