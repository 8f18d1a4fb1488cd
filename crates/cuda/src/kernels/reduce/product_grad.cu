// dy times the product of all elements but one, along the middle axis of [outer, extent, inner]: a thread for each product.
extern "C" __global__ void kernel(const X *x, const X *dy, X *dx, i64 outer, i64 extent, i64 inner) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= outer * inner) return;
    const i64 start = i / inner * extent * inner + i % inner;
    double before = 1, after = 1;
    for (i64 r = 0; r < extent; r++) {
        const i64 at = start + r * inner;
        dx[at] = (X)before;
        before *= x[at];
    }
    for (i64 r = extent - 1; r >= 0; r--) {
        const i64 at = start + r * inner;
        dx[at] = (X)(dx[at] * (after * dy[i]));
        after *= x[at];
    }
}
