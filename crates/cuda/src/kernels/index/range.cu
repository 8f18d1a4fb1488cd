extern "C" __global__ void kernel(i32 *y, i64 n) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = (i32)i;
}
