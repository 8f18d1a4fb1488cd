//! Pool.

use super::Call;
use plimsoll_graph::op::Pool;
use plimsoll_plan::KernelQuery;

pub(super) fn find(_op: &Pool, _query: &KernelQuery<'_>) -> Option<Call> {
    None
}
