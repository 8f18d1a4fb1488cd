//! `plimsoll export`: a trained model as a file of another system.

use super::args::{InputOptions, TrainedOptions};
use super::machine_flags::{Device, MachineOptions};
use super::quantize::{Quantized, quantized};
use super::running::WeightNames;
use super::setup::process;
use super::text::escaped;
use super::trained::{describe, peaks};
use super::weights::{of_weights, refused};
use super::{Failure, complain, out_file, say, signals};
use clap::{Args, ValueEnum};
use plimsoll::Size;
use plimsoll::compress::{Int8Grids, KeptLayers};
use plimsoll::export::{BUFFER_BYTES, Batch, ExportError, ExportGraph, Exported, Format, TfliteWeights};
use plimsoll::memory::{self, measured_peak};
use plimsoll::plan::{Entry, in_words};
use plimsoll::train::{TrainError, WeightsFile, sparse_parameters};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Heap for each node of the model's graph while it is exported, at most: of the graph, of that of one more example, and of the
/// nodes of the file with their names.
const BYTES_PER_NODE: usize = 4 << 10;

#[derive(Debug, Args)]
pub struct ExportOptions {
    /// Folder of `train --out`: its weights, or, for an unfinished run, its newest intact checkpoint
    pub run: PathBuf,
    /// The format
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub to: To,
    /// Examples that the model takes: a number, or `dynamic` for any number [default: dynamic; for tflite, which has no other, 1]
    #[arg(long, value_name = "N", value_parser = examples)]
    pub batch: Option<Batch>,
    /// The file [default: in the folder of the run, under the model's name]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// With --to tflite: weights as 16-bit floats, in half the bytes
    #[arg(long)]
    pub f16: bool,
    /// With --to tflite: weights of products and convolutions as 8-bit integers with scales, in a quarter of the bytes
    #[arg(long, conflicts_with = "f16")]
    pub dynamic_range: bool,
    /// With --to tflite or onnx: weights and activations as 8-bit integers, as `quantize` makes them; a folder that `quantize` wrote
    /// needs no flag
    #[arg(long, conflicts_with_all = ["f16", "dynamic_range"])]
    pub int8: bool,
    /// With --int8: data whose training part ranges are measured on, as for train [default: the training data]
    #[arg(long, value_name = "DATA", requires = "int8")]
    pub calibrate: Option<String>,
    /// With --int8: examples on which ranges are measured
    #[arg(long, value_name = "N", default_value_t = 512, requires = "int8")]
    pub examples: usize,
    /// With --to safetensors: the names of weights and the order of their axes
    #[arg(long, value_enum, value_name = "NAMES")]
    pub weight_names: Option<WeightNames>,
    /// The line: a size like 512MiB or 4GB, or a share like 50% or 0.5 of the available memory. Weights are never in memory as a
    /// whole
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "90%",
        allow_negative_numbers = true,
        help_heading = "Memory and machine"
    )]
    pub memory: Size,
    /// Print what the export takes, the account of every byte
    #[arg(long, help_heading = "Memory and machine")]
    pub sheet: bool,
    /// Print one JSON object as the last line
    #[arg(long, help_heading = "Answers")]
    pub json: bool,
}

/// The formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum To {
    /// The model and its weights, for ONNX Runtime and others
    Onnx,
    /// The model and its weights, for LiteRT on phones and boards
    Tflite,
    /// The weights alone
    Safetensors,
}

/// Parses `--batch`.
fn examples(text: &str) -> Result<Batch, String> {
    match (text, text.parse()) {
        ("dynamic", _) => Ok(Batch::Dynamic),
        (_, Ok(examples @ 1..)) => Ok(Batch::Fixed(examples)),
        _ => Err("a number of examples, at least 1, or dynamic".into()),
    }
}

impl ExportOptions {
    /// How the run is opened to measure its ranges.
    fn calibration(&self) -> TrainedOptions {
        TrainedOptions {
            run: self.run.clone(),
            data: self.calibrate.clone(),
            train_part: true,
            batch: None,
            input: InputOptions::default(),
            machine: MachineOptions {
                memory: self.memory.into(),
                device: Device::Cpu,
                device_memory: None,
                threads: None,
            },
            spill: None,
            sheet: self.sheet,
            json: self.json,
        }
    }
}

