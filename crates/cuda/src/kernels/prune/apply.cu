// Elements, with zeros where a mask has no bit. The result may be in their place.
extern "C" __global__ void __launch_bounds__(256) kernel(const T *x, const u8 *mask, T *y, i64 n) {
    const i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i < n) y[i] = mask[i / 8] >> (i % 8) & 1 ? x[i] : (T)0;
}
