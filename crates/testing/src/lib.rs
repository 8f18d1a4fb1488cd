//! What tests share: a counting allocator, scratch folders, a seeded generator. Nothing here is part of a release.

mod allocator;
mod random;
mod scratch;

pub use allocator::CountingAllocator;
pub use random::Random;
pub use scratch::Scratch;
