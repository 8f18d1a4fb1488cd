//! From flags to a trainer and its data.

use super::args::{InputOptions, MachineOptions, ModelOptions, RunOptions, SpillSpeed};
use super::core_rates::at_rates_of_this_machine;
use super::input::{fit, fitted, image_options, narrowed, open_options};
use super::running::explain_split;
use super::text::escaped;
use super::zoo_model::{default_batch, default_data, entry, model, onnx_file};
use super::{Failure, applies, devices, progress, ranks, resume, zoo_model};
use plimsoll::Size;
use plimsoll::compress::{Int8Grids, KeptLayers, Pruned, places};
use plimsoll::cpu::Cpu;
use plimsoll::data::{DataError, Dataset, Family, Format, FormatOption, OpenOptions, open};
use plimsoll::graph::{Graph, GraphError};
use plimsoll::memory::{self, Process, Tag};
use plimsoll::nn::{Field, Model, Policy, step};
use plimsoll::plan::{Entry, ExecuteError, Executor, PlanSet, in_words};
use plimsoll::runtime::StepTimes;
use plimsoll::runtime::spill::SpillFile;
use plimsoll::runtime::transfer::{DISK, Rates, disk_rates};
use plimsoll::train::{BatchKind, DataFile, Reduction, TrainError, Trainer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Code, read-only data and libraries that are resident during a run. Parquet and tokenizers make the program larger.
const PROGRAM_BYTES: usize =
    (75 << 17) + if cfg!(any(feature = "parquet", feature = "tokenizers")) { 768 << 10 } else { 0 };
/// The same besides, where the kernel maps large folios of the program's file as a whole.
const LARGE_FOLIO_BYTES: usize = 3 << 20;
/// Steps of a run on synthetic data, which has no natural epoch.
const SYNTHETIC_STEPS: u64 = 100;
/// Steps of a run at most: more cannot be counted in a checkpoint.
const MOST_STEPS: u64 = 1 << 48;
/// Epochs over real data.
const EPOCHS: u64 = 6;

/// Data that is read above a lower line, so that the refusal is exact.
const SMALL_DATA_BYTES: usize = 64 << 20;

/// Threads of the program itself: one works, one shows progress.
const OWN_THREADS: usize = 2;

/// A run that is ready to be planned.
pub struct Setup {
    pub trainer: Trainer,
    pub data: Dataset,
    pub threads: usize,
    pub batch: usize,
    /// The model's inputs of one example.
    pub inputs: Vec<Field>,
    /// The model's sizes, with those from the data.
    pub sizes: ModelOptions,
    /// The line of the computing space.
    pub line_bytes: usize,
    /// Memory that was available before anything was loaded.
    pub available_bytes: Option<usize>,
    /// Flags with the values chosen for those that were not given.
    pub chosen: Vec<(&'static str, String)>,
    /// The times of steps, for a profile.
    pub times: Option<Arc<StepTimes>>,
}

impl Setup {
    /// Whether the model is one of text.
    pub fn is_text(&self) -> bool {
        self.inputs.first().is_some_and(|input| !input.ty.dtype.is_float())
    }

    /// What the model does to pictures of other sizes than its own, where no flag asked for it.
    pub fn pictures_note(&self, options: &RunOptions) -> Option<String> {
        let format = Format::find(&self.data.name, &[])?;
        let asked = options.model.image_size.is_some() || options.model.channels.is_some();
        let &[height, width, channels] = &self.inputs.first()?.ty.shape[..] else { return None };
        if asked || format.family != Family::Images || !format.takes(FormatOption::ImageSize) {
            return None;
        }
        let colours = if channels == 1 { ", in grey" } else { "" };
        let model = &options.model.model;
        Some(format!(
            "Pictures of other sizes are scaled to the {height}×{width} that {model} takes{colours}; --image-size and \
             --channels make a model for others."
        ))
    }
}

/// Builds the trainer and opens the data.
pub fn setup(options: &RunOptions) -> Result<Setup, Failure> {
    let _shown = progress::preparation("reading the data");
    let threads = threads(&options.machine)?;
    if options.micro_batches == Some(0) {
        return Err(Failure::usage("--micro-batches must be at least 1"));
    }
    let accumulate = options.accumulate.unwrap_or(1);
    if accumulate == 0 {
        return Err(Failure::usage("--accumulate must be at least 1"));
    }
    match options.save_every {
        Some(0) => return Err(Failure::usage("--save-every must be at least 1")),
        Some(_) if options.out.is_none() => {
            return Err(Failure::usage("--save-every needs a folder: add --out DIR"));
        }
        _ => {}
    }
    options.running.check(options.out.as_deref())?;
    options.watching.check(options.out.as_deref())?;
    let name = options.data.clone().unwrap_or_else(|| default_data(&options.model.model).to_string());
    let batch = batch(options.batch.unwrap_or(default_batch(&options.model.model)?))?;
    applies::check(&name, &options.input, options.augment)?;
    let mut sizes = options.model.clone();
    if sizes.widths.is_empty() {
        sizes.widths = start_widths(options)?;
    }
    let mut model = model(&sizes, Some(&name))?;
    // The line first: data that would exceed it is refused before it is loaded.
    let (available_bytes, line_bytes) = line(&options.machine);
    let step_examples = batch.saturating_mul(accumulate);
    let precision = options.precision.precision;
    let images = image_options(&options.input, model.as_ref(), precision, options.augment)?;
    let open_options = OpenOptions {
        images,
        examples: step_examples.saturating_mul(10),
        validation: options.running.validation(),
        ..open_options(
            model.as_ref(),
            &options.input,
            &sizes,
            options.seed,
            readable(&name, line_bytes, available_bytes),
        )
    };
    let data = memory::tagged(Tag::Data, || open(&name, &open_options)).map_err(|error| match error {
        DataError::TooLarge { what, bytes, .. } => below_the_data(options, &what, bytes, line_bytes),
        error => explain_split(error),
    })?;
    // The model takes the number of features, classes or tokens from the data.
    if fit(&mut sizes, &name, &data)? {
        model = zoo_model::model(&sizes, Some(&name))?;
    }
    let data = fitted(data, model.as_ref(), options.seed)?;
    check_pictures(&options.model, model.as_ref(), &data)?;
    model = narrowed(model, &data, precision)?;
    let examples = data.train.len().unwrap_or(step_examples);
    let most = examples / accumulate;
    if batch > most {
        if most == 0 {
            let message =
                format!("--accumulate {accumulate} needs as many training examples, the data has {examples}");
            return Err(Failure::usage(message));
        }
        super::hint(&format!("the data has {examples} training examples: the batch is {most}"));
    }
    let batch = batch.min(most);
    let rate = options.update.rate()?;
    let (inputs, classes) = (model.inputs(), model.target().bound.is_some());
    let synthetic = applies::is(&name, Family::Synthetic);
    let sparsity =
        options.prune.sparsity(run_steps(options, synthetic, examples.div_ceil(batch * accumulate)))?;
    let optimizer = options.update.optimizer()?;
    let mut sparse = BTreeMap::new();
    let optimizer = match sparsity {
        Some(sparsity) => {
            let pruned = options.prune.around(sparsity, optimizer);
            if options.inference.is_some() {
                sparse = stripped(options, model.as_ref(), &pruned).map_err(TrainError::from)?;
            }
            Box::new(pruned)
        }
        None => optimizer,
    };
    let trainer = Trainer::new(model, optimizer).sparse_parameters(sparse);
    let times = options.watching.profile.then(|| Arc::new(StepTimes::default()));
    let on_several = options.devices.trainer(trainer.clone(), options, threads, line_bytes)?;
    let (trainer, device_line) = match on_several {
        Some(trainer) => (trainer, None),
        None => {
            let (executor, device_line) = run_executor(options, threads, line_bytes, times.as_ref())?;
            (trainer.executor(executor), device_line)
        }
    };
    let trainer = match ranks::world() {
        Some(world) => trainer.ranks(world),
        None => trainer,
    };
    let kinds = options.inference.map_or(vec![BatchKind::Train, BatchKind::Evaluate], |kind| vec![kind]);
    let reduction = options.ranks.reduce.unwrap_or_default();
    if let (Reduction::Fast, Some(world)) = (reduction, ranks::world()) {
        let count = world.size();
        super::hint(&format!(
            "--reduce fast: the MPI library adds sums up in its own order, so results have the bits of {count} processes, not of one"
        ));
    }
    let trainer = trainer.shard(options.ranks.shard).reduction(reduction);
    let trainer = trainer
        .batch(batch)
        .accumulate(accumulate)
        .kinds(&kinds)
        .seed(options.seed)
        .schedule(options.update.schedule()?)
        .warmup(options.update.warmup.unwrap_or(0))
        .precision(options.precision.policy()?)
        .memory(Size::Bytes(line_bytes))
        .device_line(device_line.unwrap_or(usize::MAX));
    let trainer = match options.on_bytes {
        true => {
            let kept = KeptLayers::default();
            trainer.precision(Policy::default()).inference_pass(move |graph| on_bytes(graph, &kept))
        }
        false => trainer,
    };
    let trainer = match plan_cache(options.plan_cache.as_deref())? {
        Some(folder) => trainer.plan_cache(folder),
        None => trainer,
    };
    let trainer = options.running.trainer(trainer, classes)?;
    let trainer = options.watching.trainer(options.page.trainer(trainer));
    let trainer = match options.micro_batches {
        Some(parts) => trainer.micro_batches(parts),
        None => trainer,
    };
    let trainer = if options.allow_split_batchnorm { trainer.allow_split_batch_norm() } else { trainer };
    check_blocks(options, &trainer, batch)?;
    let trainer = progress::attach(trainer);
    let with_gpu = device_line.is_some() || options.devices.have_gpu()?;
    let process = process(options.devices.threads(threads)?, with_gpu && options.elsewhere.is_none());
    // The second arena of the memory check is not in the plan.
    let mut trainer = trainer.process(if options.check_memory { process.unwatched() } else { process });
    if let Some(size) = options.your_code {
        let bytes = size.bytes(available_bytes.unwrap_or(usize::MAX));
        trainer = trainer.outside(Entry::new("your code", bytes, "declared with --your-code"));
    }
    for &pass in &options.without {
        trainer = trainer.without(pass);
    }
    let mut chosen = vec![("data", name.clone()), ("batch", batch.to_string()), ("lr", rate.to_string())];
    chosen.extend((!sizes.widths.is_empty()).then(|| ("widths", sizes.widths.join(","))));
    chosen.extend(sparsity.map(|sparsity| ("prune-schedule", sparsity.to_string())));
    // An automatic placement is kept as what it came to.
    chosen.extend(trainer.placement()?.map(|placement| ("place", placement.to_string())));
    if let Some(folder) = &options.out {
        trainer = trainer.checkpoints(folder, options.save_every);
        let notes = resume::notes(options, &chosen);
        trainer = notes.into_iter().fold(trainer, |trainer, (key, value)| trainer.note(key, value));
    }
    trainer = match (options.steps, options.epochs) {
        (Some(0), _) => return Err(Failure::usage("--steps must be at least 1")),
        (Some(steps), _) if steps > MOST_STEPS => {
            return Err(Failure::usage(format!("--steps must be at most {MOST_STEPS}")));
        }
        (_, Some(0)) => return Err(Failure::usage("--epochs must be at least 1")),
        (Some(steps), _) => trainer.steps(steps),
        (None, Some(epochs)) => trainer.epochs(epochs),
        (None, None) if synthetic => trainer.steps(SYNTHETIC_STEPS),
        (None, None) => trainer.epochs(EPOCHS),
    };
    if trainer.total_steps(&data) > MOST_STEPS {
        return Err(Failure::usage(format!("--epochs: a run has at most {MOST_STEPS} steps")));
    }
    let [steps, epochs] = match (options.steps, options.epochs) {
        (None, None) if synthetic => [Some(SYNTHETIC_STEPS), None],
        (None, None) => [None, Some(EPOCHS)],
        (steps, epochs) => [steps, epochs],
    };
    let machine = [("memory", options.machine.memory.to_string()), ("threads", threads.to_string())];
    let lengths = [("steps", steps), ("epochs", epochs)];
    chosen.extend(lengths.into_iter().filter_map(|(flag, n)| Some((flag, n?.to_string()))).chain(machine));
    let folders = [
        ("out", &options.out),
        ("spill", &options.spill),
        ("plan-cache", &options.plan_cache),
        ("log", &options.running.log),
    ];
    let folders = folders.into_iter().filter_map(|(flag, f)| Some((flag, f.as_ref()?.display().to_string())));
    chosen.extend(folders);
    chosen.extend(options.weights.as_ref().map(|path| ("weights", path.display().to_string())));
    chosen.extend(options.new_head.then(|| ("new-head", "true".to_string())));
    chosen.extend(options.running.weight_names().map(|name| ("weight-names", name)));
    chosen.extend(options.your_code.map(|size| ("your-code", size.to_string())));
    chosen.extend(options.spill_speed.map(|speed| {
        let speed = match speed {
            SpillSpeed::Bytes(bytes) => Size::Bytes(bytes).to_string(),
            SpillSpeed::Measured => "measure".into(),
        };
        ("spill-speed", speed)
    }));
    chosen.extend(options.devices.replicas.map(|devices| ("replicas", devices.to_string())));
    let device_memory = options.machine.device_memory.as_ref().filter(|_| options.elsewhere.is_none());
    chosen.extend(device_memory.map(|memory| ("device-memory", memory.to_string())));
    chosen.extend(options.micro_batches.map(|parts| ("micro-batches", parts.to_string())));
    let line_bytes = device_line.unwrap_or(line_bytes);
    Ok(Setup { trainer, data, threads, batch, inputs, sizes, line_bytes, available_bytes, chosen, times })
}

/// The most bytes of data that are read: those of the line, or, of digits, which are held as a whole, some that are quickly read and
/// that this machine has to spare, so that the refusal of a lower line tells what would do.
fn readable(data: &str, line_bytes: usize, available_bytes: Option<usize>) -> usize {
    let held = Format::find(data, &[]).is_some_and(|format| format.prefix() == "mnist");
    let spare = available_bytes.filter(|_| held).map_or(0, |available| available / 2);
    line_bytes.max(SMALL_DATA_BYTES.min(spare))
}

/// The failure of a line below what the data alone takes, with what the rest of the run takes at least.
fn below_the_data(options: &RunOptions, what: &str, bytes: u64, line_bytes: usize) -> Failure {
    let without = RunOptions {
        data: Some("synthetic".into()),
        input: InputOptions::default(),
        augment: false,
        out: None,
        save_every: None,
        ..options.clone()
    };
    let rest =
        setup(&without).ok().and_then(|setup| Some(setup.trainer.least_memory(&setup.data).ok()?.bytes()));
    let needed = bytes.saturating_add(rest.unwrap_or(0) as u64);
    let words = |bytes: u64| in_words(usize::try_from(bytes).unwrap_or(usize::MAX));
    let with = rest
        .map_or(String::new(), |_| format!(", and with {} at least {}", options.model.model, words(needed)));
    let format = options.data.as_deref().and_then(|data| Format::find(data, &[]));
    let other = match format.is_some_and(|format| format.name == "mnist:DIR") {
        true => "as images:DIR or npz:FILE it is read from its files when it is needed",
        false => "take less data",
    };
    Failure::below(
        format!(
            "{what} alone needs {}{with}; the line is {}: raise it to more than that, or {other}",
            words(bytes),
            in_words(line_bytes)
        ),
        needed,
        line_bytes as u64,
    )
}

/// The widths of the run that this one starts from.
fn start_widths(options: &RunOptions) -> Result<Vec<String>, Failure> {
    let Some(folder) = options.weights.as_ref().filter(|path| path.is_dir()) else { return Ok(Vec::new()) };
    let file = DataFile::read(folder).map_err(|e| Failure::usage(escaped(e)))?;
    Ok(file.and_then(|file| file.model_options.get("widths").map(zoo_model::widths_in)).unwrap_or_default())
}

/// Steps of a run, as the flags say.
fn run_steps(options: &RunOptions, synthetic: bool, batches: usize) -> u64 {
    let epoch = options.running.steps_per_epoch.unwrap_or(batches as u64);
    match (options.steps, options.epochs) {
        (Some(steps), _) => steps,
        (None, Some(epochs)) => epochs.saturating_mul(epoch),
        (None, None) if synthetic => SYNTHETIC_STEPS,
        (None, None) => EPOCHS.saturating_mul(epoch),
    }
}

/// Refuses pictures in memory of another size than the model's, with the flags of a model that takes them.
fn check_pictures(options: &ModelOptions, model: &dyn Model, data: &Dataset) -> Result<(), Failure> {
    if onnx_file(&options.model).is_some() {
        return Ok(());
    }
    let entry = entry(&options.model)?;
    let (inputs, (found, _)) = (model.inputs(), data.train.schema().fields()?);
    let shape = |field: Option<&Field>| <[usize; 3]>::try_from(&field?.ty.shape[..]).ok();
    let (Some(takes), Some(has)) = (shape(inputs.first()), shape(found.first().copied())) else {
        return Ok(());
    };
    let flags = [
        ("image", "--image-size", takes[0] != has[0], has[0]),
        ("channels", "--channels", takes[2] != has[2], has[2]),
    ];
    let differ = flags.into_iter().filter(|(_, _, differs, _)| *differs);
    let flags: Option<Vec<String>> = differ
        .map(|(option, flag, _, size)| entry.options.contains(&option).then(|| format!("{flag} {size}")))
        .collect();
    match flags {
        Some(flags) if !flags.is_empty() && has[0] == has[1] => Err(Failure::usage(format!(
            "{} takes pictures of {}×{} with {} channels, the data has {}×{} with {}: add {}",
            entry.name,
            takes[0],
            takes[1],
            takes[2],
            has[0],
            has[1],
            has[2],
            flags.join(" ")
        ))),
        _ => Ok(()),
    }
}

/// Refuses micro-batches and accumulated batches that do not end at blocks of examples, with the next flags that do.
fn check_blocks(options: &RunOptions, trainer: &Trainer, batch: usize) -> Result<(), Failure> {
    let accumulate = options.accumulate.unwrap_or(1);
    let parts = options.micro_batches.unwrap_or(accumulate);
    let name = &options.model.model;
    let splits = options.allow_split_batchnorm || onnx_file(name).is_some() || entry(name)?.splits;
    // Another reason comes first for models that cannot be split.
    if parts.max(accumulate) == 1 || !splits {
        return Ok(());
    }
    let (block, working) = (trainer.block(), parts.next_multiple_of(accumulate));
    let unit = (working / accumulate).saturating_mul(block);
    if working == parts && batch.is_multiple_of(unit) {
        return Ok(());
    }
    let mut flags = format!("--batch {}", batch.next_multiple_of(unit));
    if accumulate > 1 {
        flags += &format!(" --accumulate {accumulate}");
    }
    if options.micro_batches.is_some() {
        flags += &format!(" --micro-batches {working}");
    }
    let whole = batch.saturating_mul(accumulate);
    Err(Failure::usage(format!(
        "{whole} examples in {parts} micro-batches do not end at blocks of {block} examples, by which gradients are summed: \
         {flags} does"
    )))
}

/// The folder of the spill file.
pub fn spill_folder(options: &RunOptions) -> Result<Option<PathBuf>, Failure> {
    let own = options.out.as_deref().or(options.resume.as_deref()).unwrap_or(Path::new("."));
    spill_folder_or(options.spill.as_deref(), own)
}

/// The folder of `--spill`, or this one.
fn spill_folder_or(given: Option<&Path>, own: &Path) -> Result<Option<PathBuf>, Failure> {
    match given {
        Some(folder) if folder.as_os_str() == "none" => Ok(None),
        Some(folder) if !folder.is_dir() => {
            Err(Failure::usage(format!("--spill {}: there is no such folder", escaped(folder.display()))))
        }
        Some(folder) => Ok(Some(folder.to_path_buf())),
        None => Ok(Some(own.to_path_buf())),
    }
}

/// The processor as the executor of a trained model, with weights offloaded to the folder of `--spill` or of its run where they
/// exceed the line.
pub fn trained_executor(
    threads: usize,
    spill: Option<&Path>,
    run: &Path,
) -> Result<Box<dyn Executor>, Failure> {
    let executor = cpu(threads)?;
    Ok(Box::new(match spill_folder_or(spill, run)? {
        Some(folder) => executor.spilling(folder),
        None => executor,
    }))
}

/// Refuses a plan that offloads to a folder which a run would refuse.
pub fn check_spill_folder(options: &RunOptions, plans: &PlanSet) -> Result<(), Failure> {
    if plans.tier_bytes.file == 0 || options.elsewhere.is_some() {
        return Ok(());
    }
    let Some(folder) = spill_folder(options)? else { return Ok(()) };
    let existing = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    match SpillFile::create(existing, 0) {
        Ok(_) => Ok(()),
        Err(error) => Err(TrainError::from(ExecuteError::Transfer(error.to_string())).into()),
    }
}

/// What a run that prunes leaves of the weights of a step that does not train.
fn stripped(
    options: &RunOptions,
    model: &dyn Model,
    pruned: &Pruned,
) -> Result<BTreeMap<String, usize>, GraphError> {
    let graph = step::prediction(model, 1)?;
    let graph = if options.on_bytes { on_bytes(graph, &KeptLayers::default())? } else { graph };
    Ok(pruned.stripped(&graph))
}

/// A prediction step with its layers on bytes but for some, of the sizes that any calibration gives: scales change none.
pub fn on_bytes(graph: Graph, kept: &KeptLayers) -> Result<Graph, GraphError> {
    match Int8Grids::new(vec![(1.0, 0); places(&graph, kept).len()]) {
        Some(grids) => grids.keeping(kept.clone()).apply(graph),
        None => Ok(graph),
    }
}

/// The executor of a run under a line, as its flags ask for it, and the line of its device's memory, if it has a device.
fn run_executor(
    options: &RunOptions,
    threads: usize,
    line_bytes: usize,
    times: Option<&Arc<StepTimes>>,
) -> Result<(Box<dyn Executor>, Option<usize>), Failure> {
    if let Some(elsewhere) = &options.elsewhere {
        return Ok((elsewhere.executor(options), elsewhere.device_line()));
    }
    if let Some(gpu) =
        devices::gpu(&options.machine, options.precision.precision, options.check_memory, times)?
    {
        let executor = match spill_folder(options)? {
            Some(folder) => {
                let rates = disk(options.spill_speed, &folder, line_bytes)?;
                gpu.executor.spilling(folder, rates.map_or(DISK, |rates| rates.link()))
            }
            None => gpu.executor,
        };
        return Ok((Box::new(executor), Some(gpu.line_bytes)));
    }
    Ok((cpu_executor(options, threads, line_bytes, times)?, None))
}

/// The processor as the executor of a run under a line.
pub fn cpu_executor(
    options: &RunOptions,
    threads: usize,
    line_bytes: usize,
    times: Option<&Arc<StepTimes>>,
) -> Result<Box<dyn Executor>, Failure> {
    let executor = at_rates_of_this_machine(cpu(threads)?, options.plan_cache.as_deref(), line_bytes);
    let executor = times.into_iter().fold(executor, |executor, times| executor.timed(times.clone()));
    let executor = if options.check_memory { executor.checked() } else { executor };
    Ok(Box::new(match spill_folder(options)? {
        Some(folder) => {
            let executor = match disk(options.spill_speed, &folder, line_bytes)? {
                Some(rates) => executor.disk_rates(rates),
                None => executor,
            };
            executor.spilling(folder)
        }
        None => executor,
    }))
}

/// The disk speed that the flags give, if any, for a run under a line. The folder may be created later.
fn disk(speed: Option<SpillSpeed>, folder: &Path, line_bytes: usize) -> Result<Option<Rates>, Failure> {
    Ok(match speed {
        None => None,
        Some(SpillSpeed::Bytes(bytes)) => Some(Rates::both_ways(bytes as f64 / 1e9)),
        Some(SpillSpeed::Measured) => {
            let existing = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
            let rates = disk_rates(existing, line_bytes)
                .map_err(|e| Failure::usage(format!("--spill-speed measure: {e}")))?;
            Some(rates)
        }
    })
}

/// The folder of the plan cache: the flag's, or the user's cache folder, if there is one.
pub fn plan_cache(given: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    let own =
        |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    match given {
        Some(folder) if folder.as_os_str() == "none" => Ok(None),
        Some(folder) if folder.as_os_str().is_empty() || folder.exists() && !folder.is_dir() => {
            let message = format!(
                "--plan-cache {}: this is not a folder; name one, or `none`",
                escaped(folder.display())
            );
            Err(Failure::usage(message))
        }
        Some(folder) => Ok(Some(folder.to_path_buf())),
        None => {
            let caches = own("XDG_CACHE_HOME").or_else(|| Some(own("HOME")?.join(".cache")));
            Ok(caches.map(|folder| folder.join("plimsoll")))
        }
    }
}

/// This program as its own lines account for it. What a GPU's driver and libraries take of host memory differs from machine to
/// machine: it is measured.
pub fn process(threads: usize, with_gpu: bool) -> Process {
    if with_gpu {
        return Process::default();
    }
    let folios = if memory::code_is_mapped_in_large_folios() { LARGE_FOLIO_BYTES } else { 0 };
    Process::known(PROGRAM_BYTES + folios, threads + OWN_THREADS)
}

/// The number of threads.
pub fn threads(machine: &MachineOptions) -> Result<usize, Failure> {
    match machine.threads {
        Some(0) => Err(Failure::usage("--threads must be at least 1")),
        Some(threads) if threads > 256 => Err(Failure::usage("--threads must be at most 256")),
        Some(threads) => Ok(threads),
        None => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            Ok((cores / ranks::on_this_machine()).max(1))
        }
    }
}

/// The available memory, and the line.
pub fn line(machine: &MachineOptions) -> (Option<usize>, usize) {
    let available = memory::available();
    let line = machine.memory.own();
    let bytes = line.bytes(available.unwrap_or(usize::MAX));
    // Shares are of what the processes on this machine have together.
    let share = if matches!(line, Size::Percent(_)) { bytes / ranks::on_this_machine() } else { bytes };
    (available, share)
}

/// Says that a line is above what this machine has left, where a plan may be refused that it allows.
pub fn say_line_above(machine: &MachineOptions, available: Option<usize>) {
    if let (Size::Bytes(line), Some(available)) = (machine.memory.own(), available)
        && line > available
    {
        super::hint(&format!(
            "the line is {}, but only {} are available here: a plan that needs more than those is refused",
            in_words(line),
            in_words(available)
        ));
    }
}

/// Refuses a plan above the available memory. That is an estimate, so only a plan well above it is refused.
pub fn check_available(planned: usize, available: Option<usize>) -> Result<(), Failure> {
    match available {
        Some(available) if available + available / 16 < planned => {
            let (needs, has) = (in_words(planned), in_words(available));
            Err(Failure::memory(format!(
                "the plan needs {needs}, and only {has} are available here: lower the batch or free memory"
            )))
        }
        _ => Ok(()),
    }
}

/// Refuses a batch without examples.
pub fn batch(batch: usize) -> Result<usize, Failure> {
    if batch == 0 { Err(Failure::usage("--batch must be at least 1")) } else { Ok(batch) }
}

/// An executor with this many threads, for runs that offload nothing.
pub fn executor(threads: usize) -> Result<Box<dyn Executor>, Failure> {
    Ok(Box::new(cpu(threads)?))
}

fn cpu(threads: usize) -> Result<Cpu, Failure> {
    Cpu::new(threads).map_err(|e| Failure::run(format!("cannot start {threads} threads: {e}")))
}
