mod corrupted;
mod generate;
mod incremental_peak;
mod larger;
mod optimal;
