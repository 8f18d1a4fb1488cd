// Rounds the sums of some key heads of [n, keys, key heads, width].
extern "C" __global__ void kernel(const float *sums, T *result, i64 total, i64 heads, i64 width, i64 all_heads) {
    i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    i64 run = heads * width;
    result[index / run * all_heads * width + index % run] = narrow<T>(sums[index]);
}
