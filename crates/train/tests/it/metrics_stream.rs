//! Metrics under any batching, order and bad rows.

use plimsoll_train::metrics::{self, Auc, Metric, MetricSpec, Outputs, Rows, Targets};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Every metric of classes.
const OF_CLASSES: [&str; 12] = [
    "accuracy",
    "top2",
    "precision/classes",
    "recall/classes",
    "f1/classes",
    "iou/classes",
    "dice/classes",
    "confusion",
    "auc/classes:16",
    "auc",
    "loss",
    "perplexity",
];

/// Every metric of values.
const OF_VALUES: [&str; 3] = ["mse", "mae", "cosine"];

#[derive(Clone, Debug)]
struct Data {
    width: usize,
    scores: Vec<f32>,
    targets: Vec<f32>,
    labels: Vec<i32>,
    weights: Vec<f32>,
}

impl Data {
    fn rows(&self, from: usize, to: usize, of_values: bool) -> Rows<'_> {
        let outputs =
            Outputs::Scores { values: &self.scores[from * self.width..to * self.width], width: self.width };
        let targets = match of_values {
            true => Targets::Values(&self.targets[from * self.width..to * self.width]),
            false => Targets::Classes(&self.labels[from..to]),
        };
        Rows::new(outputs, targets, &self.weights[from..to]).unwrap()
    }

    /// The rows in reverse order.
    fn reversed(&self) -> Self {
        let reverse_rows = |values: &[f32]| values.chunks(self.width).rev().flatten().copied().collect();
        Self {
            width: self.width,
            scores: reverse_rows(&self.scores),
            targets: reverse_rows(&self.targets),
            labels: self.labels.iter().rev().copied().collect(),
            weights: self.weights.iter().rev().copied().collect(),
        }
    }

    /// Figures of all rows, split into batches at the given rows.
    fn figures(&self, name: &str, cuts: &[usize]) -> Vec<(String, f64)> {
        let mut metric = metrics::from_name(name, self.width).unwrap();
        let of_values = OF_VALUES.contains(&name);
        let mut from = 0;
        for &to in cuts.iter().chain([&self.labels.len()]) {
            metric.update(&self.rows(from, to, of_values)).unwrap();
            from = to;
        }
        metrics::figures(metric.as_ref())
    }
}

fn bits(figures: &[(String, f64)]) -> Vec<u64> {
    figures.iter().map(|(_, value)| value.to_bits()).collect()
}

