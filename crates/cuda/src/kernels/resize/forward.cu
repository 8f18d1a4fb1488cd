// An element of the resized image: between rows first, then along what that gives.
extern "C" __global__ void kernel(const T *x, T *y, i64 total, i64 channels, i64 in_h, i64 in_w, i64 out_h, i64 out_w) {
    INDEX index = (INDEX)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    Place p = place_of(index, out_h, out_w, channels);
    Source down = source(p.row, in_h, out_h), across = source(p.column, in_w, out_w);
    const T *upper = x + (p.example * in_h + down.first) * in_w * channels + p.channel;
#if NEAREST
    y[index] = upper[across.first * channels];
#else
    const T *lower = x + (p.example * in_h + down.second) * in_w * channels + p.channel;
    i64 first = across.first * channels, second = across.second * channels;
    float left = (1.0f - down.share) * widen(upper[first]) + down.share * widen(lower[first]);
    float right = (1.0f - down.share) * widen(upper[second]) + down.share * widen(lower[second]);
    y[index] = narrow<T>((1.0f - across.share) * left + across.share * right);
#endif
}
