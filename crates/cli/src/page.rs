//! The page of a plan or run: `--report`, `--live` and `plimsoll report`.

use super::Failure;
use super::args::RunOptions;
use super::run_folder::RunFolder;
use super::setup::{Setup, spill_folder};
use super::text::escaped;
use super::{out_file, progress, say};
use clap::Args;
use plimsoll::plan::{Entry, PlanSet};
use plimsoll::report::live::{self, Feed, Server};
use plimsoll::report::{
    Alternative, CurvePoint, Measured, Series, View, account, describe, describe_under, page, write_page,
};
use plimsoll::train::{
    Callback, Control, EVENTS_FILE, RunEventKind, TrainError, TrainEvent, Trainer, TrainingPlan, read_events,
    write_atomically,
};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, Write};
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};

/// The page of a run, in its folder.
const PAGE: &str = "report.html";
/// The description of a run's plan, in its folder.
const PLAN: &str = "plan.json";
/// The longest description that is read.
const MOST_PLAN_BYTES: u64 = 256 << 20;
/// The most devices or processes whose plans are in a page.
const MOST_DEVICES: usize = 16;
/// The server's entry in the load sheet.
pub const LIVE_PAGE: &str = "live page";

/// The flags of the page.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Watching a run")]
pub struct PageOptions {
    /// Write a page that shows the memory of a step, tensor by tensor, and opens in any browser. `train` writes it to report.html
    /// in the folder of --out, unless a file is named; `plan --curve` adds what other lines and flags would do
    #[arg(long, value_name = "FILE.html", num_args = 0..=1)]
    pub report: Option<Option<PathBuf>>,
    /// Serve the page with live loss and memory on this port of 127.0.0.1; 0: any free one
    #[arg(long, value_name = "PORT")]
    pub live: Option<u16>,
    /// Serve the page on this address instead, to those who know the token in the printed link
    #[arg(long, value_name = "ADDRESS", requires = "live")]
    pub live_address: Option<IpAddr>,
}

/// `plimsoll report`.
#[derive(Debug, Args)]
pub struct ReportOptions {
    /// Folder of `train --out`, of a run that ended, was cut off, or goes on
    pub run: PathBuf,
    /// The file to write [default: report.html in the run's folder]
    #[arg(long, value_name = "FILE.html")]
    pub to: Option<PathBuf>,
}

impl PageOptions {
    /// The file of `--report`, if it is asked for.
    pub fn file(&self, out: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
        match (&self.report, out) {
            (None, _) => Ok(None),
            (Some(Some(file)), _) => Ok(Some(html(file, "--report", out)?)),
            (Some(None), Some(folder)) => Ok(Some(folder.join(PAGE))),
            (Some(None), None) => Err(Failure::usage(
                "--report needs a place: name a file, --report FILE.html, or add --out DIR",
            )),
        }
    }

    /// A trainer that accounts for the server.
    pub fn trainer(&self, trainer: Trainer) -> Trainer {
        match self.live {
            Some(_) => {
                trainer.outside(Entry::new(LIVE_PAGE, live::BYTES, "its connections and their threads"))
            }
            None => trainer,
        }
    }

    /// The port of `--live`, opened before anything is planned.
    pub fn port(&self) -> Result<Option<TcpListener>, Failure> {
        let Some(port) = self.live else { return Ok(None) };
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::AddrInUse => Failure::usage(format!(
                "--live {port}: this port is in use: name another, or 0 for any free one"
            )),
            _ => Failure::usage(format!("--live {port}: cannot open this port: {e}")),
        };
        live::bind(self.live_address, port).map(Some).map_err(failed)
    }
}

/// Refuses a file that a browser would not show as a page.
fn html(file: &Path, flag: &str, made: Option<&Path>) -> Result<PathBuf, Failure> {
    match file.extension().and_then(|end| end.to_str()) {
        Some("html" | "htm") => out_file::check(flag, file, made).map(|()| file.to_path_buf()),
        _ => Err(Failure::usage(format!("{flag} {}: end it in .html", escaped(file.display())))),
    }
}

