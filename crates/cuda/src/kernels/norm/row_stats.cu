// Mean and variance of each row: the mean squared distance from the mean, so that nothing cancels. V elements are loaded at once.
extern "C" __global__ void __launch_bounds__(256) kernel(const X *x, W *mean, W *variance, i64 rows, i64 width) {
    const i64 row = (i64)blockIdx.x * (256 / LANES) + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    const X *from = x + row * width;
    W sum = 0;
    if (row < rows)
#pragma unroll 4
        for (i64 i = lane * V; i < width; i += LANES * V) {
            X elements[V];
            load_words<V>(elements, from + i);
#pragma unroll
            for (int j = 0; j < V; j++) sum += widen(elements[j]);
        }
    const W middle = group_reduce<Add, LANES>(sum) / (W)width;
    W squares = 0;
    if (row < rows)
#pragma unroll 4
        for (i64 i = lane * V; i < width; i += LANES * V) {
            X elements[V];
            load_words<V>(elements, from + i);
#pragma unroll
            for (int j = 0; j < V; j++) {
                const W distance = widen(elements[j]) - middle;
                squares += distance * distance;
            }
        }
    squares = group_reduce<Add, LANES>(squares);
    if (row < rows && lane == 0) {
        mean[row] = middle;
        variance[row] = squares / (W)width;
    }
}
