// The gradients of 64 keys and values of a key head, along the queries of its heads, WALK at a time. Rows of scores are keys here.
extern "C" __global__ void __launch_bounds__(128, 2) kernel(const T *q, const T *k, const T *v, const T *dy, const float *logsumexp,
                                                         const float *shared, T *dk, T *dv, const u8 *mask, float scale,
                                                         i64 all_queries, i64 all_keys, i64 heads, i64 key_heads, i64 mask_example,
                                                         i64 mask_head, i64 mask_query) {
    __shared__ uint4 query_vectors[TILE_VECTORS], gradient_vectors[TILE_VECTORS];
    __shared__ float bases[WALK], parts[WALK];
    u16 *query_tile = (u16 *)query_vectors, *gradient_tile = (u16 *)gradient_vectors;
    i32 queries = (i32)all_queries, keys = (i32)all_keys;
    u32 lane = threadIdx.x % 32, tiles = (u32)((keys + ROWS - 1) / ROWS), pair = blockIdx.x / tiles;
    i32 first = blockIdx.x % tiles * ROWS, own = first + threadIdx.x / 32 * 16, row = own + lane / 4;
    u32 key_head = pair % (u32)key_heads, group = (u32)heads / (u32)key_heads;
    i64 example = pair / (u32)key_heads, stride = heads * WIDTH, key_stride = key_heads * WIDTH;
    i64 key_start = example * keys * key_stride + key_head * WIDTH;
    u32 factors[STEPS][4], values[STEPS][4];
    load_factors(factors, k + key_start, key_stride, own, keys);
    load_factors(values, v + key_start, key_stride, own, keys);
    float key_sums[COLUMNS][4] = {}, value_sums[COLUMNS][4] = {}, rate = scale * LOG2_E;
    for (u32 head = key_head * group; head < (key_head + 1) * group; head++) {
        i64 start = example * queries * stride + head * WIDTH;
        const u8 *allowed = mask + example * mask_example + head * mask_head;
        for (i32 at = CAUSAL ? first : 0; at < queries; at += WALK) {
            __syncthreads();
            load_tile(query_tile, q + start, stride, at, queries);
            load_tile(gradient_tile, dy + start, stride, at, queries);
            if (threadIdx.x < WALK) {
                i32 query = at + threadIdx.x;
                i64 place = (example * queries + query) * heads + head;
                bases[threadIdx.x] = query < queries ? logsumexp[place] * LOG2_E : 0.0f;
                parts[threadIdx.x] = query < queries ? shared[place] : 0.0f;
            }
            __syncthreads();
            float weights[WALK / 8][4], dscores[WALK / 8][4];
            score(weights, factors, query_tile);
            score(dscores, values, gradient_tile);
            bool whole = !MASKED && at + WALK <= queries && first + ROWS <= keys && (!CAUSAL || first + ROWS <= at + 1);
#pragma unroll
            for (int i = 0; i < WALK / 2; i++) {
                u32 column = i / 4 * 8 + lane % 4 * 2 + i % 2;
                float weight = exp2f(fmaf(weights[i / 4][i % 4], rate, -bases[column]));
                if (!whole) {
                    i32 query = at + column, key = row + i % 4 / 2 * 8;
                    bool sees = key < keys && (!CAUSAL || key <= query) && query < queries;
                    if (!sees || !SEES(query, key)) weight = 0.0f;
                }
                weights[i / 4][i % 4] = weight;
                dscores[i / 4][i % 4] = weight * (dscores[i / 4][i % 4] - parts[column]);
            }
            add_weighted(value_sums, weights, gradient_tile);
            add_weighted(key_sums, dscores, query_tile);
        }
    }
    float one[2] = {1.0f, 1.0f}, factor[2] = {scale, scale};
    store_rows(dv + key_start, key_stride, own, keys, value_sums, one);
    store_rows(dk + key_start, key_stride, own, keys, key_sums, factor);
}
