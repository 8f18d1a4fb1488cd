// How many bits a mask has in each 256 bytes of it.
extern "C" __global__ void __launch_bounds__(256) kernel(const u8 *mask, u32 *kept, i64 n) {
    __shared__ u32 count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    const i64 first = 8 * ((i64)blockIdx.x * 256 + threadIdx.x);
    u32 own = 0;
    for (int bit = 0; bit < 8 && first + bit < n; bit++) own += mask[first / 8] >> bit & 1;
    atomicAdd(&count, own);
    __syncthreads();
    if (threadIdx.x == 0) kept[blockIdx.x] = count;
}
