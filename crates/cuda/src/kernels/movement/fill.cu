extern "C" __global__ void kernel(T *y, i64 bits, i64 n) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = (T)bits;
}
