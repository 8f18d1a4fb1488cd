//! One list of cases for every executor, and golden numbers.
