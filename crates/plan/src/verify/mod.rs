//! Checks plans without sharing code with the planner.
//!
//! First what can be checked at rest (`figures`): ids and operands (`structure`), placement and overlaps (`placement`),
//! peaks, live bytes and the load sheet. Then `runs` checks that every node runs in its phase, and `replay` simulates every
//! plan on an arena that knows which bytes hold which version of which value (`memory`). Two micro-batches are simulated,
//! which shows anything that one of them leaves wrong for the next.
//!
//! `hazards` checks that waits order the transfers in flight with all else that touches their bytes.
//!
//! What may be done in place is stated by the numerics of the target that the plans were made for ([`PlanSet::numerics`]).
//! The kernels that the planner asked are not asked again.

mod error;
mod exchange;
mod figures;
pub(crate) mod hazards;
mod memory;
mod placement;
mod replay;
mod runs;
mod structure;

pub use error::{At, VerifyError};
pub use hazards::verify_hazards;

use crate::PlanSet;

/// Checks that every read of every step sees the version it names in exactly its bytes, that nothing live is overwritten,
/// that states are written once and end as they should, and that every stated figure is true.
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

/// As [`verify`], without the load sheet.
pub(crate) fn places(plans: &PlanSet) -> Result<(), VerifyError> {
    figures::check(plans)?;
    plans.plans.iter().try_for_each(|plan| {
        runs::check(plan)?;
        replay::check(plans, plan)
    })
}
