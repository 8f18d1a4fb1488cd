// Adds partial sums, in order, to what the result holds or to zero.
extern "C" __global__ void kernel(const float *parts, float *sums, i64 total, i64 count, i64 accumulate) {
    i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    float sum = accumulate ? sums[index] : 0.0f;
    for (i64 part = 0; part < count; part++) sum += parts[part * total + index];
    sums[index] = sum;
}
