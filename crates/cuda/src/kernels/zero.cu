// Zeros.
extern "C" __global__ void kernel(UNIT *elements, i64 total) {
    i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    UNIT zero = {};
    if (index < total) elements[index] = zero;
}
