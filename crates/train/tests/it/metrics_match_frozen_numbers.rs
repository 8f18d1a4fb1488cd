//! Metrics match scikit-learn's figures (`scripts/freeze_metrics.py`).

use plimsoll_train::metrics::{self, Metric, Outputs, Rows, Targets};
use serde_json::Value;

const GOLDEN: &str = include_str!("../../golden/metrics.json");

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

/// A case's figures of the metric of a name.
fn figures(case: &Value, name: &str) -> Vec<(String, f64)> {
    let integer = |key: &str| case[key].as_u64().unwrap() as usize;
    let (scores, weights) = (numbers(&case["scores"]), numbers(&case["weights"]));
    let labels: Vec<i32> = match &case["labels"] {
        Value::Null => Vec::new(),
        labels => numbers(labels).iter().map(|&label| label as i32).collect(),
    };
    let values = if labels.is_empty() { numbers(&case["targets"]) } else { Vec::new() };
    let targets = if labels.is_empty() { Targets::Values(&values) } else { Targets::Classes(&labels) };
    let mut metric = metrics::from_name(name, integer("classes")).unwrap();
    let outputs = Outputs::Scores { values: &scores, width: integer("width") };
    metric.update(&Rows::new(outputs, targets, &weights).unwrap()).unwrap();
    metrics::figures(metric.as_ref())
}

/// Calls `check` with metric, figure, value found and value frozen (NaN if there is none).
fn each_figure(check: impl Fn(&Value, &str, &str, f64, f64)) {
    let cases: Value = serde_json::from_str(GOLDEN).unwrap();
    for case in cases.as_array().unwrap() {
        for (metric, frozen) in case["figures"].as_object().unwrap() {
            let mut found = figures(case, metric);
            found.retain(|(figure, _)| figure != "auc/error");
            assert_eq!(found.len(), frozen.as_object().unwrap().len(), "{metric} of {}", case["name"]);
            for (figure, value) in found {
                check(case, metric, &figure, value, frozen[&figure].as_f64().unwrap_or(f64::NAN));
            }
        }
    }
}

#[test]
fn figures_match_scikit_learn() {
    each_figure(|case, metric, figure, found, frozen| {
        let near =
            (found - frozen).abs() <= 1e-13 * frozen.abs().max(1.0) || found.is_nan() && frozen.is_nan();
        assert!(near || metric.starts_with("auc/"), "{figure} of {}: {found}, not {frozen}", case["name"]);
    });
}

/// Single logits fall into separate bins with the default number, the log-odds of many classes with enough bins.
#[test]
fn auc_is_exact_where_scores_fall_into_separate_bins() {
    each_figure(|case, metric, figure, _, frozen| {
        if metric == "auc/classes" {
            let fine = figures(case, "auc/classes:65536");
            let found = fine.iter().find(|(name, _)| name == figure).unwrap().1;
            let near = (found - frozen).abs() <= 1e-13 || found.is_nan() && frozen.is_nan();
            assert!(near, "{figure} of {}: {found}, not {frozen}", case["name"]);
        }
    });
}

#[test]
fn auc_of_few_bins_is_within_the_reported_error() {
    for bins in [1, 2, 5, 16, 64, 2048] {
        each_figure(|case, metric, figure, _, frozen| {
            if figure == "auc" || figure == "auc/macro" {
                let reported = figures(case, &format!("{}:{bins}", metric));
                let value = |name: &str| reported.iter().find(|(figure, _)| figure == name).unwrap().1;
                let (off, error) = ((value(figure) - frozen).abs(), value("auc/error"));
                assert!(off <= error + 1e-13, "{figure} of {}, {bins} bins: off by {off}", case["name"]);
                assert!(bins != 2048 || error < 0.05, "{figure} of {}: {error}", case["name"]);
            }
        });
    }
}

/// Classes that the model predicted give the same figures as its scores.
#[test]
fn predicted_classes_count_like_their_scores() {
    let scores = [0.0, 1.0, 0.5, 2.0, -1.0, 2.0, 0.1, 0.2, f32::INFINITY];
    let rows = |outputs| Rows::new(outputs, Targets::Classes(&[1, 2, 2]), &[1.0, 0.5, 2.0]).unwrap();
    for name in ["accuracy", "precision/classes", "recall/classes", "iou/classes", "confusion"] {
        let figures_of = |outputs| {
            let mut metric = metrics::from_name(name, 3).unwrap();
            metric.update(&rows(outputs)).unwrap();
            metrics::figures(metric.as_ref())
        };
        let scored = figures_of(Outputs::Scores { values: &scores, width: 3 });
        assert_eq!(scored, figures_of(Outputs::Classes(&[1, 0, 2])), "{name}");
    }
}

#[test]
fn first_of_equal_scores_ranks_highest() {
    let outputs = Outputs::Scores { values: &[1.0, 2.0, 2.0, 2.0], width: 4 };
    for (label, expected) in [(0, [0.0, 0.0, 0.0]), (1, [1.0; 3]), (2, [0.0, 1.0, 1.0]), (3, [0.0, 0.0, 1.0])]
    {
        for (name, expected) in ["accuracy", "top2", "top3"].into_iter().zip(expected) {
            let mut metric = metrics::from_name(name, 4).unwrap();
            metric.update(&Rows::new(outputs, Targets::Classes(&[label]), &[]).unwrap()).unwrap();
            assert_eq!(metrics::figures(metric.as_ref())[0].1, expected, "{name} of {label}");
        }
    }
}

/// A threshold over two scores applies to the second minus the first.
#[test]
fn two_scores_count_like_their_difference() {
    let (single, labels) = ([0.5f32, -0.25, 0.25, 1.0, 0.0], [1, 0, 0, 1, 1]);
    let pairs: Vec<f32> = single.iter().flat_map(|score| [0.125, score + 0.125]).collect();
    for name in ["accuracy:0.25", "f1:0.25", "recall:1", "auc", "loss"] {
        let figures_of = |values: &[f32], width| {
            let mut metric = metrics::from_name(name, 2).unwrap();
            let outputs = Outputs::Scores { values, width };
            metric.update(&Rows::new(outputs, Targets::Classes(&labels), &[]).unwrap()).unwrap();
            metrics::figures(metric.as_ref())
        };
        for (one, two) in figures_of(&single, 1).iter().zip(figures_of(&pairs, 2)) {
            assert!((one.1 - two.1).abs() < 1e-15, "{one:?} and {two:?}");
        }
    }
}

#[test]
fn losses_are_averaged_with_their_weights() {
    let mut loss = metrics::Loss::new(metrics::LossFigure::Mean, 0);
    let losses = Rows::new(Outputs::Losses(&[1.0, f32::NAN, 4.0]), Targets::None, &[1.0, 0.0, 1.0]).unwrap();
    loss.update(&losses).unwrap();
    loss.update(&Rows::new(Outputs::Losses(&[0.25]), Targets::None, &[8.0]).unwrap()).unwrap();
    assert_eq!(loss.value(), 0.7);
}
