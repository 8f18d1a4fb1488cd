//! The plan cache: plans are the same as without it, whatever its folder holds.

use crate::support;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use plimsoll_data::Dataset;
use plimsoll_nn::{AdamW, Sequential};
use plimsoll_plan::{NullExecutor, PlanSet};
use plimsoll_tensor::random::Lcg;
use plimsoll_train::{TrainError, Trainer, TrainingPlan};
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use support::{data, deep};

fn model() -> Sequential {
    deep(6)
}

fn trainer() -> Trainer {
    // A batch so large that planning takes little beside the arena: a search that might pass the line is not begun.
    Trainer::new(model(), AdamW::new(1e-3))
        .executor(NullExecutor::default())
        .line(usize::MAX)
        .batch(512)
        .heap(10_000)
}

/// A folder that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("plimsoll-plans-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Self(folder)
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A line under which the plan rematerializes.
fn line(data: &Dataset) -> usize {
    let trainer = trainer();
    let whole = trainer.plan(data).unwrap().sheet.total_bytes;
    let floor = trainer.forecast(data).floor().unwrap();
    assert!(floor < whole);
    usize::midpoint(floor, whole)
}

/// The plan with a cache folder, and the number of planner calls.
fn planned(data: &Dataset, line: usize, folder: &Path) -> (PlanSet, u64) {
    let trainer = trainer().line(line).plan_cache(folder);
    let plans = trainer.plan(data).unwrap().into_plans();
    (plans, trainer.searches())
}

#[test]
fn second_forecast_is_answered_from_the_cache() -> Result<(), TrainError> {
    let (folder, data) = (Folder::new("answers"), data(&model()));
    let answers = |trainer: Trainer| {
        let mut forecast = trainer.forecast(&data);
        let floor = forecast.floor()?;
        let curve: Vec<PlanSet> = forecast.curve(5)?.into_iter().map(TrainingPlan::into_plans).collect();
        let refused = forecast.plan(floor / 2).unwrap_err().to_string();
        let searches = trainer.searches();
        Ok::<_, TrainError>(((floor, curve, refused), searches))
    };
    let (plain, all) = answers(trainer())?;
    let (first, searched) = answers(trainer().plan_cache(&folder.0))?;
    let (second, none) = answers(trainer().plan_cache(&folder.0))?;
    assert_eq!((&plain, &plain), (&first, &second));
    assert!(all > 5 && searched > 5 && searched <= all && none == 0, "{all} {searched} {none}");
    Ok(())
}

#[test]
fn damaged_file_is_a_miss() {
    let (folder, data) = (Folder::new("damaged"), data(&model()));
    let line = line(&data);
    let (plans, searches) = planned(&data, line, &folder.0);
    assert_eq!(plans, trainer().line(line).plan(&data).unwrap().into_plans());
    assert!(searches > 1);
    let files = folder.files();
    assert_eq!(files.len() as u64, searches);
    assert_eq!(planned(&data, line, &folder.0), (plans.clone(), 0));
    // Another seed than the data's.
    let mut random = Lcg::new(9);
    let mut below = |limit: usize| random.below(limit);
    let mut searched = 0;
    for case in 0..300 {
        let path = &files[below(files.len())];
        let good = fs::read(path).unwrap();
        let mut bad = good.clone();
        match case % 4 {
            0 => bad.truncate(below(good.len())),
            1 => bad.extend_from_within(..below(good.len())),
            _ => (0..1 + below(3)).for_each(|_| bad[below(good.len())] ^= 1 << below(8)),
        }
        fs::write(path, bad).unwrap();
        let (found, searches) = planned(&data, line, &folder.0);
        assert_eq!(found, plans, "case {case}");
        searched += searches;
        fs::write(path, good).unwrap();
    }
    // Some damage is harmless: bytes after the end of the gzip stream, and unused bits of its header.
    assert!(searched > 150, "{searched}");
}

#[test]
fn file_of_other_content_is_a_miss() {
    let (folder, data) = (Folder::new("foreign"), data(&model()));
    let line = line(&data);
    let (plans, searches) = planned(&data, line, &folder.0);
    let files = folder.files();
    let replan = || planned(&data, line, &folder.0);
    // A file under another key's name.
    for (from, to) in [(0, 1), (1, 0)] {
        let good = fs::read(&files[to]).unwrap();
        fs::copy(&files[from], &files[to]).unwrap();
        assert_eq!(replan(), (plans.clone(), 1), "{from}");
        assert_eq!(fs::read(&files[to]).unwrap(), good, "it is rewritten");
    }
    let packed = |text: &[u8]| {
        let mut bytes = GzEncoder::new(Vec::new(), Compression::fast());
        bytes.write_all(text).unwrap();
        bytes.finish().unwrap()
    };
    let deep = "[".repeat(1 << 20);
    let endless = vec![b' '; 80 << 20];
    // A good text behind more spaces than a plan of these graphs has bytes.
    let mut text = Vec::new();
    GzDecoder::new(&fs::read(&files[0]).unwrap()[..]).read_to_end(&mut text).unwrap();
    let padded = |spaces: usize| packed(&[&vec![b' '; spaces], &text[..]].concat());
    for (spaces, misses) in [(1_000, 0), (60 << 20, 1)] {
        fs::write(&files[0], padded(spaces)).unwrap();
        assert_eq!(replan(), (plans.clone(), misses), "{spaces}");
    }
    for text in [&b""[..], b"{}", b"null", deep.as_bytes(), &endless] {
        files.iter().for_each(|path| fs::write(path, packed(text)).unwrap());
        assert_eq!(replan(), (plans.clone(), searches));
    }
    // A folder in place of a file, and an endless file.
    fs::remove_file(&files[0]).unwrap();
    fs::create_dir(&files[0]).unwrap();
    // It cannot be replaced, so it is a miss whenever it is asked for.
    assert_eq!(replan(), (plans.clone(), 1));
    fs::remove_dir(&files[0]).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &files[0]).unwrap();
    assert_eq!(replan(), (plans.clone(), 1));
    assert_eq!(replan(), (plans, 0));
}

#[test]
fn unwritable_folder_is_ignored() {
    let (folder, data) = (Folder::new("unwritable"), data(&model()));
    let line = line(&data);
    let plans = trainer().line(line).plan(&data).unwrap().into_plans();
    fs::create_dir(&folder.0).unwrap();
    let file = folder.0.join("file");
    fs::write(&file, "").unwrap();
    for nowhere in [file.as_path(), &file.join("under"), Path::new("/proc/plans")] {
        let (found, searches) = planned(&data, line, nowhere);
        assert!(found == plans && searches > 0, "{}", nowhere.display());
    }
    assert_eq!(folder.files(), [file]);
    fs::set_permissions(&folder.0, Permissions::from_mode(0o555)).unwrap();
    assert_eq!(planned(&data, line, &folder.0).0, plans);
    fs::set_permissions(&folder.0, Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn threads_share_a_cache_folder() {
    let (folder, data) = (Folder::new("shared"), data(&model()));
    let line = line(&data);
    let plans = trainer().line(line).plan(&data).unwrap().into_plans();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..5).for_each(|_| assert_eq!(planned(&data, line, &folder.0).0, plans)));
        }
    });
    assert_eq!(planned(&data, line, &folder.0), (plans, 0));
    assert!(folder.files().iter().all(|path| path.extension().is_some_and(|e| e == "plan")));
}
