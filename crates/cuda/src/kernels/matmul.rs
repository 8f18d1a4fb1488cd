//! MatMul.

use super::Call;
use plimsoll_graph::op::MatMul;
use plimsoll_plan::KernelQuery;

pub(super) fn find(_op: &MatMul, _query: &KernelQuery<'_>) -> Option<Call> {
    None
}
