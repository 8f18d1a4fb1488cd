//! Flags from a TOML file, and the resolved flags of a run as one.

use super::args::{self, Arguments, RunOptions};
use super::text::escaped;
use super::zoo_model::default_model;
use super::{Failure, resume};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};
use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The file of resolved flags in a run's folder.
pub const RESOLVED: &str = "resolved.toml";

/// The positional argument that names a file of flags.
const CONFIG: &str = "config";

/// Keys that `plan` ignores.
const FOR_TRAIN: [&str; 8] =
    ["out", "overwrite", "save-every", "resume", "keep", "log", "live", "live-address"];

/// Parses a command line. Flags of the file that it names are inserted before its own.
pub fn arguments(words: Vec<OsString>) -> Result<(Arguments, ArgMatches), Failure> {
    let matches = Arguments::command().try_get_matches_from(&words);
    let matches = matches.unwrap_or_else(|error| number_in_words(error).exit());
    let file = matches.subcommand().and_then(|(name, given)| {
        // Not every command has this argument.
        let path = given.try_get_one::<PathBuf>(CONFIG).ok().flatten()?;
        Some((name.to_string(), path.clone()))
    });
    let matches = match (file, matches.subcommand()) {
        (Some((name, path)), Some((_, given))) => with_file(&words, &name, given, &path)?,
        _ => matches,
    };
    let mut arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
    let run = match &mut arguments.command {
        args::Command::Train(run) => Some(run),
        args::Command::Plan(plan) => Some(&mut plan.run),
        _ => None,
    };
    // The data decides the model that no flag names.
    let given = matches.subcommand().and_then(|(_, given)| given.value_source("model"));
    if let Some(run) = run.filter(|_| given == Some(ValueSource::DefaultValue)) {
        run.model.model = default_model(run.data.as_deref()).to_string();
    }
    Ok((arguments, matches))
}

/// An error of the parser, in which numbers that are none are told in other words than Rust's.
fn number_in_words(error: clap::Error) -> clap::Error {
    let cause = error.source();
    let integer = cause.and_then(|cause| cause.downcast_ref::<ParseIntError>()).map(ParseIntError::kind);
    let reason = match integer {
        Some(IntErrorKind::PosOverflow | IntErrorKind::NegOverflow) => "the number is too large",
        Some(_) => "it is not a whole number, like 8",
        None if cause.is_some_and(|cause| cause.is::<ParseFloatError>()) => "it is not a number, like 0.5",
        None => return error,
    };
    let words = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (value, flag) = (words(ContextKind::InvalidValue), words(ContextKind::InvalidArg));
    let text =
        format!("invalid value '{value}' for '{flag}': {reason}\n\nFor more information, try '--help'.\n");
    clap::Error::raw(ErrorKind::ValueValidation, text)
}

/// Parses the command line with a file's flags in it.
fn with_file(words: &[OsString], name: &str, given: &ArgMatches, path: &Path) -> Result<ArgMatches, Failure> {
    let wrong = |reason: String| Failure::usage(format!("{}: {reason}", escaped(path.display())));
    let text = std::fs::read_to_string(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            wrong("there is no such file; name one of flags, like `lr = 0.001`".into())
        }
        _ => wrong(e.to_string()),
    })?;
    let table: Table = text.parse().map_err(|e: toml::de::Error| wrong(e.to_string().trim_end().into()))?;
    let mut whole = Arguments::command();
    whole.build();
    let command = whole.find_subcommand(name).ok_or_else(|| wrong(format!("there is no command {name}")))?;
    let flags = table.iter().map(|(key, value)| Ok((find(command, key)?, value)));
    let flags: Vec<(&Arg, &Value)> = flags.collect::<Result<_, _>>().map_err(wrong)?;
    // A plan writes nothing, whatever the file asks for.
    let ignored =
        |flag: &Arg| name == "plan" && flag.get_long().is_some_and(|flag| FOR_TRAIN.contains(&flag));
    let from_file =
        flags.into_iter().filter(|(flag, _)| !ignored(flag) && !is_overridden(command, given, flag));
    let from_file = from_file.map(|(flag, value)| written(flag, value));
    let from_file: Vec<Vec<String>> = from_file.collect::<Result<_, _>>().map_err(wrong)?;
    let from_file = from_file.into_iter().flatten().map(OsString::from);
    let place = words.iter().position(|word| word.to_str() == Some(name)).map_or(words.len(), |at| at + 1);
    let (before, after) = words.split_at(place);
    let all = before.iter().cloned().chain(from_file).chain(after.iter().cloned());
    let parsed = Arguments::command().try_get_matches_from(all);
    parsed.map_err(|e| {
        wrong(number_in_words(e).render().to_string().trim_start_matches("error: ").trim_end().into())
    })
}

