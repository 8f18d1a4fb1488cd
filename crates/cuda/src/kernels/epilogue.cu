// A bias of type B for each column and a maximum with zero, on a product of type W, rounded to T.
extern "C" __global__ void kernel(const W *x, const B *bias, T *y, i64 elements, i64 columns) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= elements) return;
    W value = x[i];
#if BIAS
    value = value + (W)widen(bias[i % columns]);
#endif
#if RELU
    value = value > 0 || value != value ? value : (W)0;
#endif
    y[i] = narrow<T>(value);
}
