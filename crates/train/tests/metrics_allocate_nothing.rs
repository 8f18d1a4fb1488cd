//! A metric takes the bytes it states, and allocates nothing after its creation.

use plimsoll_testing::CountingAllocator;
use plimsoll_train::metrics::{MetricSpec, Outputs, Rows, Targets};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// The only test of this binary, because allocations of a concurrent one would be counted.
#[test]
fn metrics_take_the_bytes_they_state_and_no_more() {
    let scores: Vec<f32> = (0..70).map(|i| (i * 37 % 11) as f32).collect();
    let labels: Vec<i32> = (0..10).map(|i| i % 7).collect();
    let outputs = Outputs::Scores { values: &scores, width: 7 };
    let names = [
        "accuracy",
        "top5",
        "precision",
        "recall",
        "f1/classes",
        "iou",
        "dice",
        "confusion",
        "auc",
        "auc:9",
        "loss",
        "perplexity",
        "mse",
        "mae",
        "cosine",
    ]; // fmt: skip
    for name in names {
        let spec: MetricSpec = name.parse().unwrap();
        let of_values = matches!(spec, MetricSpec::Regression(_));
        let targets = if of_values { Targets::Values(&scores) } else { Targets::Classes(&labels) };
        let bytes = spec.bytes(7);
        let before = HEAP.live_bytes();
        let mut metric = spec.make(7).unwrap();
        assert_eq!(HEAP.live_bytes() - before, metric.bytes(), "{name}");
        assert_eq!(bytes, metric.bytes(), "{name}");
        let before = HEAP.allocations();
        metric.update(&Rows::new(outputs, targets, &[]).unwrap()).unwrap();
        let mut figures = 0;
        metric.figures(&mut |_, _| figures += 1);
        metric.reset();
        assert_eq!(HEAP.allocations(), before, "{name}");
        assert!(figures > 0, "{name}");
    }
}