/// What a page is about.
fn title(options: &RunOptions, setup: &Setup) -> String {
    format!("{} on {}, batches of {}", options.model.model, setup.data.name, setup.batch)
}

/// The description of a planned run: of its process and, where there are several, of each device.
pub fn view(options: &RunOptions, setup: &Setup, plans: &TrainingPlan) -> Result<View, Failure> {
    let title = title(options, setup);
    let times = |device: usize, set: &PlanSet| {
        (0..set.plans.len()).map(|plan| plans.device_step_times(device, plan)).collect::<Result<Vec<_>, _>>()
    };
    let count = plans.devices().count();
    if count == 1 {
        return Ok(describe(&title, plans, &times(0, plans)?));
    }
    // Each device tells of its own spill file.
    let mut view = View { file: Vec::new(), ..account(&title, plans.load_sheet()) };
    // Host memory, where the first device has another space: that is among the devices'.
    view.spaces.drain(..view.spaces.len() - 1);
    view.spaces[0].name = "whole process".into();
    for (device, (set, sheet)) in plans.devices().zip(plans.device_sheets()).take(MOST_DEVICES).enumerate() {
        let name = sheet.device.clone().unwrap_or_else(|| format!("device {device}"));
        view.add_device(&name, describe_under(&title, sheet, set, &times(device, set)?));
    }
    view.notes.extend(left_out(count, "devices"));
    Ok(view)
}

/// The description of the plans of several processes.
pub fn view_of_ranks(options: &RunOptions, setup: &Setup, plans: &[TrainingPlan]) -> Result<View, Failure> {
    let title = title(options, setup);
    let first = plans.first().ok_or_else(|| Failure::usage("there is no process to describe"))?;
    let mut view = View { spaces: Vec::new(), file: Vec::new(), ..account(&title, first.load_sheet()) };
    for (rank, plans) in plans.iter().enumerate().take(MOST_DEVICES) {
        let times =
            (0..plans.plans.len()).map(|plan| plans.step_times(plan)).collect::<Result<Vec<_>, _>>()?;
        view.add_device(&format!("rank {rank}"), describe(&title, plans, &times));
    }
    view.notes.extend(left_out(plans.len(), "ranks"));
    Ok(view)
}

/// A note on devices or ranks that a page has no room for.
fn left_out(count: usize, what: &str) -> Option<String> {
    (count > MOST_DEVICES).then(|| format!("Of {count} {what} the first {MOST_DEVICES} are shown."))
}

/// Points of the curve, from plans under lines.
pub fn curve_points(plans: &[TrainingPlan]) -> Vec<CurvePoint> {
    let point = |plans: &TrainingPlan| {
        let sheet = &plans.sheet;
        // Without a line, a line at the peak gives the same plan.
        let line = if sheet.line_bytes == usize::MAX { sheet.total_bytes } else { sheet.line_bytes };
        CurvePoint {
            line_bytes: line as u64,
            planned_bytes: sheet.total_bytes as u64,
            nanoseconds: plans.plans.first().map_or(0, |plan| plan.nanoseconds),
        }
    };
    plans.iter().map(point).collect()
}

/// An alternative as the page shows it.
pub fn shown(alternative: &super::refusal::Alternative) -> Alternative {
    Alternative {
        change: alternative.change.to_string(),
        flags: alternative.flags.clone(),
        planned_bytes: alternative.planned_peak_bytes as u64,
        nanoseconds: (alternative.predicted_ms * 1e6) as u64,
        fits: alternative.fits,
    }
}

/// Writes a page, and says so.
pub fn write(view: &View, file: &Path) -> Result<(), Failure> {
    write_atomically(file, page(view).as_bytes())?;
    say(&format!("Wrote the page {}", escaped(file.display())));
    Ok(())
}

