//! Reduce.

use super::Call;
use plimsoll_graph::op::Reduce;
use plimsoll_plan::KernelQuery;

pub(super) fn find(_op: &Reduce, _query: &KernelQuery<'_>) -> Option<Call> {
    None
}
