// A sum over all bits and their positions, in any order, for a trial.
extern "C" __global__ void kernel(const u16 *x, u64 *sum, i64 count) {
    const i64 step = (i64)gridDim.x * blockDim.x;
    u64 own = 0;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        u64 bits = (((u64)i << 16 | x[i]) + 1) * 0x9e3779b97f4a7c15ull;
        own += (bits ^ bits >> 29) * 0xbf58476d1ce4e5b9ull;
    }
    atomicAdd(sum, own);
}