/// Up to 40 rows of two to five classes, ties included; weights are whole, or thirds.
fn data(whole: bool) -> impl Strategy<Value = Data> {
    (2usize..6, 0usize..40).prop_flat_map(move |(width, rows)| {
        let score = prop_oneof![-8i8..8, Just(0i8)].prop_map(|score| f32::from(score) / 3.0);
        let weight = (0u8..4).prop_map(move |weight| f32::from(weight) / if whole { 1.0 } else { 3.0 });
        let labels = prop::collection::vec(0..width as i32, rows);
        let scores = prop::collection::vec(score.clone(), rows * width);
        let targets = prop::collection::vec(score, rows * width);
        let weights = prop::collection::vec(weight, rows);
        (scores, targets, labels, weights).prop_map(move |(scores, targets, labels, weights)| Data {
            width,
            scores,
            targets,
            labels,
            weights,
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..ProptestConfig::default() })]

    #[test]
    fn batching_changes_no_bit(data in data(false), cuts in prop::collection::vec(0usize..40, 0..8)) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(data.labels.len())).collect();
        cuts.sort_unstable();
        for name in OF_CLASSES.iter().chain(&OF_VALUES) {
            let (whole, cut) = (data.figures(name, &[]), data.figures(name, &cuts));
            prop_assert_eq!(bits(&whole), bits(&cut), "{} {:?} {:?}", name, whole, cut);
        }
    }

    /// Counts are exact; a sum of n terms in any order is within n · 2⁻⁵³ of the exact one, plus a few roundings.
    #[test]
    fn order_changes_no_count(data in data(true)) {
        let reversed = data.reversed();
        for name in OF_CLASSES.iter().chain(&OF_VALUES) {
            let (one, other) = (data.figures(name, &[]), reversed.figures(name, &[]));
            if !["loss", "perplexity", "mse", "mae", "cosine"].contains(name) {
                prop_assert_eq!(bits(&one), bits(&other), "{} {:?} {:?}", name, one, other);
                continue;
            }
            for ((_, one), (_, other)) in one.iter().zip(&other) {
                let bound = (2 * data.labels.len() + 4) as f64 * f64::EPSILON / 2.0;
                // The terms' magnitudes: cosines are at most 1, a perplexity's exponent at most 8.
                let scale = if *name == "cosine" { 1.0 } else { 8.0 * one.abs() };
                prop_assert!((one - other).abs() <= bound * scale || one.is_nan(), "{} {} {}", name, one, other);
            }
        }
    }

    #[test]
    fn auc_is_within_the_reported_error(
        rows in prop::collection::vec((-40i8..40, any::<bool>(), 0u8..4), 0..60),
        bins in 1usize..40,
    ) {
        let scores: Vec<f32> = rows.iter().map(|row| f32::from(row.0) / 7.0).collect();
        let labels: Vec<i32> = rows.iter().map(|row| i32::from(row.1)).collect();
        let weights: Vec<f32> = rows.iter().map(|row| f32::from(row.2) / 4.0).collect();
        let mut auc = Auc::new(2, bins).unwrap();
        let outputs = Outputs::Scores { values: &scores, width: 1 };
        auc.update(&Rows::new(outputs, Targets::Classes(&labels), &weights).unwrap()).unwrap();
        let exact = exact_area(&scores, &labels, &weights);
        prop_assert_eq!(exact.is_nan(), auc.value().is_nan());
        if !exact.is_nan() {
            prop_assert!((auc.value() - exact).abs() <= auc.error() + 1e-12, "{} {}", auc.value(), exact);
            prop_assert!(auc.error() <= 0.5);
        }
    }

    #[test]
    fn reset_restores_the_initial_figures(data in data(false)) {
        for name in OF_CLASSES.iter().chain(&OF_VALUES) {
            let mut metric = metrics::from_name(name, data.width).unwrap();
            let fresh = bits(&metrics::figures(metric.as_ref()));
            metric.update(&data.rows(0, data.labels.len(), OF_VALUES.contains(name))).unwrap();
            metric.reset();
            prop_assert_eq!(fresh, bits(&metrics::figures(metric.as_ref())), "{}", name);
        }
    }
}

/// The area by counting pairs.
fn exact_area(scores: &[f32], labels: &[i32], weights: &[f32]) -> f64 {
    let rows = |label| (0..scores.len()).filter(move |&row| labels[row] == label);
    let (mut right, mut pairs) = (0.0, 0.0);
    for (positive, negative) in rows(1).flat_map(|positive| rows(0).map(move |negative| (positive, negative)))
    {
        let weight = f64::from(weights[positive]) * f64::from(weights[negative]);
        pairs += weight;
        right += weight
            * match scores[positive].total_cmp(&scores[negative]) {
                std::cmp::Ordering::Less => 0.0,
                std::cmp::Ordering::Equal => 0.5,
                std::cmp::Ordering::Greater => 1.0,
            };
    }
    if pairs == 0.0 { f64::NAN } else { right / pairs }
}

#[test]
fn auc_error_bound_is_tight() {
    let mut auc = Auc::new(2, 1).unwrap();
    let outputs = Outputs::Scores { values: &[-1.0, 1.0], width: 1 };
    auc.update(&Rows::new(outputs, Targets::Classes(&[0, 1]), &[]).unwrap()).unwrap();
    assert_eq!((auc.value(), auc.error()), (0.5, 0.5));
}

