// Copies images of few channels, [height, width, channels], into larger ones with zeros around them and behind the channels:
// [padded_h, padded_w, CHANNELS]. A thread copies a pixel.
extern "C" __global__ void kernel(const T *from, T *to, i64 total, i64 height, i64 width, i64 channels, i64 padded_h, i64 padded_w,
                                  i64 before_h, i64 before_w) {
    const INDEX index = (INDEX)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    const INDEX rest = index / (INDEX)padded_w;
    const i64 x = (i64)(index % (INDEX)padded_w) - before_w, y = (i64)(rest % (INDEX)padded_h) - before_h, example = rest / (INDEX)padded_h;
    T pixel[CHANNELS];
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) pixel[c] = {};
    if (y >= 0 && y < height && x >= 0 && x < width) {
        const T *at = from + ((example * height + y) * width + x) * channels;
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
            if (c < channels) pixel[c] = at[c];
    }
    store_whole<CHANNELS>(to + (i64)index * CHANNELS, pixel);
}
