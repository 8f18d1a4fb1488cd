// Adds the parts of rows, block after block of them, each block as the same tree.
extern "C" __global__ void kernel(const float *parts, float *total, i64 rows, i64 block_rows) {
    float sum = ACCUMULATE ? total[0] : 0.0f;
    for (i64 start = 0; start < rows; start += block_rows) {
        i64 end = start + block_rows < rows ? start + block_rows : rows;
        float own = 0;
        for (i64 row = start + threadIdx.x; row < end; row += blockDim.x) own = own + parts[row];
        sum = sum + block_sum(own);
    }
    if (threadIdx.x == 0) total[0] = sum;
}
