//! What tests share: a counting allocator, scratch folders, memory control groups, and a message for what is skipped. Nothing here is part of a release.

mod allocator;
mod group;
mod scratch;
mod skip;

pub use allocator::CountingAllocator;
pub use group::Group;
pub use scratch::Scratch;
pub use skip::or_skip;
