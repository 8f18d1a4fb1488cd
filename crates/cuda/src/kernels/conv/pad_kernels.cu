// Kernels for padded images: from [window_h, window_w, in, out] to [window_h, terms, out], where a term is CHANNELS * column + channel; zeros
// elsewhere.
extern "C" __global__ void kernel(const T *from, T *to, i64 total, i64 terms, i64 window_w, i64 in, i64 out) {
    const i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    const i64 o = index % out, term = index / out % terms, ky = index / out / terms;
    const i64 kx = term / CHANNELS, c = term % CHANNELS;
    T value = {};
    if (kx < window_w && c < in) value = from[((ky * window_w + kx) * in + c) * out + o];
    to[index] = value;
}
