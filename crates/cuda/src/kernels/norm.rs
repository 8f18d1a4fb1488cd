//! Norm.

use super::Call;
use plimsoll_graph::op::Norm;
use plimsoll_plan::KernelQuery;

pub(super) fn find(_op: &Norm, _query: &KernelQuery<'_>) -> Option<Call> {
    None
}
