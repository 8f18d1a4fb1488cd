// The mean of a window.
extern "C" __global__ void kernel(const T *x, T *y, i64 total, AXES) {
    INDEX index = (INDEX)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    READ_AXES;
    Place p = place_of(index, out_h, out_w, channels);
    Span rows = span(vertical, p.row), columns = span(horizontal, p.column);
    float sum = 0.0f;
    for (COORDINATE ky = rows.begin; ky < rows.end; ky++) {
        i64 row = (p.example * in_h + rows.origin + ky * rows.step) * in_w;
        for (COORDINATE kx = columns.begin; kx < columns.end; kx++) {
            sum += widen(x[(row + columns.origin + kx * columns.step) * channels + p.channel]);
        }
    }
    y[index] = narrow<T>(sum / share(rows, columns, vertical, horizontal));
}
