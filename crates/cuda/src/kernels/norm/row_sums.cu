// The sums of dy, and of dy times the normalised x, over each row.
extern "C" __global__ void __launch_bounds__(256) kernel(
    const D *dy, const X *x, const W *mean, const W *rstd, W *sum, W *with_x, i64 rows, i64 width
) {
    const i64 row = (i64)blockIdx.x * (256 / LANES) + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    W plain = 0, scaled = 0;
    if (row < rows)
        for (i64 i = lane; i < width; i += LANES) {
            const i64 statistic = BY_ROW ? row : i;
            const W d = widen(dy[row * width + i]);
            plain += d;
            scaled += d * (widen(x[row * width + i]) - mean[statistic]) * rstd[statistic];
        }
    plain = group_reduce<Add, LANES>(plain);
    scaled = group_reduce<Add, LANES>(scaled);
    if (row < rows && lane == 0) {
        sum[row] = plain;
        with_x[row] = scaled;
    }
}
