// Adds partial sums for padded images, [window_h, terms, out], in order, to what the result, [window_h, window_w, in, out], holds, or to
// zero.
extern "C" __global__ void kernel(const float *parts, float *sums, i64 total, i64 count, i64 accumulate, i64 part, i64 terms,
                                  i64 window_w, i64 in, i64 out) {
    const i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    const i64 o = index % out, c = index / out % in, kx = index / out / in % window_w, ky = index / out / in / window_w;
    const float *from = parts + (ky * terms + kx * CHANNELS + c) * out + o;
    float sum = accumulate ? sums[index] : 0.0f;
    for (i64 k = 0; k < count; k++) sum += from[k * part];
    sums[index] = sum;
}
