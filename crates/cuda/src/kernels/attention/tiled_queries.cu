// The gradient of ROWS queries of a head, along the keys, WALK at a time; and what all keys share of the gradient of each query's softmax.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) kernel(
    const T *q, const T *k, const T *v, const T *y, const float *logsumexp, const T *dy, float *shared, T *dq, const u8 *mask, float scale,
    i64 all_queries, i64 all_keys, i64 heads, i64 key_heads, i64 mask_example, i64 mask_head, i64 mask_query
) {
    __shared__ uint4 key_vectors[2 * TILE_VECTORS], value_vectors[2 * TILE_VECTORS];
    Tile key_tiles = tile_of(key_vectors), value_tiles = tile_of(value_vectors);
    i32 queries = (i32)all_queries, keys = (i32)all_keys;
    u32 lane = threadIdx.x % 32, tiles = (u32)((queries + ROWS - 1) / ROWS), pair = blockIdx.x / tiles;
    i32 first = (tiles - 1 - blockIdx.x % tiles) * ROWS, own = first + threadIdx.x / 32 * 16 * TILES, row = own + lane / 4;
    u32 head = pair % (u32)heads, key_head = head / ((u32)heads / (u32)key_heads);
    i64 example = pair / (u32)heads, stride = heads * WIDTH, key_stride = key_heads * WIDTH;
    i64 start = example * queries * stride + head * WIDTH, key_start = example * keys * key_stride + key_head * WIDTH;
    const u8 *allowed = mask + example * mask_example + head * mask_head;
    const T *next_keys = k + key_start, *next_values = v + key_start;
    i32 begin = WINDOW && first >= WINDOW ? (first - WINDOW + 1) / WALK * WALK : 0;
    next_keys += begin * key_stride;
    next_values += begin * key_stride;
    load_tile(key_tiles, next_keys, (i32)key_stride, keys - begin);
    load_tile(value_tiles, next_values, (i32)key_stride, keys - begin);
    u32 factors[TILES][STEPS][4], gradients[TILES][STEPS][4];
    // The results first, where the queries will be.
    load_factors(factors, y + start, stride, own, queries);
    load_factors(gradients, dy + start, stride, own, queries);
    float base[TILES][2], part[TILES][2], sums[TILES][COLUMNS][4] = {}, rate = scale * LOG2_E;
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        int t = i / 2, r = i % 2;
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 2 * STEPS; j++) {
            u32 a = factors[t][j / 2][r + j % 2 * 2], b = gradients[t][j / 2][r + j % 2 * 2];
#pragma unroll
            for (int shift = 0; shift < 32; shift += 16) {
                T left, right;
                left.bits = (u16)(a >> shift);
                right.bits = (u16)(b >> shift);
                sum = fmaf(widen(left), widen(right), sum);
            }
        }
        part[t][r] = combine_row<Add>(sum);
        i32 query = row + t * 16 + r * 8;
        i64 place = (example * queries + query) * heads + head;
        base[t][r] = base_of(query < queries ? logsumexp[place] : 0.0f);
        if (query < queries && lane % 4 == 0) shared[place] = part[t][r];
    }
    load_factors(factors, q + start, stride, own, queries);
    i32 end = CAUSAL && first + ROWS < keys ? first + ROWS : keys;
    u32 stage = 0;
    for (i32 at = begin; at < end; at += WALK) {
        Tile key_tile = place(key_tiles, stage * TILE_ELEMENTS), value_tile = place(value_tiles, stage * TILE_ELEMENTS);
        finish_copies();
        __syncthreads();
        stage ^= 1;
        if (at + WALK < end) {
            next_keys += WALK * key_stride;
            next_values += WALK * key_stride;
            load_tile(place(key_tiles, stage * TILE_ELEMENTS), next_keys, (i32)key_stride, keys - at - WALK);
            load_tile(place(value_tiles, stage * TILE_ELEMENTS), next_values, (i32)key_stride, keys - at - WALK);
        }
        if (WARP_ALONE(CAUSAL && at >= own + 16 * TILES)) continue;
        float scores[TILES][WALK / 8][4], dweights[TILES][WALK / 8][4];
        score(scores, factors, key_tile);
        score(dweights, gradients, value_tile);
        if (MASKED || at + WALK > keys || (CAUSAL && at + WALK > own + 1)) {
            BRANCH;
#pragma unroll
            for (int i = 0; i < TILES * WALK / 2; i++) {
                int t = i / (WALK / 2), n = i % (WALK / 2) / 4;
                i32 query = row + t * 16 + i % 4 / 2 * 8, key = at + n * 8 + lane % 4 * 2 + i % 2;
                bool sees = key < keys && (!CAUSAL || key <= query) && query < queries;
                if (!sees || !SEES(query, key)) scores[t][n][i % 4] = -INF;
            }
        }
        u32 dscores[TILES][WALK / 8][2];
#pragma unroll
        for (int i = 0; i < TILES * WALK / 4; i++) {
            int t = i / (WALK / 4), n = i % (WALK / 4) / 2, r = i % 2;
            float two[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float weight = power_of_two(fmaf(scores[t][n][2 * r + j], rate, -base[t][r]));
                two[j] = weight * (dweights[t][n][2 * r + j] - part[t][r]);
            }
            dscores[t][n][r] = pack(two[0], two[1]);
        }
        add_weighted(sums, dscores, key_tile);
    }
    float factor[TILES][2];
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) factor[i / 2][i % 2] = scale;
    store_rows(dq + start, stride, own, queries, sums, factor);
}
