// What all keys share of the gradient of a query's softmax: a thread computes a query of a head.
extern "C" __global__ void kernel(const T *y, const T *dy, float *shared, i64 total) {
    i64 row = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= total) return;
    float sum = 0.0f;
    for (int i = 0; i < WIDTH; i++) sum = fmaf(widen(y[row * WIDTH + i]), widen(dy[row * WIDTH + i]), sum);
    shared[row] = sum;
}
