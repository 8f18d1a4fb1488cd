// The gradients of the windows whose largest element this is.
extern "C" __global__ void kernel(const T *dy, const u8 *places, T *dx, i64 total, AXES) {
    INDEX index = (INDEX)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    READ_AXES;
    Place p = place_of(index, in_h, in_w, channels);
    COORDINATE end_row = end_window(vertical, p.row), end_column = end_window(horizontal, p.column);
    float sum = 0.0f;
    for (COORDINATE row = first_window(vertical, p.row); row < end_row; row++) {
        COORDINATE ky = place_at(vertical, row, p.row);
        if (ky < 0) continue;
        for (COORDINATE column = first_window(horizontal, p.column); column < end_column; column++) {
            COORDINATE kx = place_at(horizontal, column, p.column);
            i64 window = ((p.example * out_h + row) * out_w + column) * channels + p.channel;
            if (kx >= 0 && places[window] == ky * places_w + kx) sum += widen(dy[window]);
        }
    }
    dx[index] = narrow<T>(sum);
}
