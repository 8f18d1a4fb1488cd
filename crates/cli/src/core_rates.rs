//! What a thread of this processor computes and moves: measured once, and kept beside the plans, which depend on it.

use super::ranks;
use super::setup::plan_cache;
use plimsoll::cpu::{Cpu, CpuTarget};
use plimsoll::memory;
use plimsoll::train::write_atomically;
use plimsoll_machine::measure::{CORE_TRIAL_BYTES, core_flops};
use serde::{Deserialize, Serialize};
use std::fs::{File, create_dir_all};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes of a kept file at most.
const MOST_BYTES: u64 = 1 << 16;
/// The share of a line that the trial may take: one part in so many.
const SHARE: usize = 32;
/// How far from typical rates a kept one may be: further is a damaged file.
const FAR: f64 = 256.0;

/// Rates of so many threads while all of them work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreRates {
    processor: String,
    isa: String,
    threads: usize,
    flops_per_ns: f64,
    bytes_per_ns: f64,
}

impl CoreRates {
    /// Rates of this machine, to three digits, which is more than repeats.
    pub fn new(target: &CpuTarget) -> Self {
        Self {
            processor: processor().unwrap_or_default(),
            isa: target.isa.name().into(),
            threads: target.threads,
            flops_per_ns: rounded(target.flops_per_ns),
            bytes_per_ns: rounded(target.bytes_per_ns),
        }
    }

    /// Keeps them in the user's cache folder, if there is one that can be written.
    pub fn keep(&self) {
        if let Ok(Some(folder)) = plan_cache(None) {
            self.keep_in(&folder);
        }
    }

    fn keep_in(&self, folder: &Path) -> Option<()> {
        let text = serde_json::to_vec(self).ok()?;
        create_dir_all(folder).ok()?;
        write_atomically(&file(folder, &self.isa, self.threads), &text).ok()
    }

    /// Those that were kept for this processor.
    fn kept(folder: &Path, typical: &CpuTarget) -> Option<Self> {
        let file = file(folder, typical.isa.name(), typical.threads);
        let mut text = Vec::new();
        File::open(file).ok()?.take(MOST_BYTES + 1).read_to_end(&mut text).ok()?;
        let kept: Self = serde_json::from_slice(&text).ok()?;
        let near = |rate: f64, typical: f64| (typical / FAR..=typical * FAR).contains(&rate);
        let ours =
            Self { flops_per_ns: kept.flops_per_ns, bytes_per_ns: kept.bytes_per_ns, ..Self::new(typical) };
        let plausible = near(kept.flops_per_ns, typical.flops_per_ns)
            && near(kept.bytes_per_ns, typical.bytes_per_ns)
            && kept == ours;
        plausible.then_some(kept)
    }
}

/// An executor that plans for the threads of this processor: with the rates that were kept or, where they can be kept and the line has
/// room for a trial, are measured now; else with typical ones.
pub fn at_rates_of_this_machine(cpu: Cpu, given_cache: Option<&Path>, line_bytes: usize) -> Cpu {
    let Ok(Some(folder)) = plan_cache(given_cache) else { return cpu };
    let typical = *cpu.cpu_target();
    let measured = || {
        // Several processes would measure each other.
        let alone = ranks::on_this_machine() == 1;
        let room = typical.threads.saturating_mul(CORE_TRIAL_BYTES) <= line_bytes / SHARE;
        // A folder that cannot be written is no reason to measure again and again.
        (alone && room && create_dir_all(&folder).is_ok()).then_some(())?;
        // No entry of a load sheet has the trial's buffers and kernels: the code that ran before makes room for them, and they are gone
        // before the run is planned.
        memory::trim_code();
        let flops_per_ns = core_flops(typical.threads, typical.isa);
        memory::trim_heap();
        memory::trim_code();
        let flops_per_ns = flops_per_ns? / 1e9;
        let found = CoreRates::new(&CpuTarget { flops_per_ns, ..typical });
        found.keep_in(&folder)?;
        Some(found)
    };
    match CoreRates::kept(&folder, &typical).or_else(measured) {
        Some(CoreRates { flops_per_ns, bytes_per_ns, .. }) => cpu.core_rates(flops_per_ns, bytes_per_ns),
        None => cpu,
    }
}

fn file(folder: &Path, isa: &str, threads: usize) -> PathBuf {
    folder.join(format!("cores-{isa}-{threads}.json"))
}

/// The processor's name.
pub fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'))?.1;
    Some(name.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|name| !name.is_empty())
}

/// A measured number to three digits, which is more than repeats.
pub fn rounded(number: f64) -> f64 {
    format!("{number:.2e}").parse().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll::cpu::isa::Isa;
    use std::fs;

    #[test]
    fn rates_are_those_that_were_kept_for_this_processor() {
        let folder = std::env::temp_dir().join(format!("plimsoll-core-rates-{}", std::process::id()));
        let typical = CpuTarget::new(Isa::Portable, 3);
        assert_eq!(CoreRates::kept(&folder, &typical), None);
        let found = CoreRates::new(&CpuTarget { flops_per_ns: 7.654_321, ..typical });
        assert_eq!(found.flops_per_ns, 7.65);
        found.keep_in(&folder).unwrap();
        assert_eq!(CoreRates::kept(&folder, &typical), Some(found.clone()));
        assert_eq!(CoreRates::kept(&folder, &CpuTarget::new(Isa::Portable, 2)), None);
        let path = file(&folder, Isa::Portable.name(), 3);
        for wrong in [
            CoreRates { processor: "another".into(), ..found.clone() },
            CoreRates { flops_per_ns: 0.0, ..found.clone() },
            CoreRates { bytes_per_ns: -1.0, ..found.clone() },
            CoreRates { flops_per_ns: 1e300, ..found.clone() },
        ] {
            wrong.keep_in(&folder).unwrap();
            assert_eq!(CoreRates::kept(&folder, &typical), None, "{wrong:?}");
        }
        let whole = serde_json::to_vec(&found).unwrap();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(CoreRates::kept(&folder, &typical), None, "cut to {cut} bytes");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
