//! Graph to graph passes: gradient, decompose, simplify, save, fuse.
