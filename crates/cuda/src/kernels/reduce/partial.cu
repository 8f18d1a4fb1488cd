// Reduces rows of [outer, reduce, inner] to chunks of rows, or to the result where there is only one.
//
// A block has COLUMNS neighbours of the inner axis, LANES threads for the rows of a chunk, and GROUPS of the outer axis. They
// follow from the sizes of one sum alone, so its bits do not depend on how many there are.
//
// Before this: K sums of type W; COMBINE and IDENTITY; terms(), an element's part in each; finish(), the result of each.
extern "C" __global__ void __launch_bounds__(256) kernel(
    const void *a, const void *b, const void *c, const void *d, void *y0, void *y1, W *partial, i64 outer, i64 reduce,
    i64 inner, i64 block_rows, i64 chunks
) {
    __shared__ W parts[K][256];
    const u32 thread = threadIdx.x;
    const u32 column_in = thread % COLUMNS, lane = thread / COLUMNS % LANES, group = thread / (COLUMNS * LANES);
    const i64 tiles = (inner + COLUMNS - 1) / COLUMNS;
    i64 rest = blockIdx.x;
    const i64 column = rest % tiles * COLUMNS + column_in;
    rest /= tiles;
    // Chunks of a block of rows lie side by side; a block starts with a chunk.
    const i64 chunk = rest % chunks;
    const i64 at = rest / chunks * GROUPS + group;
    const i64 per_block = (block_rows + CHUNK - 1) / CHUNK;
    const i64 start = chunk / per_block * block_rows;
    const i64 block_end = start + block_rows < reduce ? start + block_rows : reduce;
    const i64 first = start + chunk % per_block * CHUNK;
    const i64 end = first + CHUNK < block_end ? first + CHUNK : block_end;
    const bool inside = at < outer && column < inner;
    W sum[K];
    for (int k = 0; k < K; k++) sum[k] = IDENTITY;
    if (inside) {
#pragma unroll 4
        for (i64 row = first + lane; row < end; row += LANES) {
            W term[K];
            terms(term, a, b, c, d, (at * reduce + row) * inner + column, row, column, at);
            for (int k = 0; k < K; k++) sum[k] = COMBINE::of(sum[k], term[k]);
        }
    }
    for (int k = 0; k < K; k++) parts[k][thread] = sum[k];
    for (u32 half = LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half)
            for (int k = 0; k < K; k++)
                parts[k][thread] = COMBINE::of(parts[k][thread], parts[k][thread + half * COLUMNS]);
    }
    if (!inside || lane > 0) return;
    for (int k = 0; k < K; k++) {
        const W s = parts[k][thread];
        if (chunks == 1) finish(k == 0 ? y0 : y1, at * inner + column, s, reduce);
        else partial[((k * outer + at) * chunks + chunk) * inner + column] = s;
    }
}
