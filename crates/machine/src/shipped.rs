//! Reading machine files, and those that come with Plimsoll.

use crate::{Machine, MachineError};
use std::io::{ErrorKind, Read};
use std::path::Path;

/// The machine files that come with Plimsoll: names and texts.
pub const SHIPPED: [(&str, &str); 4] = [
    ("laptop", include_str!("../machines/laptop.toml")),
    ("h200", include_str!("../machines/h200.toml")),
    ("board", include_str!("../machines/board.toml")),
    ("microcontroller", include_str!("../machines/microcontroller.toml")),
];

/// The longest file that is read.
const MOST_BYTES: u64 = 1 << 20;

impl Machine {
    /// Reads a machine file; where there is none, the one of [`SHIPPED`] with this name, with or without `.toml`.
    ///
    /// ```
    /// use plimsoll_machine::Machine;
    /// assert_eq!(Machine::read("h200.toml".as_ref())?, Machine::read("h200".as_ref())?);
    /// # Ok::<(), plimsoll_machine::MachineError>(())
    /// ```
    pub fn read(path: &Path) -> Result<Self, MachineError> {
        let names = SHIPPED.map(|(name, _)| name).join(", ");
        let refuse = |reason: String| {
            let reason = format!("{reason}; machines that come with Plimsoll: {names}");
            MachineError::Read { path: path.into(), reason }
        };
        let mut text = Vec::new();
        let read =
            std::fs::File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut text));
        match read {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let given = path.to_str().unwrap_or_default();
                let name = given.strip_suffix(".toml").unwrap_or(given);
                let found = SHIPPED.iter().find(|(shipped, _)| *shipped == name);
                let (_, text) = found.ok_or_else(|| refuse("there is no such file".into()))?;
                return Self::parse(path, text);
            }
            Err(e) => return Err(refuse(e.to_string())),
            Ok(bytes) if bytes as u64 > MOST_BYTES => {
                return Err(refuse("is too long for a machine file".into()));
            }
            Ok(_) => {}
        }
        let text = String::from_utf8(text).map_err(|_| refuse("is not text in UTF-8".into()))?;
        Self::parse(path, &text)
    }
}
