//! What the program does, tested through the real binary and the library.

#[path = "../support/mod.rs"]
mod support;

mod answers_first;
mod checkpoints;
mod command_line;
mod devices;
mod documents;
mod export;
mod first_hour;
mod full_disk;
mod image_data;
mod large_files;
mod machine_files;
mod mixed_precision;
mod nothing_lost;
mod page;
mod placement;
mod plan_cache;
mod predict;
mod pruning;
mod replicas;
mod run_ends;
mod start_weights;
mod table_data;
mod training_loop;
mod watching;
mod weight_names;
