//! The instruction set of the kernels, and the context they run in.

use crate::threads::Pool;
use std::sync::OnceLock;
use thiserror::Error;

/// The instruction set that kernels are compiled for. Part of the target: the bits of a run may depend on it.
///
/// [`Isa::Avx2`], [`Isa::Avx512`] and [`Isa::Neon`] differ in speed alone: all multiply and add in one rounding, in the same
/// order, so that results have the same bits but for those of a NaN. [`Isa::Portable`] rounds twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain code, on any machine.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// The same with AVX-512 BF16: products of bf16 multiply pairs.
    Avx512Bf16,
    /// The same with AMX-BF16: products of bf16 multiply tiles.
    Amx,
    /// NEON, which every 64-bit ARM has.
    Neon,
}

/// The instruction sets of each architecture: each includes those before it.
const ORDERS: [&[Isa]; 2] =
    [&[Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx], &[Isa::Portable, Isa::Neon]];

/// An instruction set that a machine does not have.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("this machine lacks {}: its best instruction set is {}", .wanted.name(), .best.name())]
pub struct UnavailableIsa {
    /// The one that was asked for.
    pub wanted: Isa,
    /// The machine's best.
    pub best: Isa,
}

impl Isa {
    /// Every instruction set of every architecture.
    pub const ALL: [Self; 6] =
        [Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Bf16, Self::Amx, Self::Neon];

    /// The instruction sets of a machine whose best is this one, the oldest first.
    ///
    /// ```
    /// use plimsoll_cpu::isa::Isa;
    /// assert_eq!(Isa::Neon.included(), [Isa::Portable, Isa::Neon]);
    /// assert_eq!(Isa::Avx512.included(), [Isa::Portable, Isa::Avx2, Isa::Avx512]);
    /// ```
    pub fn included(self) -> &'static [Self] {
        let up_to = |order: &'static [Self]| {
            order.iter().position(|isa| *isa == self).map(|position| &order[..=position])
        };
        ORDERS.into_iter().find_map(up_to).unwrap_or_default()
    }

    /// Itself, if this machine has it.
    pub fn available(self) -> Result<Self, UnavailableIsa> {
        self.available_where(Self::detect())
    }

    /// Itself, if a machine has it whose best instruction set is this one.
    fn available_where(self, best: Self) -> Result<Self, UnavailableIsa> {
        if best.included().contains(&self) { Ok(self) } else { Err(UnavailableIsa { wanted: self, best }) }
    }

    /// The best instruction set of this machine. Kernels ask for it: it is found once.
    pub fn detect() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(Self::find)
    }

    fn find() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("fma")
            {
                return if tiles::available() {
                    Self::Amx
                } else if pairs::are_fast() {
                    Self::Avx512Bf16
                } else {
                    Self::Avx512
                };
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self::Avx2;
            }
        }
        if cfg!(target_arch = "aarch64") { Self::Neon } else { Self::Portable }
    }

    /// The name shown in load sheets.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Amx => "amx",
            Self::Neon => "neon",
        }
    }

    /// What happens to products of bf16, in words.
    pub fn products_of_bf16(self) -> &'static str {
        match self {
            Self::Portable | Self::Avx2 | Self::Avx512 | Self::Neon => "widened to f32",
            Self::Avx512Bf16 => "in pairs (avx512-bf16)",
            Self::Amx => "in tiles (amx)",
        }
    }

    /// The set of its vector code: what differs in products of bf16 alone is AVX-512.
    pub(crate) fn vectors(self) -> Self {
        match self {
            Self::Avx512Bf16 | Self::Amx => Self::Avx512,
            other => other,
        }
    }
}

/// Whether pairs of bf16 are worth multiplying.
#[cfg(target_arch = "x86_64")]
mod pairs {
    use std::arch::x86_64::__cpuid;

    /// Whether the processor has the instruction and takes no longer for it than for one of f32. Intel's take more than
    /// twice as long (70 GFLOP/s on one core of a Xeon where f32 reaches 125), so that widening is faster there.
    pub(super) fn are_fast() -> bool {
        let vendor = __cpuid(0);
        let intel = [*b"Genu", *b"ineI", *b"ntel"].map(u32::from_le_bytes);
        is_x86_feature_detected!("avx512bf16") && [vendor.ebx, vendor.edx, vendor.ecx] != intel
    }
}

/// Whether there are tile registers for bf16.
#[cfg(target_arch = "x86_64")]
mod tiles {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    /// Whether the processor has tiles of bf16 and the system, which is asked to, lets this process use them.
    pub(super) fn available() -> bool {
        supported() && permitted()
    }

    fn supported() -> bool {
        const SAVED_BY_SYSTEM: u32 = 1 << 27;
        const TILES_OF_BF16: u32 = 1 << 22 | 1 << 24;
        const TILE_STATES: u64 = 1 << 17 | 1 << 18;
        if __cpuid(0).eax < 7 || __cpuid(1).ecx & SAVED_BY_SYSTEM == 0 {
            return false;
        }
        // SAFETY: the processor has the instruction, as it says above.
        __cpuid_count(7, 0).edx & TILES_OF_BF16 == TILES_OF_BF16
            && unsafe { states() } & TILE_STATES == TILE_STATES
    }

    /// The register states that the system saves.
    #[target_feature(enable = "xsave")]
    fn states() -> u64 {
        // SAFETY: register 0 exists wherever the instruction does.
        unsafe { _xgetbv(0) }
    }

    /// Tile registers have to be asked for, once for all threads of a process.
    #[cfg(target_os = "linux")]
    fn permitted() -> bool {
        const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_ulong = 18;
        // SAFETY: this request takes a number and touches no memory of the process.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }

    #[cfg(not(target_os = "linux"))]
    fn permitted() -> bool {
        false
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
    /// These threads with this instruction set, which kernels rely on the machine having.
    pub fn new(pool: &'a Pool, isa: Isa) -> Result<Self, UnavailableIsa> {
        Ok(Self { pool, isa: isa.available()? })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cpu, CpuError};

    #[test]
    fn a_set_above_the_machines_best_or_of_another_architecture_is_refused() {
        let x86 = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx];
        for best in Isa::ALL {
            let had = match x86.iter().position(|isa| *isa == best) {
                Some(at) => &x86[..=at],
                None => &[Isa::Portable, best],
            };
            had.iter().for_each(|isa| assert_eq!(isa.available_where(best), Ok(*isa)));
            for wanted in Isa::ALL.into_iter().filter(|isa| !had.contains(isa)) {
                let error = wanted.available_where(best).unwrap_err();
                assert_eq!(error, UnavailableIsa { wanted, best });
                assert!(error.to_string().contains(&format!("lacks {}", wanted.name())), "{error}");
            }
        }
    }

    /// On a machine with every set, all are taken; on others the rest is refused, not replaced.
    #[test]
    fn an_executor_and_a_context_have_the_set_that_was_asked_for() {
        let pool = Pool::new(1).unwrap();
        for isa in Isa::ALL {
            let expected = isa.available();
            assert_eq!(Context::new(&pool, isa).map(|context| context.isa()), expected);
            match Cpu::with_isa(1, isa) {
                Ok(cpu) => assert_eq!(Ok(cpu.isa()), expected),
                Err(CpuError::Isa(error)) => assert_eq!(Err(error), expected),
                Err(error) => panic!("{error}"),
            }
        }
    }
}
