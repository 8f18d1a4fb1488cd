// The k largest elements of each row: k times the best of those that come after the one found before.
struct Best {
    W value;
    i32 place;
};
__device__ inline bool above(W a, W b) { return a > b || (a != a && b == b); }
__device__ inline bool before(Best a, Best b) {
    return above(a.value, b.value) || (!above(b.value, a.value) && a.place < b.place);
}
struct First {
    __device__ static inline Best of(Best a, Best b) { return before(b, a) ? b : a; }
};
extern "C" __global__ void __launch_bounds__(256) kernel(const X *x, X *values, i32 *places, i64 rows, i64 width, i64 k) {
    const i64 row = (i64)blockIdx.x * (256 / LANES) + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    Best last = {(W)NOT_A_NUMBER, -1};
    for (i64 j = 0; j < k; j++) {
        Best best = {-(W)INF, 0x7fffffff};
        if (row < rows)
            for (i64 i = lane; i < width; i += LANES) {
                Best own = {widen(x[row * width + i]), (i32)i};
                if (before(last, own)) best = First::of(best, own);
            }
        last = group_reduce<First, LANES>(best);
        if (row < rows && lane == 0) {
            values[row * k + j] = x[row * width + last.place];
            places[row * k + j] = last.place;
        }
    }
}
