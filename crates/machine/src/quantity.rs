//! Numbers with units: rates and times, read and written.

use plimsoll_plan::Size;

/// What a number with a unit measures.
pub(crate) struct Quantity {
    /// In words, as messages have it.
    name: &'static str,
    /// One as it should be written.
    example: &'static str,
    /// Units with their factors, in lower case. No unit is the end of one before it.
    units: &'static [(&'static str, f64)],
    /// The smallest and the largest, in units of factor 1.
    least: f64,
    most: f64,
    /// The smallest and the largest as text.
    limits: [&'static str; 2],
}

/// Bytes per second. A slower link would take longer for a step than predictions can count.
pub(crate) const BANDWIDTH: Quantity = Quantity {
    name: "bandwidth",
    example: "55.3 GB/s",
    units: &[
        ("tib/s", (1_u64 << 40) as f64),
        ("gib/s", (1 << 30) as f64),
        ("mib/s", (1 << 20) as f64),
        ("kib/s", 1024.0),
        ("tb/s", 1e12),
        ("gb/s", 1e9),
        ("mb/s", 1e6),
        ("kb/s", 1e3),
        ("b/s", 1.0),
    ],
    least: 1e6,
    most: 1e15,
    limits: ["1 MB/s", "1000 TB/s"],
};

/// Floating-point operations per second.
pub(crate) const FLOPS: Quantity = Quantity {
    name: "rate",
    example: "67 TFLOP/s",
    units: &[
        ("pflop/s", 1e15),
        ("tflop/s", 1e12),
        ("gflop/s", 1e9),
        ("mflop/s", 1e6),
        ("kflop/s", 1e3),
        ("flop/s", 1.0),
    ],
    least: 1e6,
    most: 1e18,
    limits: ["1 MFLOP/s", "1000 PFLOP/s"],
};

/// Cycles per second.
pub(crate) const CLOCK: Quantity = Quantity {
    name: "clock",
    example: "1.98 GHz",
    units: &[("ghz", 1e9), ("mhz", 1e6), ("khz", 1e3)],
    least: 1e6,
    most: 1e11,
    limits: ["1 MHz", "100 GHz"],
};

/// Nanoseconds.
pub(crate) const TIME: Quantity = Quantity {
    name: "time",
    example: "10 us",
    units: &[("ms", 1e6), ("us", 1e3), ("µs", 1e3), ("ns", 1.0), ("s", 1e9)],
    least: 0.0,
    most: 60e9,
    limits: ["0 ns", "60 s"],
};

impl Quantity {
    /// Parses a number with a unit.
    pub(crate) fn parse(&self, text: &str) -> Result<f64, String> {
        let Self { name, example, units, least, most, limits } = self;
        let refuse = |reason: &str| Err(format!("{name} `{text}` {reason}: write one like {example}"));
        let lower = text.trim().to_lowercase();
        let parsed = units.iter().find_map(|(unit, factor)| Some((lower.strip_suffix(unit)?, factor)));
        let Some((Ok(number), factor)) = parsed.map(|(number, f)| (number.trim().parse::<f64>(), f)) else {
            return refuse("is not a number with a unit");
        };
        let value = number * factor;
        match value {
            v if v.is_nan() => refuse("is not a number"),
            _ if number.is_infinite() => refuse("is not finite"),
            v if v < 0.0 => refuse("is negative"),
            v if v == 0.0 && *least > 0.0 => refuse("is not above zero"),
            v if v < *least => refuse(&format!("is below {}, too slow to plan with", limits[0])),
            v if v > *most => refuse(&format!("is above {}, more than any machine has", limits[1])),
            v => Ok(v),
        }
    }

    /// Writes a value in the largest unit that gives a short number which is parsed as the same value.
    pub(crate) fn write(&self, value: f64) -> String {
        let mut texts: Vec<String> = Vec::new();
        for (unit, factor) in self.units {
            let text = format!("{} {}", value / factor, self.spelled(unit));
            if self.parse(&text) == Ok(value) {
                texts.push(text);
            }
        }
        texts.into_iter().min_by_key(String::len).unwrap_or_default()
    }

