//! Temporary folders.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A temporary folder of one test, removed with all its files when dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// A new, empty folder whose name contains `name`.
    pub fn new(name: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Relaxed));
        let folder = std::env::temp_dir().join(format!("plimsoll-{name}-{process}-{count}"));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// The path of a file in it, as text.
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_string()
    }

    /// Writes a file, and creates the folders it lies in.
    pub fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
