//! Recurrent.

use super::Call;
use plimsoll_graph::op::Recurrent;
use plimsoll_plan::KernelQuery;

pub(super) fn find(_op: Recurrent, _query: &KernelQuery<'_>) -> Option<Call> {
    None
}
