//! Packing: operands copied into panels that the micro-kernels read sequentially.

#[cfg(target_arch = "x86_64")]
use super::avx512;
#[cfg(target_arch = "aarch64")]
use super::neon;
use crate::isa::Isa;
use crate::kernels::float::Float;
use crate::kernels::math::simd_fn;

/// The part of an operand that fills a panel: `lanes` rows of A or columns of B, along k.
#[derive(Clone, Copy)]
pub(crate) struct Strip<T = f32> {
    /// Lane 0 at the first k.
    pub src: *const T,
    /// The distance between lanes.
    pub lane_step: usize,
    /// The distance between neighbouring k.
    pub k_step: usize,
    /// How many lanes there are.
    pub lanes: usize,
}

/// Fills a panel: `dst[k * width + lane]` is the strip's element in f32, or zero for missing lanes.
///
/// # Safety
///
/// The strip must be good for reads, `dst` for `k * width` writes, and `strip.lanes <= width`.
pub(crate) unsafe fn pack<T: Float>(isa: Isa, strip: Strip<T>, dst: *mut f32, width: usize, k: usize) {
    let Strip { src, lane_step, k_step, lanes } = strip;
    if !T::LOW {
        // SAFETY: as the caller promises; what is not low is f32.
        return unsafe { pack_f32(isa, Strip { src: src.cast(), lane_step, k_step, lanes }, dst, width, k) };
    }
    if k_step == 1 && lane_step != 1 && lanes <= WIDEST {
        // A few k of every lane are widened, and then transposed as f32 are.
        let mut rows = [0.0f32; WIDEST * TURNED];
        for start in (0..k).step_by(TURNED) {
            let here = TURNED.min(k - start);
            // SAFETY: as the caller promises; the rows have room for all lanes.
            unsafe {
                widen_rows(isa, src.add(start), lane_step, here, lanes, rows.as_mut_ptr(), TURNED, TURNED);
                let strip = Strip { src: rows.as_ptr(), lane_step: TURNED, k_step: 1, lanes };
                pack_f32(isa, strip, dst.add(start * width), width, here);
            }
        }
        return;
    }
    if lane_step == 1 {
        // SAFETY: as the caller promises.
        return unsafe { widen_rows(isa, src, k_step, lanes, k, dst, width, width) };
    }
    for at in 0..k {
        for lane in 0..width {
            // SAFETY: as the caller promises: `lane < lanes` where the strip is read, `at < k`.
            unsafe {
                let value =
                    if lane < lanes { (*src.add(lane * lane_step + at * k_step)).widen() } else { 0.0 };
                *dst.add(at * width + lane) = value;
            }
        }
    }
}

/// The most lanes of a panel, and the k that are transposed at a time.
const WIDEST: usize = 32;
const TURNED: usize = 64;

simd_fn! {
    /// Widens `rows` rows of `len` elements, `step` apart, to rows of `width`, `pitch` apart, that end in zeros.
    ///
    /// # Safety
    ///
    /// `from` must be good for reads and `to` for writes of all those elements, and `len <= width`.
    unsafe fn widen_rows<T: Float>(
        isa: Isa, from: *const T, step: usize, len: usize, rows: usize, to: *mut f32, pitch: usize, width: usize,
    ) {
        for row in 0..rows {
            // SAFETY: as the caller promises.
            let (from, to) = unsafe {
                (
                    std::slice::from_raw_parts(from.add(row * step), len),
                    std::slice::from_raw_parts_mut(to.add(row * pitch), width),
                )
            };
            let (filled, rest) = to.split_at_mut(len);
            filled.iter_mut().zip(from).for_each(|(to, from)| *to = from.widen());
            rest.fill(0.0);
        }
    }
}

/// # Safety
///
/// As for [`pack`].
unsafe fn pack_f32(isa: Isa, strip: Strip, dst: *mut f32, width: usize, k: usize) {
    let Strip { src, lane_step, k_step, lanes } = strip;
    #[cfg(target_arch = "x86_64")]
    if isa.vectors() == Isa::Avx512 && lane_step == 1 {
        // SAFETY: as the caller promises; an AVX-512 target is only chosen on machines that have it.
        return unsafe { avx512::copy_lanes((src, k_step, lanes), (dst, width), k) };
    }
    #[cfg(target_arch = "x86_64")]
    if isa.vectors() == Isa::Avx512 && k_step == 1 {
        for lane in (0..width).step_by(16) {
            let here = lanes.saturating_sub(lane).min(16);
            for start in (0..k).step_by(16) {
                // SAFETY: as the caller promises: the square lies inside the strip and inside the panel.
                // Without lanes nothing is read, and the pointer stays where it is.
                unsafe {
                    let from = if here == 0 { src } else { src.add(lane * lane_step + start) };
                    let to = dst.add(start * width + lane);
                    let (width_here, k_here) = ((width - lane).min(16), (k - start).min(16));
                    let step = lane_step * size_of::<f32>();
                    avx512::transpose((from, step, here), (to, width, width_here), k_here);
                }
            }
        }
        return;
    }
    #[cfg(target_arch = "aarch64")]
    if isa == Isa::Neon && (lane_step == 1 || k_step == 1) {
        // SAFETY: as the caller promises; every machine of the architecture has NEON.
        return unsafe {
            match lane_step {
                1 => neon::copy_lanes((src, k_step, lanes), (dst, width), k),
                _ => neon::transpose((src, lane_step, lanes), (dst, width), k),
            }
        };
    }
    let _ = isa;
    if lane_step == 1 {
        for at in 0..k {
            // SAFETY: as the caller promises; the panel is no part of the operand.
            unsafe {
                let row = dst.add(at * width);
                std::ptr::copy_nonoverlapping(src.add(at * k_step), row, lanes);
                row.add(lanes).write_bytes(0, width - lanes);
            }
        }
        return;
    }
    // Eight k at a time, so that a cache line of a row-major source is used completely while it is in cache.
    for start in (0..k).step_by(8) {
        let end = (start + 8).min(k);
        for lane in 0..width {
            for at in start..end {
                // SAFETY: as the caller promises: `lane < lanes` where the strip is read, `at < k`.
                unsafe {
                    let value = if lane < lanes { *src.add(lane * lane_step + at * k_step) } else { 0.0 };
                    *dst.add(at * width + lane) = value;
                }
            }
        }
    }
}
