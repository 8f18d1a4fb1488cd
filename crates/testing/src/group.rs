//! Kernel-enforced memory limits.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A memory control group that is removed when dropped.
pub struct Group {
    folder: PathBuf,
}

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
