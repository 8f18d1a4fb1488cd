// The first largest element of a window, and its place. NaN counts as largest.
extern "C" __global__ void kernel(const T *x, T *y, u8 *places, i64 total, AXES) {
    INDEX index = (INDEX)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    READ_AXES;
    Place p = place_of(index, out_h, out_w, channels);
    Span rows = span(vertical, p.row), columns = span(horizontal, p.column);
    float largest = 0.0f;
    T found = {};
    i64 place = -1;
    for (COORDINATE ky = rows.begin; ky < rows.end; ky++) {
        i64 row = (p.example * in_h + rows.origin + ky * rows.step) * in_w;
        for (COORDINATE kx = columns.begin; kx < columns.end; kx++) {
            T element = x[(row + columns.origin + kx * columns.step) * channels + p.channel];
            float value = widen(element);
            if (place < 0 || value > largest || (value != value && largest == largest)) {
                largest = value;
                found = element;
                place = ky * places_w + kx;
            }
        }
    }
    y[index] = found;
    places[index] = (u8)place;
}
