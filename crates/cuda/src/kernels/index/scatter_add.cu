// Adds rows to those of a table that indices name, in order. A block has 16 rows of the table and 256 columns; it looks through
// all indices, a tile at a time.
extern "C" __global__ void __launch_bounds__(256) kernel(
    const i32 *indices, const X *dy, W *y, u64 *fault, i64 rows, i64 width, i64 count
) {
    __shared__ i32 tile[256];
    __shared__ u32 found;
    const u32 thread = threadIdx.x;
    const i64 tiles = (width + 255) / 256;
    const i64 first = blockIdx.x / tiles * 16, column = blockIdx.x % tiles * 256 + thread;
    const bool inside = column < width;
    if (inside && !ACCUMULATE)
        for (i64 row = first; row < first + 16 && row < rows; row++) y[row * width + column] = 0;
    for (i64 start = 0; start < count; start += 256) {
        const i64 position = start + thread;
        const i32 index = position < count ? indices[position] : 0;
        const bool here = position < count && index >= first && index < first + 16 && index < rows;
        if (blockIdx.x == 0 && position < count && (index < 0 || index >= rows)) fail(fault, position, index);
        __syncthreads();
        if (thread == 0) found = 0;
        __syncthreads();
        tile[thread] = here ? index : -1;
        // Any of the threads may write: all write the same.
        if (here) found = 1;
        __syncthreads();
        if (found && inside)
            for (int j = 0; j < 256; j++)
                if (tile[j] >= 0) {
                    W *at = y + tile[j] * width + column;
                    *at = *at + widen(dy[(start + j) * width + column]);
                }
    }
}
