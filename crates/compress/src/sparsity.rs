//! How sparse weights are at which step: the schedules of TensorFlow's model optimization toolkit.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Steps between two updates of the masks, unless another number is given.
const FREQUENCY: u64 = 100;
/// The power of a polynomial, unless another is given.
const POWER: f64 = 3.0;

/// The share of weights that are zero at a step, and the steps after which masks are found anew, as TensorFlow's toolkit defines
/// them (`PolynomialDecay`, `ConstantSparsity`).
///
/// As text: `polynomial:FROM..TO@BEGIN..END`, `constant:SPARSITY@BEGIN..END` or, for ever, `constant:SPARSITY@BEGIN..`; with
/// `/STEPS` behind it for another number of steps than 100 between two updates.
///
/// ```
/// use plimsoll_compress::Sparsity;
/// let sparsity = Sparsity::polynomial(0.0, 0.9, 200, 1000)?.every(50)?;
/// assert_eq!(sparsity.to_string(), "polynomial:0..0.9@200..1000/50");
/// assert_eq!(sparsity, sparsity.to_string().parse()?);
/// assert_eq!((sparsity.update(199), sparsity.update(200), sparsity.update(1000)), (None, Some(0.0), Some(0.9)));
/// assert_eq!((sparsity.update(225), sparsity.update(1050)), (None, None));
/// # Ok::<(), plimsoll_compress::SparsityError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sparsity {
    /// At the beginning, and at the end; the same for a constant.
    from: f32,
    to: f32,
    begin: u64,
    /// `None`: masks are found anew for ever.
    end: Option<u64>,
    every: u64,
    power: f32,
    constant: bool,
}

/// Why there is no such schedule of sparsity.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SparsityError {
    /// A share outside [0, 1).
    #[error("a sparsity is at least 0 and below 1, not {0}: 0.8 makes four of five weights zero")]
    Share(f64),
    /// The schedule ends before it begins.
    #[error("the schedule begins at step {begin} and ends at step {end}: let it end after it begins")]
    Steps {
        /// The first step.
        begin: u64,
        /// The last one.
        end: u64,
    },
    /// No steps between two updates.
    #[error(
        "masks are updated every 1 step at the most: give the schedule a number of at least 1 behind its `/`"
    )]
    Every,
    /// A power that is not above zero.
    #[error("the power of a polynomial is above 0, not {0}")]
    Power(f64),
    /// Text that is no schedule.
    #[error(
        "`{0}` is no schedule: write `polynomial:0.5..0.8@0..2000` (from half to four fifths, from step 0 to 2000) or \
         `constant:0.8@0..`, with `/50` behind it to update the masks every 50 steps"
    )]
    Text(String),
}

fn share(share: f64) -> Result<f32, SparsityError> {
    // A share that rounds to 1 would leave one weight.
    let valid = (0.0..1.0).contains(&share) && (share as f32) < 1.0;
    if valid { Ok(share as f32) } else { Err(SparsityError::Share(share)) }
}

impl Sparsity {
    /// From one sparsity to another along a cubic curve, fast at first: `to + (from - to) · (1 - p)³`, where p is the part of the
    /// steps from `begin` to `end` that are done. Masks are updated every 100 steps.
    pub fn polynomial(from: f64, to: f64, begin: u64, end: u64) -> Result<Self, SparsityError> {
        if end <= begin {
            return Err(SparsityError::Steps { begin, end });
        }
        let (from, to) = (share(from)?, share(to)?);
        let (every, power) = (FREQUENCY, POWER as f32);
        Ok(Self { from, to, begin, end: Some(end), every, power, constant: false })
    }

    /// The same sparsity from step `begin` on, to `end` or for ever. Masks are updated every 100 steps.
    pub fn constant(sparsity: f64, begin: u64, end: Option<u64>) -> Result<Self, SparsityError> {
        if let Some(end) = end.filter(|&end| end < begin) {
            return Err(SparsityError::Steps { begin, end });
        }
        let to = share(sparsity)?;
        Ok(Self { from: to, to, begin, end, every: FREQUENCY, power: 1.0, constant: true })
    }

    /// Updates the masks every so many steps.
    pub fn every(self, steps: u64) -> Result<Self, SparsityError> {
        if steps == 0 { Err(SparsityError::Every) } else { Ok(Self { every: steps, ..self }) }
    }

    /// Another power of a polynomial than 3; a constant has none.
    pub fn power(self, power: f64) -> Result<Self, SparsityError> {
        match power.is_finite() && power > 0.0 {
            true => Ok(Self { power: power as f32, ..self }),
            false => Err(SparsityError::Power(power)),
        }
    }

    /// The sparsity that the schedule leads to.
    pub fn target(&self) -> f32 {
        self.to
    }

    /// The sparsity at a step, from 0, in f32.
    pub fn at(&self, step: u64) -> f32 {
        let Some(end) = self.end.filter(|_| !self.constant) else { return self.to };
        let done = (step as f32 - self.begin as f32) / (end - self.begin) as f32;
        let left = 1.0 - done.clamp(0.0, 1.0);
        (self.from - self.to) * left.powf(self.power) + self.to
    }

