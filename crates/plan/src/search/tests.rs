mod corrupted;
mod generate;
mod larger;
mod optimal;
