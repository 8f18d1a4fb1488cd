//! What tests share: a counting allocator and scratch folders. Nothing here is part of a release.

mod allocator;
mod scratch;

pub use allocator::CountingAllocator;
pub use scratch::Scratch;
