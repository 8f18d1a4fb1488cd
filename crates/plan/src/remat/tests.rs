mod corrupted;
mod generate;
mod incremental_peak;
mod optimal;
mod properties;
