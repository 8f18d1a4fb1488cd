mod generate;
mod optimal;
