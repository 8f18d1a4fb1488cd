// Numbers between -1 and 1 by their positions, for a trial.
extern "C" __global__ void kernel(T *x, i64 elements, i64 seed) {
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += step) {
        u64 bits = ((u64)i + 1) * 0x9e3779b97f4a7c15ull + (u64)seed * 0xbf58476d1ce4e5b9ull;
        bits = (bits ^ bits >> 31) * 0x94d049bb133111ebull;
        x[i] = narrow<T>((Wide<T>)((float)(i32)(bits >> 32) * 0x1p-31f));
    }
}