/// Checks the line, writes the file, and tells what it took.
pub fn run(options: &ExportOptions) -> Result<(), Failure> {
    let extension = match options.to {
        To::Onnx => "onnx",
        To::Tflite => "tflite",
        To::Safetensors => "safetensors",
    };
    let (safetensors, lite) = (options.to == To::Safetensors, options.to == To::Tflite);
    for (flag, given, fits) in [
        ("--batch", options.batch.is_some(), !safetensors),
        ("--weight-names", options.weight_names.is_some(), safetensors),
        ("--f16", options.f16, lite),
        ("--dynamic-range", options.dynamic_range, lite),
        ("--int8", options.int8, !safetensors),
    ] {
        if given && !fits {
            return Err(Failure::usage(format!("{flag} does not apply to --to {extension}: leave it out")));
        }
    }
    let described = describe(&options.run)?;
    let model = described.plain_model()?;
    let on_bytes = described.int8().is_some();
    let floats = options.f16 || options.dynamic_range || options.weight_names.is_some();
    if on_bytes && (floats || options.int8) {
        let flags = "leave out --int8, --f16, --dynamic-range and --weight-names";
        return Err(Failure::usage(format!("the model is on bytes already: {flags}")));
    }
    let out =
        options.out.clone().unwrap_or_else(|| options.run.join(format!("{}.{extension}", model.name())));
    out_file::check("--out", &out, None)?;
    let examples = options.batch.unwrap_or(if lite { Batch::Fixed(1) } else { Batch::Dynamic });
    let format = match options.to {
        To::Tflite if options.f16 => Format::Tflite(TfliteWeights::F16),
        To::Tflite if options.dynamic_range => Format::Tflite(TfliteWeights::DynamicRange),
        To::Tflite => Format::Tflite(TfliteWeights::F32),
        _ => Format::Onnx,
    };
    let bytes = |grids: &Int8Grids| {
        ExportGraph::on_bytes(model.as_ref(), examples, |graph| grids.apply_with_grids(graph))
            .map_err(failure)
    };
    let (exported, planned) = if options.int8 {
        // The file holds whole weights.
        let none = BTreeMap::new();
        let Quantized { session, grids, planned, .. } =
            quantized(&options.calibration(), options.examples, false, &KeptLayers::default(), &none)?;
        memory::trim_code();
        let step = bytes(&grids)?;
        let planned = planned.max(account(options, &step)?);
        let write = || {
            session.export_step(&out, format, &step).map_err(|error| match error {
                TrainError::Export(error) => failure(error),
                other => other.into(),
            })
        };
        let exported = signals::whole_or_absent(&out, write)?;
        (exported, planned)
    } else {
        described.check_int8(model.as_ref())?;
        let step = match described.int8() {
            Some(grids) => bytes(grids)?,
            None => ExportGraph::new(model.as_ref(), examples).map_err(failure)?,
        };
        let planned = account(options, &step)?;
        let weights = WeightsFile::open(&options.run, step.graph()).map_err(refused)?;
        let write = || match options.to {
            To::Onnx | To::Tflite => step.write(format, &weights, &out).map_err(failure),
            To::Safetensors => {
                let names = options.weight_names.unwrap_or(WeightNames::Own).names();
                weights.save_as(&out, names).map_err(of_weights)?;
                let bytes = std::fs::metadata(&out).map_or(0, |file| file.len());
                Ok(Exported { ops: 0, tensors: step.graph().states.len(), bytes })
            }
        };
        let exported = signals::whole_or_absent(&out, write)?;
        (exported, planned)
    };
    // The file's bytes are on standard output then.
    let on_stdout = ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].map(Path::new).contains(&out.as_path());
    let tell = if on_stdout { complain } else { say };
    let measured = measured_peak();
    // A pipe does not tell what it was given.
    let bytes = (exported.bytes > 0).then_some(exported.bytes);
    let words = bytes.map_or(String::new(), |bytes| {
        format!(", {}", usize::try_from(bytes).map_or_else(|_| bytes.to_string(), in_words))
    });
    let ops = if exported.ops > 0 { format!("{} ops, ", exported.ops) } else { String::new() };
    tell(&format!("{}: {ops}{} tensors{words}", escaped(out.display()), exported.tensors));
    let stripped = sparse_parameters(&options.run).map_err(refused)?.len();
    if stripped > 0 {
        let zeros = "zeros stay zeros, so that `gzip` makes the file smaller";
        tell(&format!("{stripped} pruned tensors are written whole; their {zeros}"));
    }
    tell(&peaks(planned, measured));
    if options.json {
        let object = json!({
            "file": out, "ops": exported.ops, "tensors": exported.tensors, "bytes": bytes,
            "planned_peak_bytes": planned, "measured_peak_bytes": measured,
        });
        tell(&object.to_string());
    }
    Ok(())
}

/// What the export takes; refuses a line below it.
fn account(options: &ExportOptions, step: &ExportGraph) -> Result<usize, Failure> {
    let nodes = step.graph().nodes.len();
    let more = [
        Entry::new("graphs", nodes * BYTES_PER_NODE, format!("{nodes} nodes, and those of the file")),
        Entry::new("buffers", 2 * BUFFER_BYTES, "weights on their way from file to file"),
    ];
    let entries: Vec<Entry> = process(0, false).entries().into_iter().chain(more).collect();
    let total = entries.iter().fold(0, |sum: usize, entry| sum.saturating_add(entry.bytes));
    if options.sheet {
        for entry in &entries {
            say(&format!("{:<16} {:>12}  {}", entry.name, in_words(entry.bytes), entry.note));
        }
        say(&format!("{:<16} {:>12}", "total", in_words(total)));
    }
    let line_bytes = options.memory.bytes(memory::available().unwrap_or(usize::MAX));
    match total > line_bytes {
        true => {
            let [needs, line] = [total, line_bytes].map(in_words);
            Err(Failure::memory(format!("the export needs {needs}, the line is {line}: raise it")))
        }
        false => Ok(total),
    }
}

/// A model that the format does not take is wrong input, and so are weights that are not finite; a file that cannot be written is not.
pub fn failure(error: ExportError) -> Failure {
    match error {
        ExportError::Unsupported { .. }
        | ExportError::Graph(_)
        | ExportError::File { .. }
        | ExportError::NotFinite(_)
        | ExportError::Read { .. } => Failure::usage(escaped(error)),
        ExportError::Write { .. } | ExportError::Weights(_) => Failure::run(escaped(error)),
    }
}
