//! Elementwise ops and regions of them.

use super::Call;
use plimsoll_graph::op::{Elementwise, Region};
use plimsoll_plan::KernelQuery;

pub(super) fn single(_op: Elementwise, _query: &KernelQuery<'_>) -> Option<Call> {
    None
}

pub(super) fn fused(_region: &Region, _query: &KernelQuery<'_>) -> Option<Call> {
    None
}
