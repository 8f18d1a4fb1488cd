//! Loss.

use super::Call;
use plimsoll_graph::op::Loss;
use plimsoll_plan::KernelQuery;

pub(super) fn find(_op: &Loss, _query: &KernelQuery<'_>) -> Option<Call> {
    None
}
