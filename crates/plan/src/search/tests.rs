mod corrupted;
mod generate;
mod larger;
mod ledger;
mod optimal;
