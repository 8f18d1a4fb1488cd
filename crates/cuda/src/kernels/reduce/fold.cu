// Combines chunks of rows to blocks and blocks to the result, in order. Before this: as for the chunks.
//
// A block of threads has 32 results, and 8 lanes that share the chunks of each.
extern "C" __global__ void __launch_bounds__(256) kernel(
    void *y0, void *y1, const W *partial, i64 outer, i64 reduce, i64 inner, i64 per_block, i64 chunks
) {
    __shared__ W parts[256];
    const u32 thread = threadIdx.x, lane = thread / 32;
    const i64 i = (i64)blockIdx.x * 32 + thread % 32;
    const bool inside = i < outer * inner;
    for (int k = 0; k < K; k++) {
        const W *from = partial + (k * outer + i / inner) * chunks * inner + i % inner;
        for (i64 chunk = 0; chunk < chunks; chunk += per_block) {
            const i64 end = chunk + per_block < chunks ? chunk + per_block : chunks;
            W s = IDENTITY;
            if (inside) {
#pragma unroll 8
                for (i64 other = chunk + lane; other < end; other += 8) s = COMBINE::of(s, from[other * inner]);
            }
            // Whoever still reads the sums of the block before is waited for.
            __syncthreads();
            parts[thread] = s;
            for (u32 half = 4; half > 0; half /= 2) {
                __syncthreads();
                if (lane < half) parts[thread] = COMBINE::of(parts[thread], parts[thread + half * 32]);
            }
            if (!inside || lane > 0) continue;
            if (chunk == 0) finish(k == 0 ? y0 : y1, i, parts[thread], reduce);
            else add(k == 0 ? y0 : y1, i, parts[thread]);
        }
    }
}
