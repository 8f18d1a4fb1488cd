// The mean of a window, for V channels.
extern "C" __global__ void kernel(const T *x, T *y, i64 total, AXES) {
    INDEX index = (INDEX)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    READ_AXES;
    Place p = place_of(index, out_h, out_w, channels / V);
    Span rows = span(vertical, p.row), columns = span(horizontal, p.column);
    float sum[V];
#pragma unroll
    for (int v = 0; v < V; v++) sum[v] = 0.0f;
    for (COORDINATE ky = rows.begin; ky < rows.end; ky++) {
        i64 row = (p.example * in_h + rows.origin + ky * rows.step) * in_w;
        for (COORDINATE kx = columns.begin; kx < columns.end; kx++) {
            T element[V];
            load_whole<V>(element, x + (row + columns.origin + kx * columns.step) * channels + (i64)p.channel * V);
#pragma unroll
            for (int v = 0; v < V; v++) sum[v] += widen(element[v]);
        }
    }
    const float count = share(rows, columns, vertical, horizontal);
    T result[V];
#pragma unroll
    for (int v = 0; v < V; v++) result[v] = narrow<T>(sum[v] / count);
    store_whole<V>(y + (i64)index * V, result);
}