#[test]
fn infinite_scores_rank_first_and_last() {
    let mut auc = Auc::new(2, 8).unwrap();
    let outputs = Outputs::Scores { values: &[f32::NEG_INFINITY, 0.0, f32::INFINITY], width: 1 };
    auc.update(&Rows::new(outputs, Targets::Classes(&[0, 0, 1]), &[]).unwrap()).unwrap();
    assert_eq!((auc.value(), auc.error()), (1.0, 0.0));
    let mut auc = Auc::new(3, Auc::BINS).unwrap();
    let hidden = f32::NEG_INFINITY;
    let values = [1.0, hidden, hidden, 5.0, 0.0, 0.0, 0.0, hidden, 0.0];
    let outputs = Outputs::Scores { values: &values, width: 3 };
    auc.update(&Rows::new(outputs, Targets::Classes(&[0, 2, 2]), &[]).unwrap()).unwrap();
    assert_eq!(auc.class(0), (1.0, 0.0));
}

#[test]
fn without_rows_figures_are_nan_and_counts_zero() {
    for name in OF_CLASSES.iter().chain(&OF_VALUES) {
        let metric = metrics::from_name(name, 3).unwrap();
        for (figure, value) in metrics::figures(metric.as_ref()) {
            assert!(if *name == "confusion" { value == 0.0 } else { value.is_nan() }, "{figure}: {value}");
        }
    }
}

#[test]
fn invalid_rows_are_refused() {
    let scores = |values, width| Outputs::Scores { values, width };
    let check = |outputs, targets, weights: &[f32], message: &str| {
        let error = Rows::new(outputs, targets, weights).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    };
    let labels = Targets::Classes(&[0, 1]);
    check(scores(&[1.0; 5], 2), labels, &[], "scores: 5 elements were given, 4");
    check(scores(&[1.0; 5], 0), labels, &[], "scores: 5 elements were given, 0");
    check(scores(&[1.0; 6], 2), labels, &[], "labels: 2 elements were given, 3");
    check(scores(&[1.0; 4], 2), labels, &[1.0], "weights: 1 elements were given, 2");
    check(scores(&[1.0; 4], 2), Targets::Values(&[1.0; 2]), &[], "target values: 2 elements were given, 4");
    check(Outputs::Classes(&[1]), Targets::Values(&[1.0]), &[], "target values: 1 elements were given, 0");
    check(scores(&[1.0, f32::NAN], 1), labels, &[], "a score of row 1 is NaN");
    check(scores(&[1.0], 1), Targets::Values(&[f32::NAN]), &[], "a target of row 0 is NaN");
    check(scores(&[1.0; 2], 1), labels, &[1.0, -1.0], "the weight of row 1 is -1");
    check(scores(&[1.0; 2], 1), labels, &[f32::INFINITY, 1.0], "the weight of row 0 is inf");
}

#[test]
fn one_hot_labels_count_as_their_classes() {
    let scores = [0.1f32, 2.0, -1.0, 0.5, 0.4, 0.9, -3.0, -2.0, 0.0, 1.0, 0.0, 1.0];
    let labels = [1, 0, 2, 2];
    let one_hot: Vec<f32> = labels
        .iter()
        .flat_map(|label| (0..3).map(move |class| f32::from(u8::from(class == *label))))
        .collect();
    let outputs = Outputs::Scores { values: &scores, width: 3 };
    for name in ["accuracy", "top2", "f1", "confusion", "auc"] {
        let figures = |targets| {
            let mut metric = metrics::from_name(name, 3).unwrap();
            metric.update(&Rows::new(outputs, targets, &[]).unwrap()).unwrap();
            bits(&metrics::figures(metric.as_ref()))
        };
        assert_eq!(figures(Targets::Values(&one_hot)), figures(Targets::Classes(&labels)), "{name}");
    }
    // A single score against a single value.
    let mut accuracy = metrics::from_name("accuracy", 2).unwrap();
    let outputs = Outputs::Scores { values: &[1.0, -1.0, 1.0, 1.0], width: 1 };
    accuracy.update(&Rows::new(outputs, Targets::Values(&[1.0, 0.0, 0.0, 0.9]), &[]).unwrap()).unwrap();
    assert_eq!(metrics::figures(accuracy.as_ref())[0].1, 0.75);
}

