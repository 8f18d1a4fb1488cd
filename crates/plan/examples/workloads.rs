//! temp
#![allow(clippy::print_stdout)]
use plimsoll_plan::search::{check, floor, lower_bound, solve};
use plimsoll_plan::workload::Workload;
use std::time::Instant;
fn main() {
    for file in std::env::args().skip(1) {
        let w = Workload::parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let p = w.recorded_peak_bytes as f64;
        println!("{} floor {:.4}", w.name, floor(&w.problem).unwrap() as f64 / p);
        let fr: Vec<f64> = std::env::var("F").map(|f| f.split(',').map(|x| x.parse().unwrap()).collect()).unwrap_or(vec![0.7, 0.5, 0.4, 0.3, 0.2]);
        for f in fr {
            let line = (p * f) as u64;
            let t = Instant::now();
            let s = solve(&w.problem, line);
            let dt = t.elapsed().as_secs_f64();
            let lb = lower_bound(&w.problem, line).unwrap() as f64 / w.baseline_ns as f64 * 100.0;
            match s {
                Ok(s) => {
                    let fig = check(&w.problem, &s).unwrap();
                    println!("{f} overhead {:.2} bound {lb:.2} peak {:.4} repeats {} {dt:.2}s", (s.nanoseconds as f64 / w.baseline_ns as f64 - 1.0) * 100.0, fig.peak_bytes as f64 / p, fig.repeats);
                }
                Err(e) => println!("{f} {e} {dt:.2}s"),
            }
        }
    }
}
