//! Resize.

use super::Call;
use plimsoll_graph::op::Resize;
use plimsoll_plan::KernelQuery;

pub(super) fn find(_op: &Resize, _query: &KernelQuery<'_>) -> Option<Call> {
    None
}
