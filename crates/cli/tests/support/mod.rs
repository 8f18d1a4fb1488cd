//! Runs the real binary, alone or inside a kernel-enforced memory limit.

use plimsoll::prelude::{Dataset, Session, Trainer};
pub use plimsoll_testing::Scratch;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Disables the plan cache: tests search for every plan, and leave the user's cache alone.
pub const NO_CACHE: (&str, &str) = ("XDG_CACHE_HOME", "/dev/null");

/// `plimsoll` with these arguments.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(arguments).env(NO_CACHE.0, NO_CACHE.1);
    command
}

/// Runs `plimsoll` with these arguments.
pub fn plimsoll(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the binary runs")
}

/// Whether tests that take minutes are complete: with `PLIMSOLL_LONG=1`, as `.ci/long` has it. Says what is skipped otherwise.
#[allow(dead_code, reason = "not every test file asks")]
pub fn long_tests(skipped: &str) -> bool {
    let long = std::env::var_os("PLIMSOLL_LONG").is_some();
    if !long {
        eprintln!("skipped: {skipped}; PLIMSOLL_LONG=1 runs all");
    }
    long
}

/// The last line of a run's standard output as JSON.
pub fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "status {:?}\n{text}\n{errors}", output.status.code());
    let last = text.lines().last().unwrap_or_else(|| panic!("nothing was printed: {errors}"));
    serde_json::from_str(last).unwrap_or_else(|e| panic!("{e} in `{last}`"))
}

/// A number of a report.
#[allow(dead_code, reason = "not every test file asks")]
pub fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("`{field}` is not a number in {value}"))
}

/// Plans and starts a run.
#[allow(dead_code, reason = "not every test file asks")]
pub fn prepare(trainer: &Trainer, data: &Dataset) -> Session {
    trainer.plan(data).unwrap().start().unwrap()
}

/// The bytes of every state of a run.
#[allow(dead_code, reason = "not every test file asks")]
pub fn states(session: &Session) -> Vec<Vec<u8>> {
    let names = session.plans().states.iter().map(|state| state.name.clone());
    names.map(|name| session.state(&name).unwrap().as_bytes().to_vec()).collect()
}

/// A memory control group that is removed when dropped.
#[allow(dead_code, reason = "not every test file asks")]
pub struct Group {
    folder: PathBuf,
}

#[allow(dead_code, reason = "not every test file asks")]
impl Group {
    /// A group limited to `bytes`, without swap; `None`, and a word, where this user or system cannot make one. With
    /// `PLIMSOLL_REQUIRE_CGROUP` it must be made.
    pub fn new(name: &str, bytes: usize) -> Option<Self> {
        let group = Self::make(name, bytes);
        let needed = std::env::var_os("PLIMSOLL_REQUIRE_CGROUP").is_some();
        assert!(group.is_some() || !needed, "{name}: a memory control group could not be made");
        if group.is_none() {
            eprintln!(
                "{name}: without a kernel limit: this user or system cannot make a memory control group"
            );
        }
        group
    }

    fn make(name: &str, bytes: usize) -> Option<Self> {
        let name = format!("plimsoll-{name}-{}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (root, limits): (&Path, [(&str, String); 2]) = if v1.is_dir() {
            let swap = ("memory.memsw.limit_in_bytes", bytes.to_string());
            (v1, [("memory.limit_in_bytes", bytes.to_string()), swap])
        } else {
            let root = Path::new("/sys/fs/cgroup");
            let controllers = std::fs::read_to_string(root.join("cgroup.controllers")).ok()?;
            controllers.split_whitespace().find(|c| *c == "memory")?;
            let _ = std::fs::write(root.join("cgroup.subtree_control"), "+memory");
            (root, [("memory.max", bytes.to_string()), ("memory.swap.max", "0".to_string())])
        };
        let folder = root.join(name);
        std::fs::create_dir(&folder).ok()?;
        let group = Self { folder };
        std::fs::write(group.folder.join(limits[0].0), &limits[0].1).ok()?;
        // Not every kernel accounts swap.
        let _ = std::fs::write(group.folder.join(limits[1].0), &limits[1].1);
        Some(group)
    }

    /// Runs `plimsoll` inside the group.
    pub fn plimsoll(&self, arguments: &[&str]) -> Output {
        self.run(&command(arguments))
    }

    /// Runs a command inside the group.
    pub fn run(&self, command: &Command) -> Output {
        self.enter(command).output().expect("a shell runs")
    }

    /// The command, started inside the group.
    pub fn enter(&self, command: &Command) -> Command {
        let enter = r#"echo $$ > "$0/cgroup.procs" && exec "$@""#;
        let mut inside = Command::new("sh");
        inside.arg("-c").arg(enter).arg(&self.folder).arg(command.get_program()).args(command.get_args());
        inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        inside
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel releases a group shortly after its last process.
        for _ in 0..50 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