/// The flag of a key.
fn find<'c>(command: &'c Command, key: &str) -> Result<&'c Arg, String> {
    let name = key.replace('_', "-");
    let mut known = command.get_arguments().filter(|arg| arg.get_id() != "help");
    known.find(|arg| arg.get_long() == Some(name.as_str())).ok_or_else(|| {
        let similar = if name == "learning-rate" { Some("lr".into()) } else { suggestion(command, &name) };
        let similar = similar.map_or(String::new(), |flag| format!(": did you mean `{flag}`?"));
        format!("unknown key `{key}`{similar}")
    })
}

/// The flag that the parser suggests for an unknown one.
fn suggestion(command: &Command, unknown: &str) -> Option<String> {
    let words = [command.get_name().to_string(), format!("--{unknown}")];
    let error = command.clone().try_get_matches_from(words).err()?;
    match error.get(ContextKind::SuggestedArg)? {
        ContextValue::String(flag) => Some(flag.trim_start_matches('-').to_string()),
        _ => None,
    }
}

/// Whether the command line gives a flag, or one that excludes it.
fn is_overridden(command: &Command, given: &ArgMatches, flag: &Arg) -> bool {
    let is_given = |arg: &Arg| given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let excludes = |other: &&Arg| {
        let conflicts =
            |a: &Arg, b: &Arg| command.get_arg_conflicts_with(a).iter().any(|c| c.get_id() == b.get_id());
        conflicts(other, flag) || conflicts(flag, other)
    };
    is_given(flag) || command.get_arguments().filter(|arg| is_given(arg)).any(|arg| excludes(&arg))
}

/// A key and its value as words of a command line.
fn written(flag: &Arg, value: &Value) -> Result<Vec<String>, String> {
    let name = flag.get_long().unwrap_or_default();
    let switch = matches!(flag.get_action(), ArgAction::SetTrue);
    let word = |value: &Value| match value {
        Value::String(text) => Ok(format!("--{name}={text}")),
        Value::Integer(number) => Ok(format!("--{name}={number}")),
        Value::Float(number) => Ok(format!("--{name}={number}")),
        Value::Boolean(_) => Err(format!("`{name}` takes a value, not true or false")),
        Value::Table(_) => Err(format!("`{name}` is a table: write keys without tables")),
        Value::Array(_) | Value::Datetime(_) => Err(format!("`{name}` cannot be {value}")),
    };
    match value {
        Value::Boolean(on) if switch => Ok(if *on { vec![format!("--{name}")] } else { Vec::new() }),
        _ if switch => Err(format!("`{name}` is true or false, not {value}")),
        Value::Array(values) => values.iter().map(word).collect(),
        value => Ok(vec![word(value)?]),
    }
}

/// The resolved flags of the run in a folder, as text; empty where the folder has no file of them.
pub fn flags_in(folder: &Path) -> Result<BTreeMap<String, String>, Failure> {
    let path = folder.join(RESOLVED);
    let wrong = |reason: String| Failure::usage(format!("{}: {reason}", escaped(path.display())));
    let text = match std::fs::read_to_string(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        text => text.map_err(|e| wrong(e.to_string()))?,
    };
    let table: Table = text.parse().map_err(|e: toml::de::Error| wrong(e.to_string().trim_end().into()))?;
    let flags = table.into_iter().map(|(flag, value)| match value {
        Value::String(text) => (flag, text),
        Value::Float(number) => (flag, number.to_string()),
        other => (flag, other.to_string()),
    });
    Ok(flags.collect())
}

/// The resolved flags of a run as a TOML file.
pub fn resolved(options: &RunOptions, chosen: &[(&'static str, String)]) -> String {
    let own = resume::flags(options).into_iter().filter(|(flag, _)| !chosen.iter().any(|(c, _)| c == flag));
    let mut table = Table::new();
    for (flag, value) in own.chain(chosen.iter().cloned()) {
        // A value that would not be read back as it was written is text.
        let value = match (value.parse::<i64>(), value.parse::<f64>()) {
            _ if resume::SWITCHES.contains(&flag) => Value::Boolean(value == "true"),
            (Ok(number), _) if number.to_string() == value => Value::Integer(number),
            (Err(_), Ok(number)) if number.to_string() == value && number.is_finite() => Value::Float(number),
            _ => Value::String(value),
        };
        table.insert(flag.to_string(), value);
    }
    table.to_string()
}
