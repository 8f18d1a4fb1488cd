//! A run's scalars, parameters and configuration as TensorBoard shows them: an event file, which is a TFRecord file of `Event`
//! messages. Field numbers are those of TensorBoard's `event.proto` and `summary.proto`.

use super::waiting::Waiting;
use crate::{Callback, Control, Held, TrainError, TrainEvent};
use plimsoll_data::tfrecord_checksum;
use plimsoll_trace::proto::Message;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Bytes of records before they are written.
const BUFFER_BYTES: usize = 32 << 10;
/// Scalars of steps that wait to be encoded at most, and those of one step.
const MOST_SCALARS: usize = 384;
const STEP_SCALARS: usize = 7;
/// The shortest time between two points of memory.
const MEASURE_EVERY: Duration = Duration::from_millis(200);

/// The limit of the first bucket above zero, how much larger each next one is, and how many there are: up to 10²⁰.
const SMALLEST: f64 = 1e-12;
const GROWTH: f64 = 1.1;
const BUCKETS: usize = 775;

/// `Summary.Value`'s fields.
const TAG: u32 = 1;
const SIMPLE_VALUE: u32 = 2;
const HISTOGRAM: u32 = 5;
const TENSOR: u32 = 8;
const METADATA: u32 = 9;

/// Writes a run's events to a folder that TensorBoard shows: losses, metrics, learning rate, samples per second, memory; on
/// request histograms of the parameters.
///
/// ```no_run
/// # use plimsoll_train::{Session, TensorBoard, TrainError};
/// # fn watch(session: &mut Session) -> Result<(), TrainError> {
/// let mut board = TensorBoard::create("runs/first", 0)?.histograms(100);
/// board.text("configuration", "lenet, batch 64")?;
/// session.add(board);
/// # Ok(())
/// # }
/// ```
pub struct TensorBoard {
    path: PathBuf,
    file: File,
    /// Records that are not written yet, and one in the making.
    buffer: Vec<u8>,
    event: Message,
    scalars: Waiting<Scalar>,
    measured: Option<Instant>,
    planned_bytes: Option<usize>,
    /// Steps between two histograms.
    every: Option<u64>,
    histogram: Histogram,
}

/// A scalar of a step.
struct Scalar {
    /// Seconds since 1970.
    time: f64,
    step: u64,
    tag: &'static str,
    value: f64,
}

impl TensorBoard {
    /// Memory that it takes, for [`crate::Trainer::outside`].
    pub const BYTES: usize =
        2 * BUFFER_BYTES + MOST_SCALARS * size_of::<Scalar>() + 3 * 2 * BUCKETS * size_of::<f64>();

