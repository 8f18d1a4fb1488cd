// Counts become the sums of those before them, and the sum of all follows. One block, which takes 256 counts at a time.
extern "C" __global__ void __launch_bounds__(256) kernel(u32 *counts, i64 n) {
    __shared__ u32 sums[256];
    u32 before = 0;
    for (i64 first = 0; first < n; first += 256) {
        const i64 i = first + threadIdx.x;
        const u32 own = i < n ? counts[i] : 0;
        sums[threadIdx.x] = own;
        __syncthreads();
        for (u32 step = 1; step < 256; step *= 2) {
            const u32 other = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
            __syncthreads();
            sums[threadIdx.x] += other;
            __syncthreads();
        }
        if (i < n) counts[i] = before + sums[threadIdx.x] - own;
        before += sums[255];
        __syncthreads();
    }
    if (threadIdx.x == 0) counts[n] = before;
}
