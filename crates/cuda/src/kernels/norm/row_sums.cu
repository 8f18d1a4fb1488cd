// The sums of dy, and of dy times the normalised x, over each row. V elements are loaded at once.
extern "C" __global__ void __launch_bounds__(256) kernel(
    const D *dy, const X *x, const W *mean, const W *rstd, W *sum, W *with_x, i64 rows, i64 width
) {
    const i64 row = (i64)blockIdx.x * (256 / LANES) + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    W plain = 0, scaled = 0;
    if (row < rows)
#pragma unroll 4
        for (i64 i = lane * V; i < width; i += LANES * V) {
            D gradients[V];
            X elements[V];
            load_words<V>(gradients, dy + row * width + i);
            load_words<V>(elements, x + row * width + i);
#pragma unroll
            for (int j = 0; j < V; j++) {
                const i64 statistic = BY_ROW ? row : i + j;
                const W d = widen(gradients[j]);
                plain += d;
                scaled += d * (widen(elements[j]) - mean[statistic]) * rstd[statistic];
            }
        }
    plain = group_reduce<Add, LANES>(plain);
    scaled = group_reduce<Add, LANES>(scaled);
    if (row < rows && lane == 0) {
        sum[row] = plain;
        with_x[row] = scaled;
    }
}
