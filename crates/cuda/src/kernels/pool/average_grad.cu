// The shares of the gradients of the windows that this element is in, for V channels.
extern "C" __global__ void kernel(const T *dy, T *dx, i64 total, AXES) {
    INDEX index = (INDEX)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    READ_AXES;
    Place p = place_of(index, in_h, in_w, channels / V);
    COORDINATE end_row = end_window(vertical, p.row), end_column = end_window(horizontal, p.column);
    float sum[V];
#pragma unroll
    for (int v = 0; v < V; v++) sum[v] = 0.0f;
    for (COORDINATE row = first_window(vertical, p.row); row < end_row; row++) {
        if (place_at(vertical, row, p.row) < 0) continue;
        Span rows = span(vertical, row);
        for (COORDINATE column = first_window(horizontal, p.column); column < end_column; column++) {
            if (place_at(horizontal, column, p.column) < 0) continue;
            i64 window = ((p.example * out_h + row) * out_w + column) * channels + (i64)p.channel * V;
            const float count = share(rows, span(horizontal, column), vertical, horizontal);
            T gradient[V];
            load_whole<V>(gradient, dy + window);
#pragma unroll
            for (int v = 0; v < V; v++) sum[v] += widen(gradient[v]) / count;
        }
    }
    T result[V];
#pragma unroll
    for (int v = 0; v < V; v++) result[v] = narrow<T>(sum[v]);
    store_whole<V>(dx + (i64)index * V, result);
}
