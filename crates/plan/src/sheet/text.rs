//! The load sheet as text.

use crate::sheet::{Entry, LoadSheet, batch_type_in_words, in_words, time_in_words};
use std::fmt;

/// Holders shown at the peak.
const HOLDERS_SHOWN: usize = 5;

fn total(f: &mut fmt::Formatter<'_>, bytes: usize) -> fmt::Result {
    writeln!(f, "  {:<22} {:>11}   planned peak, {bytes} bytes", "total", in_words(bytes))
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, line_bytes: usize, total_bytes: usize) -> fmt::Result {
    if line_bytes == usize::MAX {
        return Ok(());
    }
    let left = in_words(line_bytes.saturating_sub(total_bytes));
    writeln!(f, "  {name:<22} {:>11}   {left} left", in_words(line_bytes))
}

impl fmt::Display for LoadSheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, entry: &Entry| {
            writeln!(f, "    {:<20} {:>11}   {}", entry.name, in_words(entry.bytes), entry.note)
        };
        let [device, memory] = if self.host.is_some() { [", device memory", "device "] } else { [""; 2] };
        let name = self.device.as_ref().map_or(String::new(), |name| format!("{name}, "));
        writeln!(f, "Load sheet for {name}{}{device}", self.target)?;
        writeln!(f, "  in the arena, at its peak")?;
        self.arena.iter().try_for_each(|entry| row(f, entry))?;
        writeln!(f, "  {:<22} {:>11}", "arena", in_words(self.arena_bytes))?;
        if self.outside.iter().any(|e| e.bytes > 0) {
            writeln!(f, "  outside the arena")?;
        }
        self.outside.iter().filter(|e| e.bytes > 0).try_for_each(|entry| row(f, entry))?;
        total(f, self.total_bytes)?;
        line(f, &format!("{memory}line"), self.line_bytes, self.total_bytes)?;
        if !self.devices.is_empty() {
            writeln!(f, "\n  {:<22} {:>11} {:>13} {:>13}", "device", "arena", "line", "received")?;
        }
        for device in &self.devices {
            let line = match device.line_bytes {
                usize::MAX => "-".into(),
                bytes => in_words(bytes),
            };
            let received = in_words(device.received_bytes as usize);
            let arena = in_words(device.arena_bytes);
            writeln!(f, "  {:<22} {arena:>11} {line:>13} {received:>13}   in a step", device.name)?;
        }
        if let Some(host) = &self.host {
            writeln!(f, "\nLoad sheet for host memory")?;
            writeln!(
                f,
                "  {:<22} {:>11}   offloaded states and values",
                "arena",
                in_words(host.arena_bytes)
            )?;
            writeln!(f, "  outside the arena")?;
            host.outside.iter().filter(|e| e.bytes > 0).try_for_each(|entry| row(f, entry))?;
            total(f, host.total_bytes)?;
            line(f, "host line", host.line_bytes, host.total_bytes)?;
        }
        if !self.offloaded.is_empty() {
            writeln!(f, "\n  in the spill file, on disk")?;
            self.offloaded.iter().try_for_each(|entry| row(f, entry))?;
            let written = in_words(self.stored_bytes as usize);
            writeln!(
                f,
                "  {:<22} {:>11}   {written} written in a step",
                "spill file",
                in_words(self.offloaded_bytes)
            )?;
        }
        let peak = &self.peak;
        writeln!(
            f,
            "\nPeak in {}, at step {} of {}: {} of `{}`. Largest there:",
            batch_type_in_words(&peak.plan),
            peak.step + 1,
            peak.steps,
            peak.op,
            peak.layer
        )?;
        for holder in peak.holders.iter().take(HOLDERS_SHOWN) {
            writeln!(f, "    {:>11}   {} of `{}`", in_words(holder.bytes), holder.what, holder.layer)?;
        }
        let names: Vec<String> = self.plans.iter().map(|plan| batch_type_in_words(&plan.name)).collect();
        let width = names.iter().map(|name| name.chars().count()).fold(26, usize::max);
        writeln!(
            f,
            "\n  {:<width$} {:>13} {:>12} {:>12} {:>10}",
            "plan", "micro-batches", "peak", "least", "estimate"
        )?;
        for (i, plan) in self.plans.iter().enumerate() {
            write!(
                f,
                "  {:<width$} {:>13} {:>12} {:>12} {:>10}",
                names[i],
                plan.micro_batches,
                in_words(plan.peak_bytes),
                in_words(plan.live_bytes),
                time_in_words(plan.predicted_us.saturating_mul(1_000))
            )?;
            if i + 1 < self.plans.len() {
                writeln!(f)?;
            }
        }
        self.price().iter().chain(&self.notes).try_for_each(|note| write!(f, "\n\n{note}"))
    }
}

impl LoadSheet {
    /// What the line costs, if it costs anything, as a sentence.
    pub fn price(&self) -> Option<String> {
        let first = self.plans.first()?;
        let (micro_batches, recomputed) = (first.micro_batches, first.recomputed);
        if self.slowdown() <= 0.0 {
            return None;
        }
        let mut means = Vec::new();
        if micro_batches > 1 {
            means.push(format!("{micro_batches} micro-batches"));
        }
        if recomputed > 0 {
            means.push(format!("{recomputed} run{} rematerialized", if recomputed == 1 { "" } else { "s" }));
        }
        if let Some(host) = self.host.as_ref().filter(|host| host.arena_bytes > 0) {
            means.push(format!("{} in host memory", in_words(host.arena_bytes)));
        }
        if self.offloaded_bytes > 0 {
            means.push(format!("{} in the spill file", in_words(self.offloaded_bytes)));
        }
        if self.stored_bytes > 0 {
            means.push(format!("{} written there in a step", in_words(self.stored_bytes as usize)));
        }
        let share = self.slowdown() * 100.0;
        // The sheet of a plan that was refused is above its line.
        let means = means.join(", ");
        Some(match self.total_bytes <= self.line_bytes {
            true => format!("Under the line a step takes {share:.1} % longer than without: {means}."),
            false => format!("A step of this plan takes {share:.1} % longer than without a line: {means}."),
        })
    }
}
