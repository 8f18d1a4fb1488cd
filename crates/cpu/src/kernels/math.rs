//! Shared by the vector kernels: dispatch on the instruction set, elementary functions, sums over a row.
//!
//! Kernels are plain loops that the compiler vectorises. `simd_fn!` compiles such a loop once for every instruction
//! set; what it calls is `#[inline(always)]`, so that it is compiled for the same set.

/// Defines a function that is compiled for every instruction set and picks one by its first argument.
///
/// The body sees the constant `FMA`: whether a fused multiply-add is one instruction, for the functions of this
/// module that depend on it. The function may be generic over storage types, `<T: Float>`.
macro_rules! simd_fn {
    ($(#[$meta:meta])* $vis:vis unsafe fn $($rest:tt)*) => {
        $crate::kernels::math::simd_fn! { @define [unsafe] [$(#[$meta])*] [$vis] $($rest)* }
    };
    ($(#[$meta:meta])* $vis:vis fn $($rest:tt)*) => {
        $crate::kernels::math::simd_fn! { @define [] [$(#[$meta])*] [$vis] $($rest)* }
    };
    (
        @define [$($safety:tt)?] [$(#[$meta:meta])*] [$vis:vis]
        $name:ident$(<$($g:ident: $bound:path),+>)?($isa:ident: Isa $(, $arg:ident: $ty:ty)* $(,)?) $(-> $ret:ty)?
        $body:block
    ) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "kernels take sizes and operands")]
        $vis $($safety)? fn $name$(<$($g: $bound),+>)?($isa: $crate::isa::Isa $(, $arg: $ty)*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments, reason = "see the outer function")]
            #[allow(clippy::extra_unused_type_parameters, reason = "not every body needs to know")]
            $($safety)? fn body<const FMA: bool $(, $($g: $bound),+)?>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
            #[allow(unused_unsafe, clippy::too_many_arguments, reason = "see the outer function")]
            $($safety)? fn avx512$(<$($g: $bound),+>)?($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's contract, if there is one.
                unsafe { body::<true $(, $($g),+)?>($($arg),*) }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(unused_unsafe, clippy::too_many_arguments, reason = "see the outer function")]
            $($safety)? fn avx2$(<$($g: $bound),+>)?($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's contract, if there is one.
                unsafe { body::<true $(, $($g),+)?>($($arg),*) }
            }

            #[allow(unused_unsafe, reason = "not every function has a contract")]
            match $isa.vectors() {
                // SAFETY: an instruction set is only chosen on machines that have it.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx512 => unsafe { avx512$(::<$($g),+>)?($($arg),*) },
                // SAFETY: likewise.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx2 => unsafe { avx2$(::<$($g),+>)?($($arg),*) },
                // SAFETY: the caller's contract, if there is one. Every machine of the architecture has NEON.
                #[cfg(target_arch = "aarch64")]
                $crate::isa::Isa::Neon => unsafe { body::<true $(, $($g),+)?>($($arg),*) },
                // SAFETY: the caller's contract, if there is one.
                _ => unsafe { body::<false $(, $($g),+)?>($($arg),*) },
            }
        }
    };
}
pub(crate) use simd_fn;

mod functions;
mod lanes;

pub use functions::{REACH, cos, erf, exp, exp_m1, ln, ln_1p, sigmoid, sin, softplus, tanh};
pub(crate) use lanes::{max_by, sum_by, sum2_by};

/// Elements that one task of a kernel over plain memory takes: long enough to pay for the hand-over, short enough
/// to balance the threads. Never a function of the threads.
pub(crate) const TASK_ELEMENTS: usize = 16 * 1024;

/// How many rows of `width` elements one task takes.
pub(crate) fn rows_per_task(width: usize) -> usize {
    (TASK_ELEMENTS / width.max(1)).max(1)
}

/// Memory that the tasks of a kernel write in disjoint parts.
pub(crate) struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: a pointer by itself; whoever asks for a part of it says why the parts are disjoint.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: likewise.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The memory of a slice, which stays borrowed by whoever calls the pool.
    pub(crate) fn new(slice: &mut [T]) -> Self {
        Self(slice.as_mut_ptr())
    }

    /// The memory behind a pointer.
    pub(crate) fn from_ptr(ptr: *mut T) -> Self {
        Self(ptr)
    }

    /// A pointer to an element.
    pub(crate) fn at(&self, offset: usize) -> *mut T {
        self.0.wrapping_add(offset)
    }

    /// A part for one task.
    ///
    /// # Safety
    ///
    /// The part lies inside the memory, and nobody else touches it while the result is in use.
    #[allow(clippy::mut_from_ref, reason = "parts are disjoint by contract")]
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

/// Rounds a number of floats up to whole cache lines.
pub(crate) fn whole_lines(floats: usize) -> usize {
    floats.next_multiple_of(16)
}
