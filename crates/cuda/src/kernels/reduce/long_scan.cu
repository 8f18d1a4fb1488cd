// Cumulative sums along the middle axis of [outer, extent, inner], a block for each sequence, tile by tile.
extern "C" __global__ void __launch_bounds__(256) kernel(const X *x, X *y, i64 outer, i64 extent, i64 inner) {
    __shared__ double sums[256];
    const u32 thread = threadIdx.x;
    const i64 i = blockIdx.x, start = i / inner * extent * inner + i % inner;
    double carry = 0;
    for (i64 tile = 0; tile < extent; tile += 1024) {
        // Four elements of each thread.
        double own[4], total = 0;
        const i64 first = tile + 4 * thread;
        for (int j = 0; j < 4; j++) {
            const i64 r = first + j;
            if (r < extent) total += x[start + (REVERSE ? extent - 1 - r : r) * inner];
            own[j] = total;
        }
        __syncthreads();
        sums[thread] = total;
        for (u32 step = 1; step < 256; step *= 2) {
            __syncthreads();
            const double before = thread >= step ? sums[thread - step] : 0;
            __syncthreads();
            sums[thread] += before;
        }
        __syncthreads();
        const double base = carry + (thread > 0 ? sums[thread - 1] : 0);
        for (int j = 0; j < 4; j++) {
            const i64 r = first + j;
            if (r < extent) y[start + (REVERSE ? extent - 1 - r : r) * inner] = (X)(base + own[j]);
        }
        carry += sums[255];
    }
}
