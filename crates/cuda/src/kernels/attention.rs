//! Attention.

use super::Call;
use plimsoll_graph::op::Attention;
use plimsoll_plan::KernelQuery;

pub(super) fn find(_op: &Attention, _query: &KernelQuery<'_>) -> Option<Call> {
    None
}
