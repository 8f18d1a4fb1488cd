//! Detection of NaN and infinities in raw bytes.

use crate::DType;

/// Whether all elements in `bytes` are finite. In NaN and infinities, and nowhere else, all exponent bits are set.
///
/// ```
/// use plimsoll_tensor::{DType, all_finite};
/// assert!(all_finite(DType::F32, &1.5f32.to_ne_bytes()));
/// assert!(!all_finite(DType::F32, &f32::INFINITY.to_ne_bytes()));
/// assert!(all_finite(DType::I32, &(-1i32).to_ne_bytes()));
/// ```
pub fn all_finite(dtype: DType, bytes: &[u8]) -> bool {
    let halves = |mask: u16| {
        let mut words = bytes.chunks_exact(2).map(|b| u16::from_ne_bytes([b[0], b[1]]));
        words.all(|word| word & mask != mask)
    };
    match dtype {
        DType::F32 => {
            let mut words = bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
            words.all(|word| word & 0x7f80_0000 != 0x7f80_0000)
        }
        DType::F64 => {
            let mask = 0x7ff0 << 48;
            let mut words = bytes.chunks_exact(8).map(|b| b.try_into().map_or(0, u64::from_ne_bytes));
            words.all(|word| word & mask != mask)
        }
        DType::BF16 => halves(0x7f80),
        DType::F16 => halves(0x7c00),
        DType::I32 | DType::I64 | DType::U8 | DType::Bool => true,
    }
}

/// [`all_finite`] for bytes that arrive in pieces; a piece may end inside an element.
///
/// ```
/// use plimsoll_tensor::{DType, Finite};
/// let bytes = [1.0f32.to_ne_bytes(), f32::NAN.to_ne_bytes()].concat();
/// let mut finite = Finite::new(DType::F32);
/// assert!(finite.add(&bytes[..6]) && !finite.add(&bytes[6..]));
/// ```
#[derive(Clone, Debug)]
pub struct Finite {
    dtype: DType,
    /// The first bytes of an incomplete element, and their count.
    part: [u8; 8],
    held: usize,
}

impl Finite {
    /// A scan before its first piece.
    pub fn new(dtype: DType) -> Self {
        Self { dtype, part: [0; 8], held: 0 }
    }

    /// Whether the elements that end in this piece are finite.
    pub fn add(&mut self, bytes: &[u8]) -> bool {
        let size = self.dtype.bytes();
        let first = if self.held == 0 { 0 } else { (size - self.held).min(bytes.len()) };
        self.part[self.held..self.held + first].copy_from_slice(&bytes[..first]);
        self.held += first;
        let mut finite = true;
        if self.held == size {
            finite = all_finite(self.dtype, &self.part[..size]);
            self.held = 0;
        }
        let rest = &bytes[first..];
        let whole = rest.len() - rest.len() % size;
        if self.held == 0 {
            self.held = rest.len() - whole;
            self.part[..self.held].copy_from_slice(&rest[whole..]);
        }
        finite && all_finite(self.dtype, &rest[..whole])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn nan_and_infinity_are_found_in_every_float_type() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(!all_finite(DType::F64, &bad.to_ne_bytes()));
            assert!(!all_finite(DType::F32, &(bad as f32).to_ne_bytes()));
            assert!(!all_finite(DType::BF16, &bf16::from_f64(bad).to_ne_bytes()));
            assert!(!all_finite(DType::F16, &f16::from_f64(bad).to_ne_bytes()));
        }
        assert!(all_finite(DType::F64, &f64::MAX.to_ne_bytes()));
        assert!(all_finite(DType::F32, &f32::MIN.to_ne_bytes()));
        assert!(all_finite(DType::BF16, &bf16::MAX.to_ne_bytes()));
        assert!(all_finite(DType::F16, &f16::MAX.to_ne_bytes()));
        assert!(all_finite(DType::U8, &[255; 8]));
    }

    #[test]
    fn pieces_of_any_length_find_a_bad_element_anywhere() {
        for bad in 0..5 {
            let numbers = (0..5).map(|i| if i == bad { f32::INFINITY } else { i as f32 });
            let bytes: Vec<u8> = numbers.flat_map(f32::to_ne_bytes).collect();
            for piece in 1..=bytes.len() {
                let mut finite = Finite::new(DType::F32);
                let found = bytes.chunks(piece).filter(|piece| !finite.add(piece)).count();
                assert_eq!(found, 1, "element {bad} in pieces of {piece}");
            }
        }
    }
}
