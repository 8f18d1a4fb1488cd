// An element of the image's gradient, gathered from the elements of the result that it has a weight in.
extern "C" __global__ void kernel(const T *dy, T *dx, i64 total, i64 channels, i64 in_h, i64 in_w, i64 out_h, i64 out_w) {
    INDEX index = (INDEX)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    Place p = place_of(index, in_h, in_w, channels);
    i64 first_row = search<false>(p.row, in_h, out_h), end_row = search<true>(p.row, in_h, out_h);
    i64 first_column = search<false>(p.column, in_w, out_w), end_column = search<true>(p.column, in_w, out_w);
    float sum = 0.0f;
    for (i64 row = first_row; row < end_row; row++) {
        const T *from = dy + (p.example * out_h + row) * out_w * channels + p.channel;
        float line = 0.0f;
        for (i64 column = first_column; column < end_column; column++) {
            line += weight(source(column, in_w, out_w), p.column) * widen(from[column * channels]);
        }
        sum += weight(source(row, in_h, out_h), p.row) * line;
    }
    dx[index] = narrow<T>(sum);
}
