// The gradients of the windows whose largest element this is, for V channels.
extern "C" __global__ void kernel(const T *dy, const u8 *places, T *dx, i64 total, AXES) {
    INDEX index = (INDEX)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    READ_AXES;
    Place p = place_of(index, in_h, in_w, channels / V);
    COORDINATE end_row = end_window(vertical, p.row), end_column = end_window(horizontal, p.column);
    float sum[V];
#pragma unroll
    for (int v = 0; v < V; v++) sum[v] = 0.0f;
    for (COORDINATE row = first_window(vertical, p.row); row < end_row; row++) {
        COORDINATE ky = place_at(vertical, row, p.row);
        if (ky < 0) continue;
        for (COORDINATE column = first_window(horizontal, p.column); column < end_column; column++) {
            COORDINATE kx = place_at(horizontal, column, p.column);
            if (kx < 0) continue;
            i64 window = ((p.example * out_h + row) * out_w + column) * channels + (i64)p.channel * V;
            T gradient[V];
            u8 place[V];
            load_whole<V>(gradient, dy + window);
            load_whole<V>(place, places + window);
#pragma unroll
            for (int v = 0; v < V; v++)
                if (place[v] == ky * places_w + kx) sum[v] += widen(gradient[v]);
        }
    }
    T result[V];
#pragma unroll
    for (int v = 0; v < V; v++) result[v] = narrow<T>(sum[v]);
    store_whole<V>(dx + (i64)index * V, result);
}
