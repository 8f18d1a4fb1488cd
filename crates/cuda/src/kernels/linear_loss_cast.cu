// Rounds a matrix of f32 and pads it with zeros.
extern "C" __global__ void kernel(const float *x, T *y, i64 elements, i64 rows, i64 columns, i64 padded_columns) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= elements) return;
    i64 row = i / padded_columns, column = i % padded_columns;
    y[i] = narrow<T>(row < rows && column < columns ? x[row * columns + column] : 0.0f);
}
