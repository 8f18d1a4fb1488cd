//! The plain-loop executor that defines every op.
