//! Mixed precision, and dynamic loss scaling for f16.

use crate::optimizer::{Parameter, square_sum};
use crate::{Mode, Optimizer, Pattern};
use plimsoll_graph::op::Binary;
use plimsoll_graph::{Builder, Graph, GraphError, Init, Numerics, Role, ValueId};
use plimsoll_tensor::{DType, TensorType};
use plimsoll_transform::{MixedPrecision, mixed_precision};
use std::fmt;
use std::str::FromStr;

/// The layer of a step's loss, which is computed in f32.
pub(crate) const LOSS_LAYER: &str = "loss";

/// The state that holds the loss scale of f16.
pub const LOSS_SCALE: &str = "loss_scale/scale";
/// The state that counts the good steps since the scale last changed.
pub const GOOD_STEPS: &str = "loss_scale/good_steps";
/// The state that counts skipped steps.
pub const SKIPPED_STEPS: &str = "loss_scale/skipped_steps";

/// The smallest loss scale: gradients that overflow below it do so for another reason.
pub const MIN_LOSS_SCALE: f64 = 1.0;
/// The largest loss scale, 2^100: far above any that helps.
pub const MAX_LOSS_SCALE: f64 = (1u128 << 100) as f64;
/// The largest [`LossScale::growth`]: an f32 counts the steps.
pub const MAX_GROWTH: u32 = 1 << 24;

/// The element type of activations and of the operands of products, and how products round these. Parameters, sums, norms, softmax and losses are
/// f32 in all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// 32 bits in memory; products, convolutions and attention round their operands to 10 bits behind the binary point, with f32's range. For
    /// executors that do so, which have [`Numerics::tf32`].
    TF32,
    /// 16 bits with f32's range.
    BF16,
    /// 16 bits with a range that gradients exceed: the loss is scaled.
    F16,
}

impl Precision {
    /// Every precision.
    pub const ALL: [Self; 4] = [Self::F32, Self::TF32, Self::BF16, Self::F16];

    /// Its element type in memory.
    pub const fn dtype(self) -> DType {
        match self {
            Self::F32 | Self::TF32 => DType::F32,
            Self::BF16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TF32 => "tf32",
            Self::F32 | Self::BF16 | Self::F16 => self.dtype().name(),
        }
    }

    /// Whether activations are 16-bit floats.
    pub const fn is_low(self) -> bool {
        self.dtype().is_low()
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|p| p.name() == text);
        found.ok_or_else(|| format!("unknown precision `{text}`: there are f32, tf32, bf16 and f16"))
    }
}

/// Dynamic loss scaling, which keeps small f16 gradients from underflowing: backward starts from the scale, updates divide by
/// it. A step whose gradients hold an infinity or NaN is skipped and halves the scale; `growth` good steps double it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// The scale of the first step, rounded to a power of two so that scaling is exact.
    pub initial: f64,
    /// Good steps after which the scale doubles.
    pub growth: u32,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { initial: 65536.0, growth: 2000 }
    }
}

impl LossScale {
    /// An error if it is out of range.
    pub fn check(self) -> Result<(), String> {
        let Self { initial, growth } = self;
        if !(MIN_LOSS_SCALE..=MAX_LOSS_SCALE).contains(&initial) {
            return Err(format!(
                "a loss scale of {initial}: it must be at least {MIN_LOSS_SCALE} and at most 2^100"
            ));
        }
        if !(1..=MAX_GROWTH).contains(&growth) {
            return Err(format!(
                "a loss scale that grows after {growth} steps: it must be at least 1 and at most {MAX_GROWTH}"
            ));
        }
        Ok(())
    }
}

/// The precision of a model, and the layers that stay f32.
///
/// ```
/// use plimsoll_graph::Numerics;
/// use plimsoll_nn::{Policy, Precision, Sgd, step, zoo};
/// let policy = Policy::new(Precision::BF16).keep_f32("dense3");
/// let graph = step::training_as(&policy, &Numerics::default(), &zoo::lenet(), &Sgd::new(0.1), 8)?;
/// assert!(graph.to_string().contains("bf16"));
/// # Ok::<(), plimsoll_graph::GraphError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// The precision.
    pub precision: Precision,
    /// Layers that stay f32.
    pub keep: Vec<Pattern>,
    /// The loss scale of f16.
    pub scale: LossScale,
}

impl Policy {
    /// The precision for all layers.
    pub fn new(precision: Precision) -> Self {
        Self { precision, ..Self::default() }
    }

    /// Keeps the layers that a [`Pattern`] matches, and their outputs, in f32.
    pub fn keep_f32(mut self, pattern: &str) -> Self {
        self.keep.push(Pattern::new(pattern));
        self
    }

    /// With another loss scale.
    pub fn loss_scale(self, scale: LossScale) -> Self {
        Self { scale, ..self }
    }

    /// The policy in words. Checkpoints store it, and a run resumes only under the same.
    pub fn description(&self) -> String {
        let keep = self.keep.iter().map(|pattern| format!(", {pattern} in f32"));
        let LossScale { initial, growth } = self.scale;
        let scaled = self.precision == Precision::F16;
        let scale = scaled.then(|| format!(", loss scale {initial} that doubles after {growth} steps"));
        format!("{}{}{}", self.precision, keep.collect::<String>(), scale.unwrap_or_default())
    }

