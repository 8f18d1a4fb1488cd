// The gradient of 64 queries of a head, along the keys, WALK at a time.
extern "C" __global__ void __launch_bounds__(128, 2) kernel(const T *q, const T *k, const T *v, const T *dy, const float *logsumexp,
                                                         const float *shared, T *dq, const u8 *mask, float scale, i64 all_queries,
                                                         i64 all_keys, i64 heads, i64 key_heads, i64 mask_example, i64 mask_head,
                                                         i64 mask_query) {
    __shared__ uint4 key_vectors[TILE_VECTORS], value_vectors[TILE_VECTORS];
    u16 *key_tile = (u16 *)key_vectors, *value_tile = (u16 *)value_vectors;
    i32 queries = (i32)all_queries, keys = (i32)all_keys;
    u32 lane = threadIdx.x % 32, tiles = (u32)((queries + ROWS - 1) / ROWS), pair = blockIdx.x / tiles;
    i32 first = (tiles - 1 - blockIdx.x % tiles) * ROWS, own = first + threadIdx.x / 32 * 16, row = own + lane / 4;
    u32 head = pair % (u32)heads, key_head = head / ((u32)heads / (u32)key_heads);
    i64 example = pair / (u32)heads, stride = heads * WIDTH, key_stride = key_heads * WIDTH;
    i64 start = example * queries * stride + head * WIDTH, key_start = example * keys * key_stride + key_head * WIDTH;
    const u8 *allowed = mask + example * mask_example + head * mask_head;
    u32 factors[STEPS][4], gradients[STEPS][4];
    load_factors(factors, q + start, stride, own, queries);
    load_factors(gradients, dy + start, stride, own, queries);
    float base[2], part[2], sums[COLUMNS][4] = {}, rate = scale * LOG2_E;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        i32 query = row + i * 8;
        i64 place = (example * queries + query) * heads + head;
        base[i] = query < queries ? logsumexp[place] * LOG2_E : 0.0f;
        part[i] = query < queries ? shared[place] : 0.0f;
    }
    i32 end = CAUSAL && first + ROWS < keys ? first + ROWS : keys;
    for (i32 at = 0; at < end; at += WALK) {
        __syncthreads();
        load_tile(key_tile, k + key_start, key_stride, at, keys);
        load_tile(value_tile, v + key_start, key_stride, at, keys);
        __syncthreads();
        float scores[WALK / 8][4], dweights[WALK / 8][4];
        score(scores, factors, key_tile);
        score(dweights, gradients, value_tile);
        bool whole = !MASKED && at + WALK <= keys && (!CAUSAL || at + WALK <= first + 1);
#pragma unroll
        for (int i = 0; i < WALK / 2; i++) {
            int r = i % 4 / 2;
            i32 query = row + r * 8, key = at + i / 4 * 8 + lane % 4 * 2 + i % 2;
            float weight = exp2f(fmaf(scores[i / 4][i % 4], rate, -base[r]));
            if (!whole) {
                bool sees = key < keys && (!CAUSAL || key <= query) && query < queries;
                if (!sees || !SEES(query, key)) weight = 0.0f;
            }
            scores[i / 4][i % 4] = weight * (dweights[i / 4][i % 4] - part[r]);
        }
        add_weighted(sums, scores, key_tile);
    }
    float factor[2] = {scale, scale};
    store_rows(dq + start, stride, own, queries, sums, factor);
}