/// Writes the page of a run that was refused, whose plan is above the line, if it is asked for.
pub fn write_refused(
    options: &RunOptions,
    setup: &Setup,
    mut plans: TrainingPlan,
    alternatives: Vec<Alternative>,
) -> Result<(), Failure> {
    let Some(file) = options.page.file(options.out.as_deref())? else { return Ok(()) };
    plans.load_sheet_mut().line_bytes = setup.line_bytes;
    let mut view = View { alternatives, ..view(options, setup, &plans)? };
    view.notes.insert(0, "The line is too low. This is the plan with the lowest peak that was found.".into());
    write_atomically(&file, page(&view).as_bytes())?;
    super::aside(&format!("Wrote the page of the plan that needs more to {}", escaped(file.display())));
    Ok(())
}

/// The page of a run that begins: its files, and its server.
pub struct RunPage {
    /// The file of `--report`.
    file: Option<PathBuf>,
    live: Option<(Server, Option<Feed>)>,
}

impl RunPage {
    /// Writes the description of a plan to the run's folder, and the page that was asked for; serves it where a port is open. All
    /// this is before the arena is mapped, and takes less memory than planning did.
    pub fn begin(
        options: &RunOptions,
        setup: &Setup,
        plans: &TrainingPlan,
        folder: Option<&RunFolder>,
        port: Option<TcpListener>,
    ) -> Result<Self, Failure> {
        let file = options.page.file(options.out.as_deref())?;
        if folder.is_none() && file.is_none() && port.is_none() {
            return Ok(Self { file, live: None });
        }
        let _shown = progress::activity("writing the page");
        let mut view = view(options, setup, plans)?;
        if let Some(folder) = folder {
            let text = serde_json::to_vec(&view).map_err(|e| Failure::run(format!("{PLAN}: {e}")))?;
            write_atomically(&folder.join(PLAN), &text)?;
        }
        if let Some(file) = &file {
            write(&view, file)?;
        }
        let Some(port) = port else { return Ok(Self { file, live: None }) };
        let (planned, line) = plans.sheet.host_total_and_line();
        let run = Measured {
            steps: setup.trainer.total_steps(&setup.data),
            planned_bytes: planned as u64,
            line_bytes: (line != usize::MAX).then_some(line as u64),
            live: true,
            ..Measured::default()
        };
        let failed = |e: io::Error| Failure::run(format!("--live: cannot serve the page: {e}"));
        let token = options.page.live_address.map(|_| live::token()).transpose().map_err(failed)?;
        view.measured = Some(run.clone());
        let page = unnamed_file(options, folder, &view).map_err(failed)?;
        let address = port.local_addr().map_err(failed)?;
        let (server, feed) = Server::start(port, page, token.clone(), &run).map_err(failed)?;
        let secret = token.map_or(String::new(), |token| format!("?token={token}"));
        say(&format!("Live page: http://{address}/{secret}"));
        Ok(Self { file, live: Some((server, Some(feed))) })
    }

    /// What tells the server of the run's steps.
    pub fn callback(&mut self) -> Option<impl Callback + use<>> {
        let mut feed = self.live.as_mut()?.1.take()?;
        Some(move |event: &TrainEvent<'_>| {
            match *event {
                TrainEvent::Step { step, loss, time, held, .. } => {
                    let resident = held.map(|held| held.resident_bytes as u64);
                    feed.step(step, loss, time.as_secs_f64(), resident);
                }
                TrainEvent::Validation { step, evaluation, .. } => {
                    feed.validation(step, evaluation.loss, evaluation.accuracy);
                }
                TrainEvent::Diverged { .. } | TrainEvent::AbovePlan { .. } => {}
            }
            Control::Continue
        })
    }

    /// Ends the server, and writes the page again with what was measured. The run's memory is free by now.
    pub fn end(self, folder: Option<&RunFolder>) -> Result<(), Failure> {
        drop(self.live);
        match (self.file, folder) {
            (Some(file), Some(folder)) => write(&of_run(folder.path())?, &file),
            _ => Ok(()),
        }
    }
}