#[test]
fn a_refused_batch_changes_nothing() {
    let infinite = [0.0, 1.0, 2.0, f32::INFINITY, 0.0, 0.0];
    let ones = Outputs::Scores { values: &[1.0; 6], width: 3 };
    let check = |names: &[&str], outputs, targets, message: &str| {
        for name in names {
            let mut metric = metrics::from_name(name, 3).unwrap();
            let before = bits(&metrics::figures(metric.as_ref()));
            let error = metric.update(&Rows::new(outputs, targets, &[]).unwrap()).unwrap_err().to_string();
            assert!(error.contains(message), "{name}: {error}");
            assert_eq!(before, bits(&metrics::figures(metric.as_ref())), "{name}");
        }
    };
    check(&OF_CLASSES, ones, Targets::Classes(&[0, 3]), "label 3 of row 1 is not in 0..3");
    check(&OF_CLASSES, ones, Targets::Classes(&[0, -1]), "label -1 of row 1 is not in 0..3");
    check(&["loss", "perplexity"], ones, Targets::Values(&[0.0; 6]), "needs labels");
    let wide = Outputs::Scores { values: &[1.0; 8], width: 4 };
    check(&OF_CLASSES, wide, Targets::Classes(&[0, 1]), "cannot be computed from rows of 4 scores");
    check(&OF_VALUES, ones, Targets::Classes(&[0, 1]), "needs values");
    let predicted = Outputs::Classes(&[0, 3]);
    check(
        &["accuracy", "f1", "confusion"],
        predicted,
        Targets::Classes(&[0, 1]),
        "predicted class 3 of row 1",
    );
    check(&["top2", "auc"], predicted, Targets::Classes(&[0, 1]), "needs scores");
    check(&["loss", "perplexity"], predicted, Targets::Classes(&[0, 1]), "needs losses");
    check(&["accuracy", "auc"], Outputs::Losses(&[1.0; 2]), Targets::Classes(&[0, 1]), "needs scores");
    check(&["loss"], Outputs::Losses(&[1.0, f32::NEG_INFINITY]), Targets::None, "a loss of row 1 is -inf");
    let infinite = Outputs::Scores { values: &infinite, width: 3 };
    check(&["auc", "loss"], infinite, Targets::Classes(&[0, 1]), "the highest score of row 1 is inf");
    check(&OF_VALUES, infinite, Targets::Values(&[0.0; 6]), "a value of row 1 is inf");
}

#[test]
fn names_parse_and_print() {
    for name in
        ["accuracy", "accuracy:0.5", "top5", "f1", "iou/classes", "recall/classes:-1.5", "auc/classes:64"]
    {
        assert_eq!(name.parse::<MetricSpec>().unwrap().to_string(), name);
    }
    assert_eq!("auc".parse(), Ok(MetricSpec::Auc { bins: Auc::BINS, each: false }));
    for name in [
        "",
        "top",
        "topk",
        "top5:1",
        "loss/classes",
        "f1:x",
        "f1:inf",
        "auc:-1",
        "mse:1",
        "confusion/classes",
    ] {
        let error = name.parse::<MetricSpec>().unwrap_err().to_string();
        assert!(error.contains(&format!("`{name}`")) && error.contains("perplexity"), "{error}");
    }
    for (name, classes, message) in [
        ("top5", 4, "k is 5, and must be in 1..=4"),
        ("top0", 4, "k is 0"),
        ("f1:0.5", 3, "a threshold is for two classes, and there are 3"),
        ("auc", 1, "two classes"),
        ("auc:0", 2, "one bin"),
        ("confusion", usize::MAX, "more memory"),
        ("f1", usize::MAX, "more memory"),
        ("auc", usize::MAX, "more memory"),
        ("confusion", 1 << 30, "more memory"),
    ] {
        let error = metrics::from_name(name, classes).err().unwrap().to_string();
        assert!(error.contains(message), "{name}: {error}");
    }
}
