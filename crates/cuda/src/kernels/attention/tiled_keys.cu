// The gradients of ROWS keys and values of a key head, along the queries of its heads, WALK at a time. Rows of scores are keys here.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) kernel(
    const T *q, const T *k, const T *v, const T *dy, const float *logsumexp, const float *shared, T *dk, T *dv, const u8 *mask, float scale,
    i64 all_queries, i64 all_keys, i64 heads, i64 key_heads, i64 mask_example, i64 mask_head, i64 mask_query
) {
    __shared__ uint4 query_vectors[2 * TILE_VECTORS], gradient_vectors[2 * TILE_VECTORS];
    __shared__ float all_bases[2 * WALK], all_parts[2 * WALK];
    Tile query_tiles = tile_of(query_vectors), gradient_tiles = tile_of(gradient_vectors);
    i32 queries = (i32)all_queries, keys = (i32)all_keys;
    u32 lane = threadIdx.x % 32, tiles = (u32)((keys + ROWS - 1) / ROWS), pair = blockIdx.x / tiles;
    i32 first = blockIdx.x % tiles * ROWS, own = first + threadIdx.x / 32 * 16 * TILES, row = own + lane / 4;
    u32 key_head = pair % (u32)key_heads, group = (u32)heads / (u32)key_heads;
    i64 example = pair / (u32)key_heads, stride = heads * WIDTH, key_stride = key_heads * WIDTH;
    i64 key_start = example * keys * key_stride + key_head * WIDTH;
    // Tiles of queries follow each other through all heads of the group, those that see none of the keys left out.
    i32 begin = CAUSAL ? first : 0, next = begin, last = WINDOW && first + ROWS - 1 + WINDOW < queries ? first + ROWS - 1 + WINDOW : queries;
    u32 next_head = key_head * group, end = begin < queries ? next_head + group : 0;
    auto load = [&](u32 stage) {
        i64 start = (example * queries + next) * stride + next_head * WIDTH;
        load_tile(place(query_tiles, stage * TILE_ELEMENTS), q + start, (i32)stride, queries - next);
        load_tile(place(gradient_tiles, stage * TILE_ELEMENTS), dy + start, (i32)stride, queries - next);
        if (threadIdx.x < WALK) {
            i32 query = next + threadIdx.x;
            i64 at = (example * queries + query) * heads + next_head;
            all_bases[stage * WALK + threadIdx.x] = base_of(query < queries ? logsumexp[at] : 0.0f);
            all_parts[stage * WALK + threadIdx.x] = query < queries ? shared[at] : 0.0f;
        }
    };
    if (next_head < end) load(0);
    u32 factors[TILES][STEPS][4], values[TILES][STEPS][4];
    load_factors(factors, k + key_start, key_stride, own, keys);
    load_factors(values, v + key_start, key_stride, own, keys);
    float key_sums[TILES][COLUMNS][4] = {}, value_sums[TILES][COLUMNS][4] = {}, rate = scale * LOG2_E;
    u32 stage = 0;
    while (next_head < end) {
        Tile query_tile = place(query_tiles, stage * TILE_ELEMENTS), gradient_tile = place(gradient_tiles, stage * TILE_ELEMENTS);
        const float *bases = all_bases + stage * WALK, *parts = all_parts + stage * WALK;
        const u8 *allowed = mask + example * mask_example + next_head * mask_head;
        i32 at = next;
        next += WALK;
        if (next >= last) {
            next = begin;
            next_head++;
        }
        finish_copies();
        __syncthreads();
        stage ^= 1;
        if (next_head < end) load(stage);
        if (WARP_ALONE(CAUSAL && at + WALK <= own)) continue;
        float scores[TILES][WALK / 8][4], dweights[TILES][WALK / 8][4];
        score(scores, factors, query_tile);
        score(dweights, values, gradient_tile);
        if (MASKED || at + WALK > queries || own + 16 * TILES > keys || (CAUSAL && own + 16 * TILES > at + 1)) {
            BRANCH;
#pragma unroll
            for (int i = 0; i < TILES * WALK / 2; i++) {
                int t = i / (WALK / 2), n = i % (WALK / 2) / 4;
                i32 query = at + n * 8 + lane % 4 * 2 + i % 2, key = row + t * 16 + i % 4 / 2 * 8;
                bool sees = key < keys && (!CAUSAL || key <= query) && query < queries;
                if (!sees || !SEES(query, key)) scores[t][n][i % 4] = -INF;
            }
        }
        u32 weights[TILES][WALK / 8][2], dscores[TILES][WALK / 8][2];
#pragma unroll
        for (int i = 0; i < TILES * WALK / 4; i++) {
            int t = i / (WALK / 4), n = i % (WALK / 4) / 2, r = i % 2;
            float left[2], right[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                u32 column = n * 8 + lane % 4 * 2 + j;
                left[j] = power_of_two(fmaf(scores[t][n][2 * r + j], rate, -bases[column]));
                right[j] = left[j] * (dweights[t][n][2 * r + j] - parts[column]);
            }
            weights[t][n][r] = pack(left[0], left[1]);
            dscores[t][n][r] = pack(right[0], right[1]);
        }
        add_weighted(value_sums, weights, gradient_tile);
        add_weighted(key_sums, dscores, query_tile);
    }
    float one[TILES][2], factor[TILES][2];
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        one[i / 2][i % 2] = 1.0f;
        factor[i / 2][i % 2] = scale;
    }
    store_rows(dv + key_start, key_stride, own, keys, value_sums, one);
    store_rows(dk + key_start, key_stride, own, keys, key_sums, factor);
}
