//! Quantise.

use super::Call;
use plimsoll_graph::op::Quantise;
use plimsoll_plan::KernelQuery;

pub(super) fn find(_op: Quantise, _query: &KernelQuery<'_>) -> Option<Call> {
    None
}
