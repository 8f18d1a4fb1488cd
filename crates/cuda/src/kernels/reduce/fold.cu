// Combines chunks of rows to blocks and blocks to the result, in order. Before this: as for the chunks.
extern "C" __global__ void __launch_bounds__(256) kernel(
    void *y0, void *y1, const W *partial, i64 outer, i64 reduce, i64 inner, i64 per_block, i64 chunks
) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= outer * inner) return;
    for (int k = 0; k < K; k++) {
        const W *from = partial + (k * outer + i / inner) * chunks * inner + i % inner;
        for (i64 chunk = 0; chunk < chunks; chunk += per_block) {
            const i64 end = chunk + per_block < chunks ? chunk + per_block : chunks;
            W s = from[chunk * inner];
#pragma unroll 8
            for (i64 other = chunk + 1; other < end; other++) s = COMBINE::of(s, from[other * inner]);
            if (chunk == 0) finish(k == 0 ? y0 : y1, i, s, reduce);
            else add(k == 0 ? y0 : y1, i, s);
        }
    }
}
