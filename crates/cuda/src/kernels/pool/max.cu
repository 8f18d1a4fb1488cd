// The first largest element of a window, and its place, for V channels. NaN counts as largest.
extern "C" __global__ void kernel(const T *x, T *y, u8 *places, i64 total, AXES) {
    INDEX index = (INDEX)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    READ_AXES;
    Place p = place_of(index, out_h, out_w, channels / V);
    Span rows = span(vertical, p.row), columns = span(horizontal, p.column);
    float largest[V];
    T found[V];
    u8 place[V];
    bool first = true;
#pragma unroll
    for (int v = 0; v < V; v++) found[v] = {}, largest[v] = 0.0f, place[v] = (u8)-1;
    for (COORDINATE ky = rows.begin; ky < rows.end; ky++) {
        i64 row = (p.example * in_h + rows.origin + ky * rows.step) * in_w;
        for (COORDINATE kx = columns.begin; kx < columns.end; kx++) {
            T element[V];
            load_whole<V>(element, x + (row + columns.origin + kx * columns.step) * channels + (i64)p.channel * V);
#pragma unroll
            for (int v = 0; v < V; v++) {
                float value = widen(element[v]);
                if (first || value > largest[v] || (value != value && largest[v] == largest[v])) {
                    largest[v] = value;
                    found[v] = element[v];
                    place[v] = (u8)(ky * places_w + kx);
                }
            }
            first = false;
        }
    }
    store_whole<V>(y + (i64)index * V, found);
    store_whole<V>(places + (i64)index * V, place);
}
