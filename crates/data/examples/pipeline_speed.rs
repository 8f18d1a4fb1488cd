//! Images per second and peak memory of the input pipeline beside tf.data and PyTorch's DataLoader, interleaved in one run:
//! JPEG files of 500×375 pixels, decode, random crop 224, flip, normalise, batches of 64, two workers.
//!
//!     cargo run --release -p plimsoll-data --example pipeline_speed -- [--torch PYTHON] [--tensorflow PYTHON]
//!         [--rounds 3] [--seconds 6] [--files 600] [--folder DIR]
//!
//! PYTHON is an interpreter that has torch and torchvision, or tensorflow. `--folder` keeps the generated files there.

#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use plimsoll_data::{Crop, Cursor, Decode, Folder, Pipeline};
use plimsoll_tensor::random::Stream;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const WIDTH: usize = 500;
const HEIGHT: usize = 375;
const QUALITY: u8 = 88;
const TILE: usize = 125;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [only, folder, seconds, workers] = &arguments[..]
        && only == "--ours"
    {
        return ours(Path::new(folder), seconds.parse()?, workers.parse()?);
    }
    let flags: BTreeMap<&str, &str> =
        arguments.chunks(2).map(|pair| (&pair[0][..], &pair[pair.len() - 1][..])).collect();
    let number = |flag: &str, default: usize| flags.get(flag).map_or(Ok(default), |text| text.parse());
    let (rounds, seconds, files) = (number("--rounds", 3)?, number("--seconds", 6)?, number("--files", 600)?);
    let folder = match flags.get("--folder") {
        Some(folder) => PathBuf::from(folder),
        None => std::env::temp_dir().join("plimsoll-pipeline-speed"),
    };
    make_files(&folder, files)?;
    let seconds = seconds.to_string();
    let path = folder.display().to_string();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/loaders.py");
    let mut contestants: Vec<(&str, Command)> = Vec::new();
    let mut own = Command::new(std::env::current_exe()?);
    own.args(["--ours", &path, &seconds, "2"]);
    contestants.push(("Plimsoll", own));
    let peers = [
        ("tf.data, whole decode", "--tensorflow", "tf"),
        ("tf.data, decode_and_crop", "--tensorflow", "tf-crop"),
        ("DataLoader, PIL", "--torch", "torch-pil"),
        ("DataLoader, torchvision.io", "--torch", "torch-io"),
    ];
    for (name, flag, what) in peers {
        if let Some(python) = flags.get(flag) {
            let mut command = Command::new(python);
            command.arg(&script).args([what, &path, &seconds]).env("TF_CPP_MIN_LOG_LEVEL", "3");
            contestants.push((name, command));
        }
    }
    let mut results: Vec<Vec<[f64; 4]>> = vec![Vec::new(); contestants.len()];
    for round in 0..rounds {
        for ((name, command), results) in contestants.iter_mut().zip(&mut results) {
            let output = command.output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            let line = text.lines().find(|line| line.starts_with('{'));
            let line = line.ok_or_else(|| format!("{name}: {}", String::from_utf8_lossy(&output.stderr)))?;
            let found = ["rate", "peak_mib", "workers_mib", "cpu_ms"].map(|key| field(line, key));
            println!(
                "round {}: {name}: {:.0} images/s, {:.2} ms of processor each",
                round + 1,
                found[0],
                found[3]
            );
            results.push(found);
        }
    }
    let median = |results: &[[f64; 4]], i: usize| {
        let mut values: Vec<f64> = results.iter().map(|r| r[i]).collect();
        values.sort_by(f64::total_cmp);
        (values[values.len() / 2], values[0], values[values.len() - 1])
    };
    let titles = ["images/s", "lowest–highest", "processor ms", "peak MiB", "Plimsoll is"];
    println!(
        "\n{:<28}{:>10}{:>16}{:>14}{:>10}{:>13}",
        "", titles[0], titles[1], titles[2], titles[3], titles[4]
    );
    let own = median(&results[0], 0).0;
    for ((name, _), results) in contestants.iter().zip(&results) {
        let (rate, low, high) = median(results, 0);
        let (cpu, memory) = (median(results, 3).0, median(results, 1).0 + median(results, 2).0);
        let range = format!("{low:.0}–{high:.0}");
        println!("{name:<28}{rate:>10.0}{range:>16}{cpu:>14.2}{memory:>10.0}{:>11.2} ×", own / rate);
    }
    Ok(())
}

