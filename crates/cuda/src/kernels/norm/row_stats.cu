// Mean and variance of each row: the mean squared distance from the mean, so that nothing cancels.
extern "C" __global__ void __launch_bounds__(256) kernel(const X *x, W *mean, W *variance, i64 rows, i64 width) {
    const i64 row = (i64)blockIdx.x * (256 / LANES) + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    const X *from = x + row * width;
    W sum = 0;
    if (row < rows)
        for (i64 i = lane; i < width; i += LANES) sum += widen(from[i]);
    const W middle = group_reduce<Add, LANES>(sum) / (W)width;
    W squares = 0;
    if (row < rows)
        for (i64 i = lane; i < width; i += LANES) {
            const W distance = widen(from[i]) - middle;
            squares += distance * distance;
        }
    squares = group_reduce<Add, LANES>(squares);
    if (row < rows && lane == 0) {
        mean[row] = middle;
        variance[row] = squares / (W)width;
    }
}
