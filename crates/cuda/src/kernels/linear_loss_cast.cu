// Rounds a matrix of f32 and pads it with zeros: a thread for each V columns.
extern "C" __global__ void kernel(const float *x, T *y, i64 vectors, i64 rows, i64 columns, i64 padded_columns) {
    i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * V;
    if (i >= vectors * V) return;
    i64 row = i / padded_columns, column = i % padded_columns;
    i64 left = row < rows ? columns - column : 0;
    int inside = left < 0 ? 0 : left < V ? (int)left : V;
    float from[V] = {};
    T to[V];
    load_vector<V>(from, x + row * columns + column, inside);
#pragma unroll
    for (int j = 0; j < V; j++) to[j] = narrow<T>(from[j]);
    store_vector<V>(y + i, to, V);
}
