// Cumulative sums along the middle axis of [outer, extent, inner], a thread for each sequence.
extern "C" __global__ void kernel(const X *x, X *y, i64 outer, i64 extent, i64 inner) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= outer * inner) return;
    const i64 start = i / inner * extent * inner + i % inner;
    double sum = 0;
    for (i64 r = 0; r < extent; r++) {
        const i64 at = start + (REVERSE ? extent - 1 - r : r) * inner;
        sum += x[at];
        y[at] = (X)sum;
    }
}
