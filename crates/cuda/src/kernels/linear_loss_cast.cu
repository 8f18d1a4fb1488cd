// Rounds a matrix of f32 and pads its rows with zeros.
extern "C" __global__ void kernel(const float *x, T *y, i64 elements, i64 columns, i64 padded) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= elements) return;
    i64 column = i % padded;
    y[i] = narrow<T>(column < columns ? x[i / padded * columns + column] : 0.0f);
}
