//! A curve of a bounded number of points, however long the run is.

/// The most points of a curve.
pub const MOST_POINTS: usize = 1024;

/// Points of a curve, one for every so many values: a long one keeps the means of neighbours.
#[derive(Clone, Debug)]
pub struct Curve {
    points: Vec<(f64, f64)>,
    every: u64,
    sum: f64,
    count: u64,
}

impl Curve {
    /// Without a point; nothing is allocated later.
    pub fn new() -> Self {
        Self { points: Vec::with_capacity(MOST_POINTS), every: 1, sum: 0.0, count: 0 }
    }

    /// Adds a value, unless it is not finite.
    pub fn push(&mut self, step: u64, value: f64) {
        if !value.is_finite() {
            return;
        }
        self.sum += value;
        self.count += 1;
        if self.count < self.every {
            return;
        }
        if self.points.len() == MOST_POINTS {
            for i in 0..MOST_POINTS / 2 {
                let [(_, first), (at, second)] = [self.points[2 * i], self.points[2 * i + 1]];
                self.points[i] = (at, (first + second) / 2.0);
            }
            self.points.truncate(MOST_POINTS / 2);
            self.every *= 2;
            // The value waits for another: its neighbours are means of two.
            if self.count < self.every {
                return;
            }
        }
        self.points.push((step as f64, self.sum / self.count as f64));
        (self.sum, self.count) = (0.0, 0);
    }

    /// The points, by step.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_keeps_its_means_in_bounded_memory() {
        let mut curve = Curve::new();
        (1..=100_000).for_each(|step| curve.push(step, step as f64));
        curve.push(100_001, f64::NAN);
        assert!(curve.points.len() <= MOST_POINTS && curve.points.len() > MOST_POINTS / 4);
        assert_eq!(curve.points.capacity(), MOST_POINTS);
        assert!(curve.points.is_sorted());
        for (at, value) in &curve.points {
            // The mean of `every` steps up to this one.
            assert!((value - (at - (curve.every as f64 - 1.0) / 2.0)).abs() < 1e-6, "{at} {value}");
        }
    }
}
