//! pooling
