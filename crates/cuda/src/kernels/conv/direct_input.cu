// The gradient of a convolution's image where a group has few channels: a thread sums an element.
extern "C" __global__ void kernel(const T *dy, const T *kernels, OUT *dx, i64 total, i64 in_h, i64 in_w, i64 in_c, i64 out_h,
                                  i64 out_w, i64 out_c, i64 window_h, i64 window_w, i64 stride_h, i64 stride_w, i64 pad_h,
                                  i64 pad_w, i64 dilation_h, i64 dilation_w, i64 group_in, i64 group_out) {
    INDEX index = (INDEX)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    u32 channel = index % (INDEX)in_c;
    INDEX pixel = index / (INDEX)in_c;
    i64 column = pixel % (INDEX)in_w;
    pixel /= (INDEX)in_w;
    i64 row = pixel % (INDEX)in_h, example = pixel / (INDEX)in_h;
    i64 group = channel / (u32)group_in, inside = channel % (u32)group_in;
    float sum = 0.0f;
    for (i64 ky = 0; ky < window_h; ky++) {
        i64 y = row + pad_h - ky * dilation_h;
        if (y < 0 || (INDEX)y % (INDEX)stride_h != 0) continue;
        y = (INDEX)y / (INDEX)stride_h;
        if (y >= out_h) continue;
        for (i64 kx = 0; kx < window_w; kx++) {
            i64 x = column + pad_w - kx * dilation_w;
            if (x < 0 || (INDEX)x % (INDEX)stride_w != 0) continue;
            x = (INDEX)x / (INDEX)stride_w;
            if (x >= out_w) continue;
            i64 from = ((example * out_h + y) * out_w + x) * out_c + group * group_out;
            i64 weight = ((ky * window_w + kx) * group_in + inside) * out_c + group * group_out;
            for (i64 o = 0; o < group_out; o++) sum = fmaf(widen(dy[from + o]), widen(kernels[weight + o]), sum);
        }
    }
    dx[index] = narrow<OUT>(sum);
}
