// The moments of chunks of rows, for each channel, in one pass: a thread sums distances from its first element, so that nothing of
// size is cancelled.
extern "C" __global__ void __launch_bounds__(256) kernel(
    const X *x, W *partial, i64 rows, i64 channels, i64 block_rows, i64 chunks
) {
    __shared__ W means[V][256], squares[V][256];
    __shared__ W counts[256];
    const Part p = part_of(rows, channels, block_rows, chunks);
    const bool inside = p.channel < channels;
    W shift[V], sum[V], square[V];
#pragma unroll
    for (int v = 0; v < V; v++) shift[v] = sum[v] = square[v] = 0;
    const i64 first = p.first + p.lane;
    if (inside && first < p.end) {
        X e[V];
        load_whole<V>(e, x + first * channels + p.channel);
#pragma unroll
        for (int v = 0; v < V; v++) shift[v] = widen(e[v]);
#pragma unroll 4
        for (i64 row = first + BLOCK_LANES; row < p.end; row += BLOCK_LANES) {
            load_whole<V>(e, x + row * channels + p.channel);
#pragma unroll
            for (int v = 0; v < V; v++) {
                const W distance = widen(e[v]) - shift[v];
                sum[v] += distance;
                square[v] += distance * distance;
            }
        }
    }
    const W count = first < p.end ? (W)((p.end - first + BLOCK_LANES - 1) / BLOCK_LANES) : 0;
    counts[threadIdx.x] = count;
#pragma unroll
    for (int v = 0; v < V; v++) {
        const W mean = count > 0 ? sum[v] / count : 0, rest = square[v] - sum[v] * mean;
        means[v][threadIdx.x] = shift[v] + mean;
        squares[v][threadIdx.x] = rest < 0 ? 0 : rest;
    }
    for (u32 half = BLOCK_LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        const u32 here = threadIdx.x, there = here + half * COLUMNS;
        if (p.lane >= half) continue;
        for (int v = 0; v < V; v++) {
            const Moments both = join({counts[here], means[v][here], squares[v][here]}, {counts[there], means[v][there], squares[v][there]});
            means[v][here] = both.mean;
            squares[v][here] = both.squares;
        }
        counts[here] += counts[there];
    }
    if (!inside || p.lane > 0) return;
    for (int v = 0; v < V; v++) {
        partial[p.chunk * channels + p.channel + v] = means[v][threadIdx.x];
        partial[(chunks + p.chunk) * channels + p.channel + v] = squares[v][threadIdx.x];
    }
}