/// A number of a line of JSON.
fn field(line: &str, key: &str) -> f64 {
    let after = line.split(&format!("\"{key}\":")).nth(1).unwrap_or("0");
    after.trim_start().split([',', '}']).next().and_then(|text| text.trim().parse().ok()).unwrap_or(0.0)
}

/// This library on the files, in a process of its own.
fn ours(folder: &Path, seconds: f64, workers: usize) -> Result<(), Box<dyn Error>> {
    let (train, _) = Folder::open(folder, 1 << 30)?;
    let decode = Decode::new([224, 224, 3], WIDTH * HEIGHT).crop(Crop::Random { pad: 0 }).flip();
    let pipeline = Pipeline::new(train).shuffle(0, 1).apply(decode)?.workers(workers).batch(64);
    let stated: usize = pipeline.bytes().iter().map(|share| share.bytes).sum();
    let mut batches = pipeline.drop_remainder().start(Cursor::default())?;
    for _ in 0..4 {
        batches.next()?;
    }
    let (start, before, mut images) = (Instant::now(), cpu_milliseconds(), 0);
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        images += batches.next()?.map_or(0, |batch| batch.examples());
    }
    let rate = images as f64 / start.elapsed().as_secs_f64();
    let cpu = (cpu_milliseconds() - before) / images as f64;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    let peak = peak.trim().trim_end_matches("kB").trim().parse::<f64>().unwrap_or(0.0) / 1024.0;
    println!(
        "{{\"rate\": {rate}, \"cpu_ms\": {cpu}, \"peak_mib\": {peak}, \"workers_mib\": 0, \"stated_bytes\": {stated}}}"
    );
    Ok(())
}

/// Processor time of this process, from the system's ticks of a hundredth of a second.
fn cpu_milliseconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() * 10.0
}

/// Writes the files, unless they exist: tiles of shaded textures with grain, like photographs, of about 56 KiB each.
fn make_files(folder: &Path, files: usize) -> Result<(), Box<dyn Error>> {
    let mut bytes = 0;
    for number in 0..files {
        let class = folder.join(format!("class{}", number % 4));
        let path = class.join(format!("{number:05}.jpg"));
        if !path.exists() {
            std::fs::create_dir_all(&class)?;
            let mut file = Vec::new();
            let mut encoder = Encoder::new(&mut file, QUALITY);
            encoder.set_sampling_factor(SamplingFactor::R_4_2_0);
            encoder.encode(&picture(number as u64), WIDTH as u16, HEIGHT as u16, ColorType::Rgb)?;
            std::fs::write(&path, file)?;
        }
        bytes += std::fs::metadata(&path)?.len();
    }
    println!(
        "{files} JPEG files of {:.1} KiB on average in {}",
        bytes as f64 / files as f64 / 1024.0,
        folder.display()
    );
    Ok(())
}

fn picture(number: u64) -> Vec<u8> {
    let random = Stream::new(number, 0, "picture");
    let mut pixels = Vec::with_capacity(WIDTH * HEIGHT * 3);
    for y in 0..HEIGHT {
        for x in 0..WIDTH {
            // Each tile has its own colours, waves and amount of grain.
            let tile = (y / TILE * WIDTH.div_ceil(TILE) + x / TILE) as u64;
            let draw = |i: u64| f64::from(random.uniform(tile, i));
            let (u, v) = ((x % TILE) as f64 / TILE as f64, (y % TILE) as f64 / TILE as f64);
            let wave = ((u * (3.0 + 25.0 * draw(0)) + v * 20.0 * draw(1)) * 2.0).sin();
            let grain = f64::from(random.normal((y * WIDTH + x) as u64 + 1000, 0)) * (2.0 + 9.0 * draw(2));
            for channel in 0..3 {
                let base = 255.0 * draw(3 + channel);
                let shade = 40.0 * (u - v) + 30.0 * wave;
                pixels.push((base * 0.7 + 38.0 + shade + grain).clamp(0.0, 255.0) as u8);
            }
        }
    }
    pixels
}
