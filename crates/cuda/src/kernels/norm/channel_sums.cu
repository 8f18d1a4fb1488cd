// The sums of dy, and of dy times the normalised x, over chunks of rows, for each channel.
extern "C" __global__ void __launch_bounds__(256) kernel(
    const D *dy, const X *x, const W *mean, const W *rstd, W *partial, i64 rows, i64 channels, i64 block_rows, i64 chunks
) {
    __shared__ W parts[2][V][256];
    const Part p = part_of(rows, channels, block_rows, chunks);
    const bool inside = p.channel < channels;
    W sums[2][V], m[V], r[V];
#pragma unroll
    for (int v = 0; v < V; v++) sums[0][v] = sums[1][v] = 0;
    if (inside) {
#if !BY_ROW
        load_whole<V>(m, mean + p.channel);
        load_whole<V>(r, rstd + p.channel);
#endif
#pragma unroll 4
        for (i64 row = p.first + p.lane; row < p.end; row += BLOCK_LANES) {
            D d[V];
            X e[V];
            load_whole<V>(d, dy + row * channels + p.channel);
            load_whole<V>(e, x + row * channels + p.channel);
#if BY_ROW
            const W row_mean = mean[row], row_rstd = rstd[row];
#pragma unroll
            for (int v = 0; v < V; v++) m[v] = row_mean, r[v] = row_rstd;
#endif
#pragma unroll
            for (int v = 0; v < V; v++) {
                const W g = widen(d[v]);
                sums[0][v] += g;
                sums[1][v] += g * (widen(e[v]) - m[v]) * r[v];
            }
        }
    }
#pragma unroll
    for (int v = 0; v < V; v++) parts[0][v][threadIdx.x] = sums[0][v], parts[1][v][threadIdx.x] = sums[1][v];
    for (u32 half = BLOCK_LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (p.lane < half)
            for (int k = 0; k < 2; k++)
                for (int v = 0; v < V; v++) parts[k][v][threadIdx.x] += parts[k][v][threadIdx.x + half * COLUMNS];
    }
    if (!inside || p.lane > 0) return;
    for (int k = 0; k < 2; k++)
        for (int v = 0; v < V; v++)
            partial[(k * chunks + p.chunk) * channels + p.channel + v] = parts[k][v][threadIdx.x];
}
