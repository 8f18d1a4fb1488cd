//! Plimsoll.