/// A file without a name that holds the page, on the disk of the run.
fn unnamed_file(options: &RunOptions, folder: Option<&RunFolder>, view: &View) -> io::Result<File> {
    let spill = spill_folder(options).ok().flatten();
    let folder = folder.map(|folder| folder.path().to_path_buf()).or(spill).unwrap_or_else(|| ".".into());
    let path = folder.join(format!(".live-{}.html", std::process::id()));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    let mut out = BufWriter::new(&mut file);
    write_page(view, &mut out)?;
    out.flush()?;
    drop(out);
    file.rewind()?;
    Ok(file)
}

/// Makes the page of a run from its folder.
pub fn run(options: &ReportOptions) -> Result<(), Failure> {
    let file = match &options.to {
        Some(file) => html(file, "--to", None)?,
        None => options.run.join(PAGE),
    };
    write(&of_run(&options.run)?, &file)
}

/// What a run's folder tells: its plan, and what was measured so far.
fn of_run(folder: &Path) -> Result<View, Failure> {
    let path = folder.join(PLAN);
    let wrong = |reason: String| Failure::usage(escaped(format!("{}: {reason}", path.display())));
    let bytes = match fs::metadata(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(wrong("there is no such file: give a folder in which `train --out` left one".into()));
        }
        other => other.map_err(|e| wrong(e.to_string()))?.len(),
    };
    if bytes > MOST_PLAN_BYTES {
        return Err(wrong(format!("it has {bytes} bytes, more than {MOST_PLAN_BYTES}")));
    }
    let text = fs::read_to_string(&path).map_err(|e| wrong(e.to_string()))?;
    let mut view = View::read(&text).map_err(|e| wrong(e.to_string()))?;
    drop(text);
    let (measured, times) = measured(&folder.join(EVENTS_FILE))?;
    for plan in &mut view.plans {
        let of_plan = times.get(&plan.name).filter(|times| times.len() == plan.steps.layer.len());
        plan.measured_ns = of_plan.cloned().unwrap_or_default();
    }
    view.measured = measured;
    Ok(view)
}

/// The shortest time of each step, by plan.
type StepTimes = BTreeMap<String, Vec<Option<u64>>>;

/// The events of a run, up to where they were cut off; nothing if there are none yet.
fn measured(path: &Path) -> Result<(Option<Measured>, StepTimes), Failure> {
    let events = match read_events(path) {
        Err(TrainError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok((None, StepTimes::new()));
        }
        events => events?,
    };
    let (mut series, mut times, mut run) = (Series::default(), StepTimes::new(), Measured::default());
    for event in events {
        let event = event?;
        match event.what {
            RunEventKind::Begin { steps, planned_bytes, line_bytes, .. } => {
                run = Measured { steps, planned_bytes, line_bytes, ..run };
            }
            RunEventKind::Step { loss, seconds, resident_bytes, .. } => {
                series.step(event.step, loss, seconds, resident_bytes);
            }
            RunEventKind::Validation { figures, .. } => {
                let figure =
                    |name: &str| figures.iter().find(|(own, _)| own == name).map(|(_, value)| *value);
                series.validation(event.step, figure("test_loss").unwrap_or(f64::NAN), figure("accuracy"));
            }
            RunEventKind::StepTimes { plan, nanoseconds } => {
                times.insert(plan, nanoseconds);
            }
            RunEventKind::Diverged | RunEventKind::AbovePlan { .. } => {}
        }
    }
    let measured =
        Measured { by_step: series.points().to_vec(), validations: series.validations().to_vec(), ..run };
    Ok((Some(measured).filter(|run| run.steps > 0), times))
}
