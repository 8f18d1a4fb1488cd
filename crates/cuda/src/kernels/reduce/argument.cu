// The place of the first largest element of each row, or smallest (SIGN is -). NaN is beyond every number.
struct Best {
    W value;
    i32 place;
};
__device__ inline bool above(W a, W b) { return a > b || (a != a && b == b); }
struct Better {
    __device__ static inline Best of(Best a, Best b) {
        return above(b.value, a.value) || (!above(a.value, b.value) && b.place < a.place) ? b : a;
    }
};
extern "C" __global__ void __launch_bounds__(256) kernel(const X *x, i32 *y, i64 rows, i64 width) {
    const i64 row = (i64)blockIdx.x * (256 / LANES) + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    Best best = {-(W)INF, 0x7fffffff};
    if (row < rows)
        for (i64 i = lane; i < width; i += LANES) best = Better::of(best, Best{SIGN widen(x[row * width + i]), (i32)i});
    best = group_reduce<Better, LANES>(best);
    if (row < rows && lane == 0) y[row] = best.place;
}
