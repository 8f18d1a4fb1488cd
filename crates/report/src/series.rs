//! A run's figures in bounded memory: neighbouring steps are joined as the run gets longer.

use crate::{MeasuredStep, Validation};

/// Points of a series at most.
const MAX_POINTS: usize = 1024;

/// Steps and validations of a run, each thinned to a bounded number of points.
#[derive(Clone, Debug)]
pub struct Series {
    /// Steps of a point.
    every: u64,
    /// The steps of the point that is not complete yet.
    open: Group,
    points: Vec<MeasuredStep>,
    validations: Vec<Validation>,
    /// How often points were joined: earlier ones are others than before.
    generation: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Group {
    steps: u64,
    finite: u64,
    loss: f64,
    seconds: f64,
    resident_bytes: Option<u64>,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            every: 1,
            open: Group::default(),
            points: Vec::with_capacity(MAX_POINTS),
            validations: Vec::with_capacity(MAX_POINTS),
            generation: 0,
        }
    }
}

impl Series {
    /// Adds a step.
    pub fn step(&mut self, step: u64, loss: f64, seconds: f64, resident_bytes: Option<u64>) {
        let open = &mut self.open;
        open.steps += 1;
        open.seconds += seconds;
        open.resident_bytes = open.resident_bytes.max(resident_bytes);
        if loss.is_finite() {
            open.finite += 1;
            open.loss += loss;
        }
        if open.steps < self.every {
            return;
        }
        let group = std::mem::take(open);
        self.points.push(MeasuredStep {
            step,
            loss: (group.finite > 0).then(|| group.loss / group.finite as f64),
            seconds: group.seconds / group.steps as f64,
            resident_bytes: group.resident_bytes,
        });
        if self.points.len() == MAX_POINTS {
            self.join();
        }
    }

    /// Adds a validation.
    pub fn validation(&mut self, step: u64, loss: f64, accuracy: Option<f64>) {
        let finite = |figure: f64| figure.is_finite().then_some(figure);
        self.validations.push(Validation { step, loss: finite(loss), accuracy: accuracy.and_then(finite) });
        if self.validations.len() == MAX_POINTS {
            let mut at = 0;
            self.validations.retain(|_| {
                at += 1;
                at % 2 == 0
            });
            self.generation += 1;
        }
    }

    /// Joins each two neighbours.
    fn join(&mut self) {
        let mean = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some((a + b) / 2.0),
            (a, b) => a.or(b),
        };
        for i in 0..self.points.len() / 2 {
            let [a, b] = [2 * i, 2 * i + 1].map(|at| self.points[at].clone());
            self.points[i] = MeasuredStep {
                step: b.step,
                loss: mean(a.loss, b.loss),
                seconds: (a.seconds + b.seconds) / 2.0,
                resident_bytes: a.resident_bytes.max(b.resident_bytes),
            };
        }
        self.points.truncate(self.points.len() / 2);
        self.every *= 2;
        self.generation += 1;
    }

    /// The points, and the steps of one that is not complete yet.
    pub fn points(&self) -> &[MeasuredStep] {
        &self.points
    }

    /// The validations.
    pub fn validations(&self) -> &[Validation] {
        &self.validations
    }

    /// How often points were joined: as long as it stays, points are only added.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_keeps_its_mean_and_its_largest_resident_set() {
        let mut series = Series::default();
        let steps = 100_000_u64;
        for step in 1..=steps {
            let resident = if step == 77_777 { 9_000 } else { 1_000 };
            series.step(step, step as f64, 0.5, Some(resident));
            series.validation(step, 1.0, None);
        }
        let points = series.points();
        assert!(points.len() < MAX_POINTS && points.len() > MAX_POINTS / 4, "{}", points.len());
        assert!(series.validations().len() < MAX_POINTS);
        assert!(points.windows(2).all(|pair| pair[0].step < pair[1].step));
        assert_eq!(points.iter().filter_map(|p| p.resident_bytes).max(), Some(9_000));
        assert!(points.iter().all(|p| p.seconds == 0.5));
        // The mean of steps 1 to n is (n + 1) / 2.
        let last = points.last().unwrap().step;
        let mean = points.iter().filter_map(|p| p.loss).sum::<f64>() / points.len() as f64;
        assert!((mean - (last + 1) as f64 / 2.0).abs() < 1e-6 * last as f64, "{mean} of {last}");
    }
}
