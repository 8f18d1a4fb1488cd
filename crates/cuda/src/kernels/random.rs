//! Random.

use super::Call;
use plimsoll_graph::op::Random;
use plimsoll_plan::KernelQuery;

pub(super) fn find(_op: &Random, _query: &KernelQuery<'_>) -> Option<Call> {
    None
}
