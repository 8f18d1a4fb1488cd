//! The training loop, state and events.
