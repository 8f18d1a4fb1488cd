// Parts of the gradient of a convolution's kernels where a group has few channels. A block sums 32 output channels of one element
// of the window over one part of the rows (output pixels): 8 threads each take every eighth row, and are added as a tree.
extern "C" __global__ void kernel(const T *x, const T *dy, float *parts, i64 first_row, i64 end_row, i64 part_rows, i64 in_h,
                                  i64 in_w, i64 in_c, i64 out_h, i64 out_w, i64 out_c, i64 window_h, i64 window_w, i64 stride_h,
                                  i64 stride_w, i64 pad_h, i64 pad_w, i64 dilation_h, i64 dilation_w, i64 group_in,
                                  i64 group_out) {
    __shared__ float sums[256];
    u32 lane = threadIdx.x % 32, slice = threadIdx.x / 32;
    u32 tiles = ((u32)out_c + 31) / 32;
    i64 o = blockIdx.x % tiles * 32 + lane, element = blockIdx.x / tiles;
    i64 c = element % group_in, kx = element / group_in % window_w, ky = element / group_in / window_w;
    i64 channel = (u32)o / (u32)group_out * group_in + c;
    i64 begin = first_row + blockIdx.y * part_rows, end = begin + part_rows < end_row ? begin + part_rows : end_row;
    float sum = 0.0f;
    if (o < out_c) {
        for (i64 row = begin + slice; row < end; row += 8) {
            INDEX pixel = (INDEX)row;
            i64 ix = (i64)(pixel % (INDEX)out_w) * stride_w + kx * dilation_w - pad_w;
            pixel /= (INDEX)out_w;
            i64 iy = (i64)(pixel % (INDEX)out_h) * stride_h + ky * dilation_h - pad_h, example = pixel / (INDEX)out_h;
            if (iy < 0 || iy >= in_h || ix < 0 || ix >= in_w) continue;
            sum = fmaf(widen(x[((example * in_h + iy) * in_w + ix) * in_c + channel]), widen(dy[row * out_c + o]), sum);
        }
    }
    sums[threadIdx.x] = sum;
    for (u32 half = 128; half >= 32; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (slice == 0 && o < out_c) {
        parts[(blockIdx.y * window_h * window_w * group_in + element) * out_c + o] = sums[lane];
    }
}
