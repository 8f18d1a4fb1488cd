//! Conv.

use super::Call;
use plimsoll_graph::op::Conv;
use plimsoll_plan::KernelQuery;

pub(super) fn find(_op: &Conv, _query: &KernelQuery<'_>) -> Option<Call> {
    None
}
