// A bit for each weight that is not below the threshold, a byte for a thread; or the old mask. The masks may be the same memory.
extern "C" __global__ void __launch_bounds__(256) kernel(
    const float *weights, const u8 *old, const float *sparsity, u8 *mask, const u32 *counters, i64 n
) {
    const bool keeps = keeps_mask(*sparsity);
    u32 threshold = 0, left = kept_at(n, *sparsity);
    if (!keeps) find_digits(counters, 3, threshold, left);
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < (n + 7) / 8; i += (i64)gridDim.x * 256) {
        u32 byte = 0;
        for (int bit = 0; bit < 8 && 8 * i + bit < n; bit++)
            byte |= (u32)(magnitude(weights[8 * i + bit]) >= threshold) << bit;
        mask[i] = keeps ? old[i] : (u8)byte;
    }
}