    /// What a target's numerics are under this policy: with 16-bit floats recurrences are unrolled, so that what they save for
    /// backward is stored as such.
    pub(crate) fn numerics(&self, target: &Numerics) -> Numerics {
        Numerics { recurrences: target.recurrences && !self.precision.is_low(), ..*target }
    }

    /// A forward graph under this policy for a target with these numerics, open for its gradient. Every pattern of [`Policy::keep`] must match a layer of a
    /// training graph; other graphs may lack some, like the loss.
    pub(crate) fn apply(
        &self,
        graph: &Graph,
        numerics: &Numerics,
        mode: Mode,
    ) -> Result<MixedPrecision, GraphError> {
        let layers = || graph.nodes.iter().map(|node| &*node.layer);
        let unused = self.keep.iter().find(|pattern| !layers().any(|layer| pattern.matches(layer)));
        if let (Some(pattern), Mode::Train) = (unused, mode) {
            let mut names: Vec<&str> = layers().collect();
            names.dedup();
            names.truncate(8);
            let names = names.join("`, `");
            let reason = format!("keep f32: no layer is named `{pattern}`; the first are `{names}`");
            return Err(GraphError::Choice(reason));
        }
        let loss = Pattern::new(LOSS_LAYER);
        let keep = |layer: &str| loss.matches(layer) || self.keep.iter().any(|p| p.matches(layer));
        mixed_precision(graph, self.precision.dtype(), numerics, &keep)
    }
}

/// Dynamic loss scaling in a graph.
pub(crate) struct Scaling {
    settings: LossScale,
    /// The scale.
    pub scale: ValueId,
    good_steps: ValueId,
    skipped: ValueId,
}

impl Scaling {
    /// Adds the scale's states.
    pub fn new(b: &mut Builder, settings: LossScale) -> Result<Self, GraphError> {
        settings.check().map_err(GraphError::Choice)?;
        let LossScale { initial, .. } = settings;
        let mut state = |name: &str, start: f64| {
            b.named_state(name.into(), TensorType::scalar(DType::F32), Role::Moment, Init::Constant(start))
        };
        Ok(Self {
            settings,
            scale: state(LOSS_SCALE, initial.log2().round().exp2()),
            good_steps: state(GOOD_STEPS, 0.0),
            skipped: state(SKIPPED_STEPS, 0.0),
        })
    }

    /// Adds the updates from gradients of the scaled loss; states change only if all gradients are finite.
    pub fn updates(
        &self,
        b: &mut Builder,
        optimizer: &dyn Optimizer,
        parameters: &[Parameter],
        gradients: &[ValueId],
        settings: &[ValueId],
    ) -> Result<(), GraphError> {
        let good = all_finite(b, parameters, gradients)?;
        // A forward pass that overflowed must not update running statistics.
        let states = b.graph().states.iter().filter_map(|s| Some((s.name.clone(), s.input, s.output?)));
        for (name, old, new) in states.collect::<Vec<_>>() {
            let layer = name.rsplit_once('/').map_or("", |(layer, _)| layer);
            let next = b.within(layer.into(), |b| b.select(good, new, old))?;
            b.set_state(old, next);
        }
        let one = b.constant(1.0, DType::F32)?;
        let inverse = b.within("loss_scale".into(), |b| b.div(one, self.scale))?;
        let mut unscaled = Vec::with_capacity(gradients.len());
        for (parameter, &gradient) in parameters.iter().zip(gradients) {
            unscaled.push(b.within(parameter.layer().into(), |b| b.mul(gradient, inverse))?);
        }
        optimizer.guarded_updates(b, parameters, &unscaled, settings, good)?;
        b.within("loss_scale".into(), |b| self.advance(b, good))
    }

    fn advance(&self, b: &mut Builder, good: ValueId) -> Result<(), GraphError> {
        let (zero, one) = (b.constant(0.0, DType::F32)?, b.constant(1.0, DType::F32)?);
        let count = b.add(self.good_steps, one)?;
        let enough = b.with_constant(Binary::GreaterEqual, count, f64::from(self.settings.growth))?;
        let double = b.scale(self.scale, 2.0)?;
        let double = b.with_constant(Binary::Min, double, MAX_LOSS_SCALE)?;
        let half = b.scale(self.scale, 0.5)?;
        let half = b.with_constant(Binary::Max, half, MIN_LOSS_SCALE)?;
        let grown = b.select(enough, double, self.scale)?;
        let scale = b.select(good, grown, half)?;
        let kept = b.select(enough, zero, count)?;
        let count = b.select(good, kept, zero)?;
        let more = b.add(self.skipped, one)?;
        let skipped = b.select(good, self.skipped, more)?;
        b.set_state(self.scale, scale);
        b.set_state(self.good_steps, count);
        b.set_state(self.skipped, skipped);
        Ok(())
    }
}

/// Whether the sum of all gradients' squares is finite. It is not if an element is not, nor if gradients are too large to be
/// of use.
fn all_finite(
    b: &mut Builder,
    parameters: &[Parameter],
    gradients: &[ValueId],
) -> Result<ValueId, GraphError> {
    let mut total = b.constant(0.0, DType::F32)?;
    for (parameter, &gradient) in parameters.iter().zip(gradients) {
        let sum = b.within(parameter.layer().into(), |b| square_sum(b, gradient))?;
        total = b.within("loss_scale".into(), |b| b.add(total, sum))?;
    }
    b.within("loss_scale".into(), |b| {
        let zero_if_finite = b.sub(total, total)?;
        b.with_constant(Binary::Equal, zero_if_finite, 0.0)
    })
}
