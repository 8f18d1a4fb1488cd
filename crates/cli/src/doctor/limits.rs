//! What the system allows this process.

use plimsoll::memory::{self, Swap};
use std::fs;

/// Limits of the process and of its control group, where there are any.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Address space and data (`ulimit -v`, `ulimit -d`), in bytes.
    pub address_space_bytes: Option<usize>,
    pub data_bytes: Option<usize>,
    /// Processors that the control group may use at a time.
    pub processors: Option<f64>,
    /// Swap, and how readily the kernel uses it (0 to 200).
    pub swap: Option<Swap>,
    pub swappiness: Option<u32>,
}

impl Limits {
    /// Those of now.
    pub fn now() -> Self {
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        Self {
            address_space_bytes: soft_limit(&limits, "Max address space"),
            data_bytes: soft_limit(&limits, "Max data size"),
            processors: processors(),
            swap: memory::swap(),
            swappiness: number("/proc/sys/vm/swappiness"),
        }
    }

    /// The smallest of the limits of memory, with the command that shows it.
    pub fn lowest(&self) -> Option<(usize, &'static str)> {
        let both = [(self.address_space_bytes, "ulimit -v"), (self.data_bytes, "ulimit -d")];
        both.into_iter().filter_map(|(bytes, name)| Some((bytes?, name))).min()
    }
}

/// The soft limit of a line of `/proc/self/limits`; none if it is unlimited.
fn soft_limit(text: &str, name: &str) -> Option<usize> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// The processors of the control group by its quota.
fn processors() -> Option<f64> {
    let two = fs::read_to_string("/sys/fs/cgroup/cpu.max").ok().and_then(|text| quota(&text));
    two.or_else(|| {
        let quota: f64 = number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")?;
        let period: f64 = number("/sys/fs/cgroup/cpu/cpu.cfs_period_us")?;
        (quota > 0.0 && period > 0.0).then(|| quota / period)
    })
}

/// Quota and period of `cpu.max`, like `150000 100000`; none for `max`.
fn quota(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

fn number<T: std::str::FromStr>(path: &str) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_parsed() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max data size             unlimited            unlimited            bytes\n\
                    Max address space         4294967296           unlimited            bytes\n";
        assert_eq!(soft_limit(text, "Max address space"), Some(4 << 30));
        assert_eq!(soft_limit(text, "Max data size"), None);
        assert_eq!(quota("150000 100000\n"), Some(1.5));
        assert_eq!(quota("max 100000\n"), None);
    }
}