    /// The sparsity of the masks that are found at a step; `None` at the steps that keep the masks.
    pub fn update(&self, step: u64) -> Option<f32> {
        let since = step.checked_sub(self.begin).filter(|_| self.end.is_none_or(|end| step <= end))?;
        since.is_multiple_of(self.every).then(|| self.at(step))
    }
}

impl fmt::Display for Sparsity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.constant {
            true => write!(f, "constant:{}@{}..", self.to, self.begin)?,
            false => write!(f, "polynomial:{}..{}@{}..", self.from, self.to, self.begin)?,
        }
        if let Some(end) = self.end {
            write!(f, "{end}")?;
        }
        if self.every != FREQUENCY {
            write!(f, "/{}", self.every)?;
        }
        if !self.constant && self.power != POWER as f32 {
            write!(f, "^{}", self.power)?;
        }
        Ok(())
    }
}

impl FromStr for Sparsity {
    type Err = SparsityError;

    fn from_str(text: &str) -> Result<Self, SparsityError> {
        let wrong = || SparsityError::Text(text.to_string());
        let (rest, power) = match text.split_once('^') {
            Some((rest, power)) => (rest, Some(power.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let (rest, every) = match rest.split_once('/') {
            Some((rest, every)) => (rest, every.parse().map_err(|_| wrong())?),
            None => (rest, FREQUENCY),
        };
        let (kind, rest) = rest.split_once(':').ok_or_else(wrong)?;
        let (shares, steps) = rest.split_once('@').ok_or_else(wrong)?;
        let (begin, end) = steps.split_once("..").ok_or_else(wrong)?;
        let begin = begin.parse().map_err(|_| wrong())?;
        let end = if end.is_empty() { None } else { Some(end.parse().map_err(|_| wrong())?) };
        let number = |text: &str| text.parse::<f64>().map_err(|_| wrong());
        let sparsity = match (kind, power) {
            ("polynomial", _) => {
                let (from, to) = shares.split_once("..").ok_or_else(wrong)?;
                Self::polynomial(number(from)?, number(to)?, begin, end.ok_or_else(wrong)?)?
            }
            ("constant", None) => Self::constant(number(shares)?, begin, end)?,
            _ => return Err(wrong()),
        };
        let sparsity = sparsity.every(every)?;
        power.map_or(Ok(sparsity), |power| sparsity.power(power))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// What the toolkit itself answers, frozen by `scripts/freeze_pruning.py`.
    #[test]
    fn schedules_are_those_of_tensorflows_toolkit() {
        let golden: Value = serde_json::from_str(include_str!("../golden/pruning.json")).unwrap();
        let mut compared = 0;
        for case in golden["schedules"].as_array().unwrap() {
            let number = |key: &str| case[key].as_f64().unwrap();
            let step = |key: &str| case[key].as_u64().unwrap();
            let sparsity = match case["kind"].as_str().unwrap() {
                "polynomial" => {
                    Sparsity::polynomial(number("from"), number("to"), step("begin"), step("end"))
                        .and_then(|s| s.power(number("power")))
                }
                _ => Sparsity::constant(number("to"), step("begin"), case["end"].as_u64()),
            };
            let sparsity = sparsity.and_then(|s| s.every(step("every"))).unwrap();
            for row in case["steps"].as_array().unwrap() {
                let (step, updates) = (row[0].as_u64().unwrap(), row[1].as_bool().unwrap());
                let expected = row[2].as_f64().unwrap() as f32;
                assert_eq!(sparsity.update(step).is_some(), updates, "{sparsity} at {step}");
                // The power of f32 is rounded by each library in its own way.
                let found = sparsity.at(step);
                assert!(
                    (found - expected).abs() <= 2.0 * f32::EPSILON * expected,
                    "{sparsity} at {step}: {found}, {expected}"
                );
                compared += 1;
            }
        }
        assert!(compared > 100, "{compared}");
    }

    #[test]
    fn text_comes_back() {
        for text in [
            "polynomial:0.5..0.8@0..2000",
            "constant:0.75@10../7",
            "constant:0.5@0..9",
            "polynomial:0..0.9@5..6/1^1",
        ] {
            assert_eq!(text.parse::<Sparsity>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn wrong_schedules_say_what_to_change() {
        for (text, says) in [
            ("polynomial:0.5..0.8@2000..0", "let it end after it begins"),
            ("polynomial:0.5..0.8@5..5", "let it end after it begins"),
            ("constant:0.5@5..4", "let it end after it begins"),
            ("polynomial:0.5..1@0..2000", "below 1"),
            ("polynomial:-0.1..0.8@0..2000", "at least 0"),
            ("constant:NaN@0..", "below 1"),
            ("constant:0.99999999999@0..", "below 1"),
            ("constant:0.5@0../0", "at least 1"),
            ("polynomial:0.5..0.8@0..", "write"),
            ("polynomial:0.5..0.8@0..20^-1", "above 0"),
            ("constant:0.5@0..^2", "write"),
            ("cubic:0.5..0.8@0..20", "write"),
            ("0.8", "write"),
            ("", "write"),
        ] {
            let error = text.parse::<Sparsity>().expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
