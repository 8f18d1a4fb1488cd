//! A metric takes the bytes it states, and allocates nothing after its creation.

use plimsoll_train::metrics::{MetricSpec, Outputs, Rows, Targets};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        LIVE.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

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
        let before = LIVE.load(Relaxed);
        let mut metric = spec.make(7).unwrap();
        assert_eq!(LIVE.load(Relaxed) - before, metric.bytes(), "{name}");
        assert_eq!(bytes, metric.bytes(), "{name}");
        let before = ALLOCATIONS.load(Relaxed);
        metric.update(&Rows::new(outputs, targets, &[]).unwrap()).unwrap();
        let mut figures = 0;
        metric.figures(&mut |_, _| figures += 1);
        metric.reset();
        assert_eq!(ALLOCATIONS.load(Relaxed), before, "{name}");
        assert!(figures > 0, "{name}");
    }
}
