// A block's 256 elements as bytes: the largest magnitude is their scale, and a code is the number of bounds below the rest.
extern "C" __global__ void __launch_bounds__(256) kernel(const float *x, u8 *codes, float *scales, i64 n) {
    const i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    const float own = i < n ? x[i] : 0;
    const float scale = group_reduce<Larger, 256>(fabsf(own));
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
    if (i >= n) return;
    const float ratio = scale == 0 ? 0 : own / scale;
    int below = 0;
    for (int step = 128; step > 0; step /= 2)
        if (__uint_as_float(BOUNDS[below + step - 1]) < ratio) below += step;
    codes[i] = (u8)(!SIGNED && ratio > 0 && below == 0 ? 1 : below);
}
