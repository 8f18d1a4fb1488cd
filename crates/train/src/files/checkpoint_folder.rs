//! A folder of checkpoints: file names, pruning, and the manifest.

use super::TrainState;
use super::tensor_file::{self, write_atomically};
use crate::TrainError;
use plimsoll_export::PARTIAL;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// The list of a folder's checkpoints, for people and programs. Resuming does not read it: file names are the truth.
pub const MANIFEST: &str = "checkpoints.json";

const PREFIX: &str = "checkpoint-";
const SUFFIX: &str = ".safetensors";

/// The name of the checkpoint after `step` steps; names sort like their steps.
pub(crate) fn file_name(step: u64) -> String {
    format!("{PREFIX}{step:012}{SUFFIX}")
}

/// The step in a checkpoint's name.
fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let step = digits.parse().ok()?;
    (file_name(step) == name).then_some(step)
}

/// The step in the name of a part of a checkpoint ([`tensor_file::part_path`]).
fn step_of_part(name: &str) -> Option<u64> {
    let (before, part) = name.strip_suffix(SUFFIX)?.rsplit_once('.')?;
    let (number, count) = part.split_once("of")?;
    let step = step_of(&format!("{before}{SUFFIX}"))?;
    let own = tensor_file::part_path(file_name(step).as_ref(), number.parse().ok()?, count.parse().ok()?);
    (own.to_str() == Some(name)).then_some(step)
}

/// The checkpoints of a folder, oldest first, good or damaged. Of those that several processes wrote it is the first one's file, without which
/// the others' are none.
///
/// ```no_run
/// let newest = plimsoll_train::checkpoints("run")?.pop();
/// println!("{newest:?}");
/// # Ok::<(), plimsoll_train::TrainError>(())
/// ```
pub fn checkpoints(folder: impl AsRef<Path>) -> Result<Vec<PathBuf>, TrainError> {
    let folder = folder.as_ref();
    let failed = |source| TrainError::file(folder, source);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        found.extend(name.to_str().and_then(step_of));
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|step| folder.join(file_name(step))).collect())
}

/// Tries a folder's checkpoints from the newest on. Returns the first result of `take`, and why each newer checkpoint was
/// refused. If all are refused, the error names them all.
pub(crate) fn newest<T>(
    folder: &Path,
    mut take: impl FnMut(&Path) -> Result<T, TrainError>,
) -> Result<(T, Vec<String>), TrainError> {
    let mut refused: Vec<String> = Vec::new();
    for path in checkpoints(folder)?.iter().rev() {
        match take(path) {
            Ok(taken) => return Ok((taken, refused)),
            Err(error) if is_refusal(&error) => refused.push(error.to_string()),
            Err(other) => return Err(other),
        }
    }
    let reason = match refused.is_empty() {
        true => format!("there is no {PREFIX}*{SUFFIX}"),
        false => format!("no checkpoint is good: {}", refused.join("; ")),
    };
    Err(tensor_file::wrong(folder, reason))
}

/// Whether an error says that a file is damaged, truncated, unreadable or another run's, so that another may be tried.
pub(crate) fn is_refusal(error: &TrainError) -> bool {
    matches!(error, TrainError::Weights { .. } | TrainError::File { .. })
}

/// After `step` was saved in a folder: removes later checkpoints (left from before the run was restarted), all but the last
/// `keep` and the best, and partial files of a killed program. Checkpoints `of_another_run` stay. Parts of checkpoints that are not there go,
/// too, and those of this one but for `parts`: how many it has with its own file. Then writes the manifest.
pub(crate) fn prune(
    folder: &Path,
    step: u64,
    keep: usize,
    best: Option<u64>,
    parts: usize,
    of_another_run: impl Fn(&Path) -> bool,
) -> Result<(), TrainError> {
    let remove = |path: &Path| fs::remove_file(path).map_err(|source| TrainError::save(path, source));
    let failed = |source| TrainError::save(folder, source);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name =
            path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(PARTIAL));
        let is_ours = |name: &str| step_of(name).or(step_of_part(name)).is_some() || name == MANIFEST;
        if name.is_some_and(is_ours) {
            remove(&path)?;
        }
    }
    let mut all = checkpoints(folder)?;
    all.retain(|path| !of_another_run(path));
    let is = |path: &Path, step: u64| path.ends_with(file_name(step));
    let end = all.iter().position(|path| is(path, step)).map_or(all.len(), |at| at + 1);
    let first = end.saturating_sub(keep.max(1));
    let stays = |&(i, path): &(usize, &PathBuf)| {
        (first..end).contains(&i) || (i < end && best.is_some_and(|best| is(path, best)))
    };
    let (kept, removed): (Vec<_>, Vec<_>) = all.iter().enumerate().partition(stays);
    removed.iter().try_for_each(|(_, path)| remove(path))?;
    remove_parts(folder, (step, parts))?;
    let kept: Vec<&PathBuf> = kept.into_iter().map(|(_, path)| path).collect();
    write_manifest(folder, &kept, best)
}

