//! The instruction set of the kernels, and the context they run in.

use crate::threads::Pool;

/// The instruction set that kernels are compiled for. Part of the target: the bits of a run may depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain code, on any machine.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Isa {
    /// The best instruction set of this machine.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("fma")
            {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self::Avx2;
            }
        }
        Self::Portable
    }

    /// The name shown in load sheets.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// What every kernel needs besides its operands.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The threads.
    pub(crate) pool: &'a Pool,
    /// The instruction set, which the machine has.
    pub(crate) isa: Isa,
}

impl<'a> Context<'a> {
    /// These threads with this instruction set, or the machine's best if that is less: kernels rely on the machine having it.
    pub fn new(pool: &'a Pool, isa: Isa) -> Self {
        Self { pool, isa: isa.min(Isa::detect()) }
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}
