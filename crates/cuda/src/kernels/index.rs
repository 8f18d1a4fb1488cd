//! Index.

use super::Call;
use plimsoll_graph::op::Index;
use plimsoll_plan::KernelQuery;

pub(super) fn find(_op: &Index, _query: &KernelQuery<'_>) -> Option<Call> {
    None
}