/// Removes the parts of checkpoints that are not there, and those of the one of `step` that are none of so many.
fn remove_parts(folder: &Path, (step, count): (u64, usize)) -> Result<(), TrainError> {
    let failed = |source| TrainError::save(folder, source);
    let own: Vec<PathBuf> =
        (1..count).map(|part| tensor_file::part_path(&folder.join(file_name(step)), part, count)).collect();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let Some(of) = path.file_name().and_then(|name| name.to_str()).and_then(step_of_part) else {
            continue;
        };
        let is_needed = if of == step { own.contains(&path) } else { folder.join(file_name(of)).exists() };
        if !is_needed {
            fs::remove_file(&path).map_err(|source| TrainError::save(&path, source))?;
        }
    }
    Ok(())
}

fn write_manifest(folder: &Path, kept: &[&PathBuf], best: Option<u64>) -> Result<(), TrainError> {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let entry = |path: &&PathBuf| match TrainState::read_file(path) {
        Ok(state) => json!({
            "file": name(path), "step": state.steps_done, "epoch": state.cursor.epoch, "model": state.model,
            "instructions": state.instructions, "version": state.version,
        }),
        Err(error) => json!({ "file": name(path), "refused": error.to_string() }),
    };
    let entries: Vec<_> = kept.iter().map(entry).collect();
    let best = best.and_then(|best| kept.iter().find(|path| path.ends_with(file_name(best))));
    let best = best.and_then(|path| name(path));
    let list = json!({ "checkpoints": entries, "best": best });
    write_atomically(&folder.join(MANIFEST), format!("{list:#}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_like_their_steps() {
        assert_eq!(file_name(7), "checkpoint-000000000007.safetensors");
        assert!(file_name(9) < file_name(10) && file_name(99_999) < file_name(1 << 36));
        assert_eq!(step_of(&file_name(1 << 40)), Some(1 << 40));
        for other in ["checkpoint-7.safetensors", "checkpoint-.safetensors", "weights.safetensors", ""] {
            assert_eq!(step_of(other), None, "{other}");
        }
    }

    #[test]
    fn pruning_keeps_the_last_few_and_the_best() {
        let folder = std::env::temp_dir().join(format!("plimsoll-prune-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let fill =
            |steps: &[u64]| steps.iter().for_each(|&s| fs::write(folder.join(file_name(s)), "").unwrap());
        let left = || {
            let all = checkpoints(&folder).unwrap();
            all.iter().filter_map(|p| step_of(p.file_name()?.to_str()?)).collect::<Vec<_>>()
        };
        fill(&[1, 2, 3, 4, 5, 90]);
        fs::write(folder.join(format!("{}{PARTIAL}", file_name(3))), "").unwrap();
        fs::write(folder.join("notes.txt.partial"), "").unwrap();
        let part = |step, part| tensor_file::part_path(&folder.join(file_name(step)), part, 3);
        let parts = [
            part(1, 1),
            part(3, 1),
            part(5, 2),
            part(77, 1),
            part(5, 1).with_extension("safetensors.partial"),
        ];
        parts.iter().for_each(|part| fs::write(part, "").unwrap());
        let stale = tensor_file::part_path(&folder.join(file_name(5)), 1, 2);
        fs::write(&stale, "").unwrap();
        prune(&folder, 5, 2, Some(2), 3, |path| path.ends_with(file_name(3))).unwrap();
        // 90 is from before the run was restarted, 3 is another run's.
        assert_eq!(left(), [2, 3, 4, 5]);
        assert!(!folder.join(format!("{}{PARTIAL}", file_name(3))).exists());
        assert!(folder.join("notes.txt.partial").exists());
        // Parts go with what they belong to.
        assert_eq!(parts.map(|part| part.exists()), [false, true, true, false, false]);
        assert!(!stale.exists());
        prune(&folder, 5, 1, Some(5), 1, |_| false).unwrap();
        assert!(!part(3, 1).exists() && !part(5, 2).exists());
        assert_eq!(left(), [5]);
        let list: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(folder.join(MANIFEST)).unwrap()).unwrap();
        assert_eq!(list["best"], file_name(5));
        // Without a validation there is no best.
        fill(&[0]);
        prune(&folder, 5, 1, None, 1, |_| false).unwrap();
        assert_eq!(left(), [5]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
