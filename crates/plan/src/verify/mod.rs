//! Checks plans without sharing code with what made them.
//!
//! First the figures: sizes, alignment, lifetimes, peaks, the load sheet. Then every plan is run on paper: an arena
//! that knows which bytes hold which value, in which version. A body that repeats is run twice, which shows anything
//! that one micro-batch leaves wrong for the next.

mod error;
mod figures;
mod memory;
mod replay;

pub use error::{At, VerifyError};

use crate::PlanSet;

/// Checks that every read of every step sees the version it names at its exact place, that nothing live is written
/// over, that states are written once and end as they should, and that every stated figure is true.
///
/// ```
/// use plimsoll_graph::{Builder, op::Unary};
/// use plimsoll_plan::{Budget, NullTarget, VerifyError, plan, verify};
/// let mut b = Builder::new(2, 2);
/// let x = b.batch_input("x", "f32[2,3]".parse()?);
/// let y = b.unary(Unary::Relu, x)?;
/// b.output("y", y);
/// let budget = Budget::new(1 << 20, Vec::new());
/// let mut plans = plan(&[("predict".into(), b.finish()?)], &NullTarget::default(), &budget)?;
/// assert_eq!(verify(&plans), Ok(()));
/// plans.plans[0].steps.clear();
/// assert!(matches!(verify(&plans), Err(VerifyError::Runs { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn verify(plans: &PlanSet) -> Result<(), VerifyError> {
    places(plans)?;
    figures::check_sheet(plans, &plans.sheet).map_err(VerifyError::Sheet)
}

/// As [`verify`], but for the load sheet.
pub(crate) fn places(plans: &PlanSet) -> Result<(), VerifyError> {
    figures::check(plans)?;
    plans.plans.iter().try_for_each(|plan| replay::check(plans, plan))
}