    /// A new event file in a folder, which is made if it is not there, of a run that has done so many steps: TensorBoard then
    /// forgets the later ones of earlier files.
    pub fn create(folder: impl AsRef<Path>, steps_done: u64) -> Result<Self, TrainError> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder).map_err(|source| TrainError::file(folder, source))?;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let process = std::process::id();
        // Files of one second are kept apart by the process, and of one process by a number.
        let name = |n: u32| format!("events.out.tfevents.{:010}.plimsoll.{process}.{n}", since.as_secs());
        let mut number = 0;
        let (path, file) = loop {
            let path = folder.join(name(number));
            match File::create_new(&path) {
                Ok(file) => break (path, file),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && number < 1000 => number += 1,
                Err(source) => return Err(TrainError::file(&path, source)),
            }
        };
        let mut board = Self {
            path,
            file,
            buffer: Vec::with_capacity(BUFFER_BYTES),
            event: Message::with_capacity(BUFFER_BYTES),
            scalars: Waiting::new(MOST_SCALARS),
            measured: None,
            planned_bytes: None,
            every: None,
            histogram: Histogram::default(),
        };
        board.write(|event| event.text(3, "brain.Event:2"))?;
        if steps_done > 0 {
            board.write(|event| {
                event.int(2, steps_done as i64 + 1);
                event.message(7, |log| log.uint(1, 1));
            })?;
        }
        board.write_all()?;
        Ok(board)
    }

    /// Also writes histograms of the parameters, every so many steps, at least one.
    pub fn histograms(mut self, every: u64) -> Self {
        (self.every, self.histogram) = (Some(every.max(1)), Histogram::with_buckets());
        self
    }

    /// Shows what was planned beside what the process holds.
    pub fn planned_bytes(mut self, bytes: usize) -> Self {
        self.planned_bytes = Some(bytes);
        self
    }

    /// Writes text, as Markdown.
    pub fn text(&mut self, tag: &str, text: &str) -> Result<(), TrainError> {
        self.write(|event| text_event(event, tag, text))?;
        self.write_all()
    }

    fn scalar(&mut self, step: u64, tag: &str, value: f64) -> Result<(), TrainError> {
        self.write(|event| scalar_event(event, step, tag, value))
    }

    /// Adds a record behind those of the steps so far: an event of now.
    fn write(&mut self, write: impl FnOnce(&mut Message)) -> Result<(), TrainError> {
        self.encode_scalars()?;
        self.add(now(), write)
    }

    fn encode_scalars(&mut self) -> Result<(), TrainError> {
        let mut scalars = std::mem::replace(&mut self.scalars, Waiting::new(0));
        let encoded = scalars.take(|Scalar { time, step, tag, value }| {
            self.add(time, |event| scalar_event(event, step, tag, value))
        });
        // Its memory is used again.
        self.scalars = scalars;
        encoded
    }

    /// Adds a record of a time.
    fn add(&mut self, time: f64, write: impl FnOnce(&mut Message)) -> Result<(), TrainError> {
        self.event.clear();
        self.event.double(1, time);
        write(&mut self.event);
        if self.buffer.len() + self.event.as_bytes().len() + 16 > BUFFER_BYTES {
            self.write_buffer()?;
        }
        append_record(&mut self.buffer, self.event.as_bytes());
        Ok(())
    }

    /// Writes everything to the file.
    fn write_all(&mut self) -> Result<(), TrainError> {
        self.encode_scalars()?;
        self.write_buffer()
    }

    fn write_buffer(&mut self) -> Result<(), TrainError> {
        self.file.write_all(&self.buffer).map_err(|source| TrainError::file(&self.path, source))?;
        self.buffer.clear();
        Ok(())
    }

    /// The scalars of memory after a step, from time to time.
    fn memory(&mut self, held: Option<Held>) -> [Option<(&'static str, f64)>; 3] {
        if self.measured.is_some_and(|at| at.elapsed() < MEASURE_EVERY) {
            return [None; 3];
        }
        self.measured = Some(Instant::now());
        let bytes = |tag: &'static str, bytes: Option<usize>| bytes.map(|bytes| (tag, bytes as f64));
        [
            bytes("memory/resident_bytes", held.map(|held| held.resident_bytes)),
            bytes("memory/swapped_bytes", held.map(|held| held.swapped_bytes)),
            bytes("memory/planned_bytes", self.planned_bytes),
        ]
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Callback for TensorBoard {
    fn on(&mut self, event: &TrainEvent<'_>) -> Result<Control, TrainError> {
        match *event {
            TrainEvent::Step { step, loss, examples, time, held, learning_rate, scale, .. } => {
                let speed = examples as f64 / time.as_secs_f64().max(1e-9);
                let own: [_; STEP_SCALARS - 3] = [
                    Some(("loss/train", loss)),
                    Some(("samples_per_second", speed)),
                    learning_rate.map(|rate| ("learning_rate", rate)),
                    scale.map(|scale| ("loss_scale", scale.scale)),
                ];
                let at = now();
                for (tag, value) in own.into_iter().chain(self.memory(held)).flatten() {
                    self.scalars.push(Scalar { time: at, step, tag, value });
                }
                if self.scalars.is_due(time, STEP_SCALARS) {
                    self.write_all()?;
                }
            }
            TrainEvent::Validation { step, part, train_loss, evaluation, figures, .. } => {
                if train_loss.is_finite() {
                    self.scalar(step, "loss/train_mean", train_loss)?;
                }
                self.scalar(step, &format!("loss/{part}"), evaluation.loss)?;
                for (name, value) in figures {
                    self.scalar(step, &format!("{part}/{name}"), *value)?;
                }
                if let Some(accuracy) =
                    evaluation.accuracy.filter(|_| figures.iter().all(|(n, _)| n != "accuracy"))
                {
                    self.scalar(step, &format!("{part}/accuracy"), accuracy)?;
                }
                self.write_all()?;
            }
            TrainEvent::Diverged { .. } | TrainEvent::AbovePlan { .. } => self.write_all()?,
        }
        Ok(Control::Continue)
    }

    fn reads_parameters(&self, step: u64) -> bool {
        self.every.is_some_and(|every| step.is_multiple_of(every))
    }

    fn on_parameter(
        &mut self,
        step: u64,
        name: &str,
        values: &mut dyn Iterator<Item = f64>,
        last: bool,
    ) -> Result<(), TrainError> {
        values.for_each(|value| self.histogram.add(value));
        if !last {
            return Ok(());
        }
        let histogram = std::mem::take(&mut self.histogram);
        let written = self.write(|event| histogram.write(event, step, name));
        self.histogram = histogram;
        self.histogram.clear();
        written
    }

    fn flush(&mut self) -> Result<(), TrainError> {
        self.write_all()
    }
}

impl Drop for TensorBoard {
    fn drop(&mut self) {
        // The run is over: nobody is left to hear of an error.
        let _ = self.write_all();
    }
}

/// Adds a record to a TFRecord file: its length and the length's checksum, the record and its own.
fn append_record(file: &mut Vec<u8>, record: &[u8]) {
    let length = (record.len() as u64).to_le_bytes();
    file.extend_from_slice(&length);
    file.extend_from_slice(&tfrecord_checksum(&length).to_le_bytes());
    file.extend_from_slice(record);
    file.extend_from_slice(&tfrecord_checksum(record).to_le_bytes());
}

/// The step and the value of a summary.
fn summary(event: &mut Message, step: u64, tag: &str, value: impl FnOnce(&mut Message)) {
    if step > 0 {
        event.int(2, step as i64);
    }
    event.message(5, |summary| {
        summary.message(1, |of| {
            of.text(TAG, tag);
            value(of);
        });
    });
}

fn scalar_event(event: &mut Message, step: u64, tag: &str, value: f64) {
    summary(event, step, tag, |of| of.float(SIMPLE_VALUE, value as f32));
}

fn text_event(event: &mut Message, tag: &str, text: &str) {
    /// `DT_STRING`.
    const STRING: u64 = 7;
    summary(event, 0, &format!("{tag}/text_summary"), |of| {
        of.message(TENSOR, |tensor| {
            tensor.uint(1, STRING);
            tensor.message(2, |shape| shape.message(2, |dimension| dimension.uint(1, 1)));
            tensor.text(8, text);
        });
        of.message(METADATA, |metadata| metadata.message(1, |plugin| plugin.text(1, "text")));
    });
}

/// Counts of values in buckets that grow by a tenth from one to the next, below and above zero.
#[derive(Default)]
struct Histogram {
    counts: Vec<f64>,
    /// Scratch for what is written.
    limits: Vec<f64>,
    least: f64,
    most: f64,
    number: f64,
    sum: f64,
    squares: f64,
}

impl Histogram {
    fn with_buckets() -> Self {
        let mut histogram = Self {
            counts: vec![0.0; 2 * BUCKETS],
            limits: (0..2 * BUCKETS).map(limit).collect(),
            ..Self::default()
        };
        histogram.clear();
        histogram
    }

    fn clear(&mut self) {
        self.counts.fill(0.0);
        (self.least, self.most) = (f64::INFINITY, f64::NEG_INFINITY);
        (self.number, self.sum, self.squares) = (0.0, 0.0, 0.0);
    }

    fn add(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        self.counts[bucket(value)] += 1.0;
        (self.least, self.most) = (self.least.min(value), self.most.max(value));
        self.number += 1.0;
        self.sum += value;
        self.squares += value * value;
    }

    /// Writes the buckets from the first that holds something to the last, and an empty one before them.
    fn write(&self, event: &mut Message, step: u64, name: &str) {
        let first = self.counts.iter().position(|count| *count > 0.0).unwrap_or(0).saturating_sub(1);
        let last = self.counts.iter().rposition(|count| *count > 0.0).unwrap_or(0);
        summary(event, step, name, |of| {
            of.message(HISTOGRAM, |histogram| {
                let ends = if self.number > 0.0 { [self.least, self.most] } else { [0.0; 2] };
                histogram.double(1, ends[0]);
                histogram.double(2, ends[1]);
                histogram.double(3, self.number);
                histogram.double(4, self.sum);
                histogram.double(5, self.squares);
                histogram.doubles(6, &self.limits[first..=last]);
                histogram.doubles(7, &self.counts[first..=last]);
            });
        });
    }
}

/// The bucket of a value: `BUCKETS` of them are below zero.
fn bucket(value: f64) -> usize {
    let size = (value.abs() / SMALLEST).ln() / GROWTH.ln();
    let place = if size < 0.0 { 0 } else { (size as usize + 1).min(BUCKETS - 1) };
    if value < 0.0 { BUCKETS - 1 - place } else { BUCKETS + place }
}

/// The upper end of a bucket.
fn limit(bucket: usize) -> f64 {
    let size = |place: usize| SMALLEST * GROWTH.powi(place as i32);
    match bucket {
        bucket if bucket + 1 == 2 * BUCKETS => f64::MAX,
        bucket if bucket >= BUCKETS => size(bucket - BUCKETS),
        bucket if bucket + 1 == BUCKETS => 0.0,
        bucket => -size(BUCKETS - 2 - bucket),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `tensorboard.summary.writer.record_writer` wrote of the same events.
    const FROZEN: &str = "1800000000000000a37f4b22090000000000448f401a0d627261696e2e4576656e743a32aba33345200000000000000029eda950\
        0900000000004a8f4010072a130a110a0a6c6f73732f747261696e150000803e06fc1dff6500000000000000ebd05a69090000000000508f4010082a\
        580a560a01772a5109000000000000f0bf11000000000000004019000000000000084021000000000000f83f29000000000000154032100000000000\
        00000000000000000004403a10000000000000f03f00000000000000401ab207973d000000000000006049f1ec090000000000588f402a320a300a10\
        72756e2f746578745f73756d6d61727942120807120412020801420862617463682036344a080a060a0474657874a20344bc";

    #[test]
    fn records_have_the_bytes_that_tensorboard_writes() {
        let mut file = Vec::new();
        let mut add = |time: f64, write: &dyn Fn(&mut Message)| {
            let mut event = Message::default();
            event.double(1, time);
            write(&mut event);
            append_record(&mut file, event.as_bytes());
        };
        add(1000.5, &|event| event.text(3, "brain.Event:2"));
        add(1001.25, &|event| scalar_event(event, 7, "loss/train", 0.25));
        let histogram = Histogram {
            counts: vec![1.0, 2.0],
            limits: vec![0.0, 2.5],
            least: -1.0,
            most: 2.0,
            number: 3.0,
            sum: 1.5,
            squares: 5.25,
        };
        add(1002.0, &|event| histogram.write(event, 8, "w"));
        add(1003.0, &|event| text_event(event, "run", "batch 64"));
        let written: String = file.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(written, FROZEN);
    }

    #[test]
    fn scalars_of_steps_that_waited_stand_before_what_came_later() {
        let scratch = plimsoll_testing::Scratch::new("board");
        let step = |step| TrainEvent::Step {
            step,
            steps: 9,
            epoch: 0,
            loss: 0.5,
            examples: 1,
            time: Duration::from_millis(1),
            data: Duration::ZERO,
            held: None,
            learning_rate: None,
            scale: None,
        };
        let evaluation = crate::Evaluation { loss: 0.5, accuracy: None, examples: 1, classes: true };
        let (train_loss, figures) = (f64::NAN, &[][..]);
        let part = "validation";
        let validated = TrainEvent::Validation {
            step: 2,
            epoch: 0,
            part,
            train_loss,
            evaluation,
            figures,
            since_best: 0,
        };
        let mut board = TensorBoard::create(&scratch.0, 0).unwrap();
        let path = board.path.clone();
        let begun = fs::metadata(&path).unwrap().len();
        for event in [step(1), step(2), validated, step(3)] {
            board.on(&event).unwrap();
        }
        // As if the program were killed here.
        let killed = fs::read(&path).unwrap();
        drop(board);
        let whole = fs::read(&path).unwrap();
        let tags = |file: &[u8]| -> String {
            let is_one = |at: &usize| file[*at..].starts_with(b"loss/");
            (0..file.len()).filter(is_one).map(|at| file[at + 5] as char).collect()
        };
        assert!(killed.len() as u64 > begun && whole.starts_with(&killed));
        // Training losses of two steps, the validation's, and that of a step.
        assert_eq!((tags(&killed).get(..3), tags(&whole).as_str()), (Some("ttv"), "ttvt"));
    }

    #[test]
    fn values_lie_in_their_buckets() {
        for value in [0.0, 1e-13, 1e-12, 0.5, 1.0, 7.25, 1e19, 1e30, -1e-13, -0.25, -3.0, -1e30] {
            let at = bucket(value);
            // At a limit a value may fall on either side of it.
            let slack = value.abs() * 1e-9;
            assert!(value <= limit(at) + slack, "{value} is above {}", limit(at));
            assert!(at == 0 || value >= limit(at - 1) - slack, "{value} is below {}", limit(at - 1));
        }
        let limits: Vec<f64> = (0..2 * BUCKETS).map(limit).collect();
        assert!(limits.is_sorted());
    }

    #[test]
    fn a_histogram_counts_every_finite_value_once() {
        let mut histogram = Histogram::with_buckets();
        [0.5, -0.25, 0.0, f64::NAN, f64::INFINITY, 3.0].into_iter().for_each(|value| histogram.add(value));
        assert_eq!((histogram.number, histogram.sum, histogram.squares), (4.0, 3.25, 9.3125));
        assert_eq!((histogram.least, histogram.most), (-0.25, 3.0));
        assert_eq!(histogram.counts.iter().sum::<f64>(), 4.0);
    }
}
