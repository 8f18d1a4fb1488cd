//! Examples in the help, and `plimsoll completions` and `plimsoll man`: what shells and `man` know of the flags, from their one definition.

use super::args::Arguments;
use super::{Failure, put};
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

/// What the help of `train` and `plan` ends with.
pub const TRAIN_EXAMPLES: &str = "Examples:
  plimsoll train                                        LeNet on digits, under nine tenths of the memory
  plimsoll train --memory 64MiB --out run               under a line; results and checkpoints in a folder
  plimsoll train --resume run                           goes on where a run stopped
  plimsoll train --model resnet20 --data images:DIR     pictures in a folder for each class
  plimsoll train --model gpt --data text:FILE           a language model of the bytes of a text
  plimsoll train run.toml --lr 0.01                     flags from a file, and one besides";

pub const PLAN_EXAMPLES: &str = "Examples:
  plimsoll plan --model resnet50 --batch 32 --memory 4GiB     whether it fits, and what takes the memory
  plimsoll plan --model resnet50 --memory 4GiB --max-batch    the largest batch that fits
  plimsoll plan --model gpt2 --curve                          what lower lines cost
  plimsoll plan --model gpt2 --machine h200                   on a machine that is not here";

pub const EXPORT_EXAMPLES: &str = "Examples:
  plimsoll export run --to onnx                               for any number of examples
  plimsoll export run --to onnx --batch 1 --out model.onnx    for one at a time
  plimsoll export run --to tflite --dynamic-range             for phones and boards, weights in a quarter of the bytes
  plimsoll export run --to safetensors --weight-names torch   the weights alone, as PyTorch names them";

/// Prints a shell's completion script.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "plimsoll", &mut script);
    print(&script)
}

/// Prints the manual page of the program, or of a command.
pub fn man(name: Option<&str>) -> Result<(), Failure> {
    let mut whole = Arguments::command();
    whole.build();
    let known: Vec<String> = whole.get_subcommands().map(|c| c.get_name().to_string()).collect();
    let command = match name {
        None => whole,
        Some(name) => whole.find_subcommand(name).cloned().ok_or_else(|| {
            Failure::usage(format!("there is no command `{name}`: there are {}", known.join(", ")))
        })?,
    };
    let mut page = Vec::new();
    Man::new(command).render(&mut page).map_err(|e| Failure::run(format!("cannot make the page: {e}")))?;
    print(&page)
}

fn print(text: &[u8]) -> Result<(), Failure> {
    put(String::from_utf8_lossy(text).trim_end());
    Ok(())
}
