//! Numbers as people read them.

use plimsoll::tensor::BYTES_PER_MIB;

/// Bytes in MiB with one decimal, or in KiB where that would be zero.
pub fn bytes(bytes: usize) -> String {
    if bytes >= BYTES_PER_MIB / 10 {
        format!("{:.1} MiB", bytes as f64 / BYTES_PER_MIB as f64)
    } else {
        format!("{:.1} KiB", bytes as f64 / 1024.0)
    }
}

/// A number with its thousands apart.
pub fn count(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
