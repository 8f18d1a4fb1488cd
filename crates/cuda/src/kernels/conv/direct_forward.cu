// Convolution where a group has few channels: a thread sums an element of the result.
__device__ inline float relu(float x) { return x < 0.0f ? 0.0f : x; }

extern "C" __global__ void kernel(const T *x, const T *kernels, const BIAS *bias, OUT *y, i64 total, i64 in_h, i64 in_w, i64 in_c,
                                  i64 out_h, i64 out_w, i64 out_c, i64 window_h, i64 window_w, i64 stride_h, i64 stride_w,
                                  i64 pad_h, i64 pad_w, i64 dilation_h, i64 dilation_w, i64 group_in, i64 group_out) {
    INDEX index = (INDEX)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    i64 o = index % (INDEX)out_c;
    INDEX pixel = index / (INDEX)out_c;
    i64 column = pixel % (INDEX)out_w;
    pixel /= (INDEX)out_w;
    i64 row = pixel % (INDEX)out_h, example = pixel / (INDEX)out_h;
    i64 first = (u32)o / (u32)group_out * group_in;
    float sum = 0.0f;
    for (i64 ky = 0; ky < window_h; ky++) {
        i64 iy = row * stride_h + ky * dilation_h - pad_h;
        if (iy < 0 || iy >= in_h) continue;
        for (i64 kx = 0; kx < window_w; kx++) {
            i64 ix = column * stride_w + kx * dilation_w - pad_w;
            if (ix < 0 || ix >= in_w) continue;
            const T *from = x + ((example * in_h + iy) * in_w + ix) * in_c + first;
            const T *weights = kernels + (ky * window_w + kx) * group_in * out_c + o;
            for (i64 c = 0; c < group_in; c++) sum = fmaf(widen(from[c]), widen(weights[c * out_c]), sum);
        }
    }
    y[index] = narrow<OUT>(FINISH(sum, o));
}
