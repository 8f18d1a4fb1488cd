//! Movement.

use super::Call;
use plimsoll_graph::op::Movement;
use plimsoll_plan::KernelQuery;

pub(super) fn find(_op: &Movement, _query: &KernelQuery<'_>) -> Option<Call> {
    None
}
