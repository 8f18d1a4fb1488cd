// Values, in order, where a mask has bits, zeros elsewhere: a byte of the mask for a thread. Another number of values than bits is a fault.
extern "C" __global__ void __launch_bounds__(256) kernel(
    const T *values, const u8 *mask, T *y, u64 *fault, const u32 *starts, i64 n, i64 count
) {
    __shared__ u32 sums[256];
    const i64 first = 8 * ((i64)blockIdx.x * 256 + threadIdx.x);
    const u32 byte = first < n ? mask[first / 8] : 0;
    u32 own = 0;
    for (int bit = 0; bit < 8 && first + bit < n; bit++) own += byte >> bit & 1;
    sums[threadIdx.x] = own;
    __syncthreads();
    for (u32 step = 1; step < 256; step *= 2) {
        const u32 other = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
        __syncthreads();
        sums[threadIdx.x] += other;
        __syncthreads();
    }
    const u32 total = starts[(n + 2047) / 2048];
    if (blockIdx.x == 0 && threadIdx.x == 0 && total != count) fail(fault, 0, total);
    i64 value = (i64)starts[blockIdx.x] + sums[threadIdx.x] - own;
    for (int bit = 0; bit < 8 && first + bit < n; bit++) {
        const bool kept = byte >> bit & 1;
        y[first + bit] = kept && value < count ? values[value] : (T)0;
        value += kept;
    }
}