    /// A unit in its usual spelling.
    fn spelled(&self, unit: &str) -> String {
        if self.limits[0].ends_with("ns") {
            return unit.to_string();
        }
        let (prefix, rest) = match unit {
            u if u.contains("flop") => (u.trim_end_matches("flop/s"), "FLOP/s"),
            u if u.contains("hz") => (u.trim_end_matches("hz"), "Hz"),
            u => (u.trim_end_matches("b/s"), "B/s"),
        };
        let mut letters = prefix.chars();
        let first = letters.next().map(|c| c.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>() + rest
    }
}

/// Writes bytes in the unit that gives the shortest number.
pub(crate) fn write_bytes(bytes: usize) -> String {
    let units = [
        ("TiB", 1_u64 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("TB", 1_000_000_000_000),
        ("GB", 1_000_000_000),
        ("MB", 1_000_000),
        ("KB", 1000),
    ];
    let divides = |unit: &(&str, u64)| (bytes as u64).is_multiple_of(unit.1);
    let texts =
        units.into_iter().filter(divides).map(|(name, unit)| format!("{}{name}", bytes as u64 / unit));
    texts.chain([format!("{bytes}B")]).min_by_key(String::len).unwrap_or_default()
}

/// Writes a size.
pub(crate) fn write_size(size: Size) -> String {
    match size {
        Size::Bytes(bytes) => write_bytes(bytes),
        Size::Percent(_) => size.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units_come_back() {
        for (text, value) in [
            ("55.3 GB/s", 55.3e9),
            ("4.8 TB/s", 4.8e12),
            ("90 MB/s", 90e6),
            ("1.5 GiB/s", 1.5 * 1024.0 * 1024.0 * 1024.0),
        ] {
            assert_eq!(BANDWIDTH.parse(text), Ok(value));
            assert_eq!(BANDWIDTH.write(value), text);
        }
        assert_eq!(FLOPS.write(67e12), "67 TFLOP/s");
        assert_eq!((CLOCK.parse("1980 mhz"), CLOCK.write(1.98e9)), (Ok(1.98e9), "1.98 GHz".into()));
        assert_eq!(TIME.parse("2.5 µs"), Ok(2500.0));
        assert_eq!((TIME.write(2500.0), TIME.write(0.0)), ("2.5 us".into(), "0 s".into()));
        for value in [1e6 + 1.0, 1234567890.0, 999_999_999_999.0, 1e15, 1.1e9 + 0.25] {
            assert_eq!(BANDWIDTH.parse(&BANDWIDTH.write(value)), Ok(value), "{}", BANDWIDTH.write(value));
        }
        assert_eq!((write_bytes(141_000_000_000), write_bytes(527 << 20)), ("141GB".into(), "527MiB".into()));
        assert_eq!(write_bytes(1_234_567), "1234567B");
    }

    #[test]
    fn what_is_no_rate_is_refused_with_its_reason() {
        let cases = [
            ("0 GB/s", "is not above zero"),
            ("-3 GB/s", "is negative"),
            ("inf GB/s", "is not finite"),
            ("-inf GB/s", "is not finite"),
            ("nan GB/s", "is not a number"),
            ("1e400 GB/s", "is not finite"),
            ("1e300 GB/s", "is above 1000 TB/s"),
            ("999 kB/s", "is below 1 MB/s"),
            ("55.3", "is not a number with a unit"),
            ("GB/s", "is not a number with a unit"),
            ("55.3 GB", "is not a number with a unit"),
            ("", "is not a number with a unit"),
        ];
        for (text, reason) in cases {
            let message = BANDWIDTH.parse(text).unwrap_err();
            assert!(message.starts_with(&format!("bandwidth `{text}` {reason}")), "{message}");
        }
    }
}
