// Reduces rows of [outer, reduce, inner] to chunks of rows, or to the result where there is only one.
//
// A block has COLUMNS times V neighbours of the inner axis, LANES threads for the rows of a chunk, and GROUPS of the outer axis. They
// follow from the sizes of one sum alone, so its bits do not depend on how many there are. A thread loads V elements at once.
//
// Before this: K sums of type W; COMBINE and IDENTITY; LOAD and ELEMENTS, the elements that are reduced; terms(), the part of one in
// each sum; finish(), the result of each.
extern "C" __global__ void __launch_bounds__(256) kernel(
    const void *a, const void *b, const void *c, const void *d, void *y0, void *y1, W *partial, i64 outer, i64 reduce,
    i64 inner, i64 block_rows, i64 chunks
) {
    __shared__ W parts[K][V][256];
    const u32 thread = threadIdx.x;
    const u32 column_in = thread % COLUMNS, lane = thread / COLUMNS % LANES, group = thread / (COLUMNS * LANES);
    const i64 tiles = (inner + COLUMNS * V - 1) / (COLUMNS * V);
    i64 rest = blockIdx.x;
    const i64 column = (rest % tiles * COLUMNS + column_in) * V;
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
    W sum[K][V];
#pragma unroll
    for (int k = 0; k < K * V; k++) sum[k / V][k % V] = IDENTITY;
    if (inside) {
        // So many loads are on the way at once.
#pragma unroll 8 / K
        for (i64 row = first + lane; row < end; row += LANES) {
            const i64 i = (at * reduce + row) * inner + column;
            LOAD;
#pragma unroll
            for (int v = 0; v < V; v++) {
                W term[K];
                terms(term, ELEMENTS(v), b, c, d, row, column + v, at);
#pragma unroll
                for (int k = 0; k < K; k++) sum[k][v] = COMBINE::of(sum[k][v], term[k]);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < K * V; k++) parts[k / V][k % V][thread] = sum[k / V][k % V];
    for (u32 half = LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half)
            for (int k = 0; k < K * V; k++) {
                W *own = parts[k / V][k % V] + thread;
                *own = COMBINE::of(*own, own[half * COLUMNS]);
            }
    }
    if (!inside || lane > 0) return;
    for (int k = 0; k < K * V; k++) {
        const W s = parts[k / V][k % V][thread];
        const i64 own = column + k % V;
        if (chunks == 1) finish(k < V ? y0 : y1, at * inner + own, s, reduce);
        else partial[((k / V * outer + at) * chunks + chunk) * inner + own] = s;
    }
}
