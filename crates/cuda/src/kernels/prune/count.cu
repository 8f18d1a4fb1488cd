// Counts the values of a digit among the magnitudes that have the threshold's digits before it.
extern "C" __global__ void __launch_bounds__(256) kernel(const float *weights, const float *sparsity, u32 *counters, i64 n) {
    if (keeps_mask(*sparsity)) return;
    __shared__ u32 counts[COUNTERS];
    for (u32 i = threadIdx.x; i < COUNTERS; i += 256) counts[i] = 0;
    u32 known = 0, left = kept_at(n, *sparsity);
    find_digits(counters, DIGIT, known, left);
    __syncthreads();
    const int low = low_bit(DIGIT);
    const u32 above = ~(largest(DIGIT) << low | ((1u << low) - 1)) & 0x7fffffffu;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < n; i += (i64)gridDim.x * 256) {
        const u32 own = magnitude(weights[i]);
        if ((own & above) == known) atomicAdd(&counts[own >> low & largest(DIGIT)], 1u);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < COUNTERS; i += 256)
        if (counts[i] > 0) atomicAdd(&counters[DIGIT * COUNTERS + i], counts[i]);
}
