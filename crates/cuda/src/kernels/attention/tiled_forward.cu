// Attention of ROWS queries of a head: the softmax goes along with the keys, WALK at a time.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) kernel(
    const T *q, const T *k, const T *v, T *y, float *logsumexp, const u8 *mask, float scale, i64 all_queries, i64 all_keys, i64 heads,
    i64 key_heads, i64 mask_example, i64 mask_head, i64 mask_query
) {
    __shared__ uint4 key_vectors[2 * TILE_VECTORS], value_vectors[2 * TILE_VECTORS];
    Tile key_tiles = tile_of(key_vectors), value_tiles = tile_of(value_vectors);
    i32 queries = (i32)all_queries, keys = (i32)all_keys;
    u32 lane = threadIdx.x % 32, tiles = (u32)((queries + ROWS - 1) / ROWS), pair = blockIdx.x / tiles;
    // Of causal attention, the tiles with most keys come first.
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
    u32 factors[TILES][STEPS][4];
    load_factors(factors, q + start, stride, own, queries);
    float sums[TILES][COLUMNS][4] = {}, largest[TILES][2], total[TILES][2] = {}, rate = scale * LOG2_E;
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) largest[i / 2][i % 2] = -INF;
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
        float scores[TILES][WALK / 8][4];
        u32 weights[TILES][WALK / 8][2];
        score(scores, factors, key_tile);
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
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) {
            int t = i / 2, r = i % 2;
            float most = largest[t][r];
#pragma unroll
            for (int n = 0; n < WALK / 8; n++) most = fmaxf(fmaxf(most, scores[t][n][2 * r]), scores[t][n][2 * r + 1]);
            most = combine_row<Most>(most);
            float base = most == -INF ? 0.0f : most * rate, kept = power_of_two(fmaf(largest[t][r], rate, -base)), sum = 0.0f;
            largest[t][r] = most;
#pragma unroll
            for (int n = 0; n < WALK / 8; n++) {
                const float *two = scores[t][n] + 2 * r;
                float left = power_of_two(fmaf(two[0], rate, -base)), right = power_of_two(fmaf(two[1], rate, -base));
                sum += left + right;
                weights[t][n][r] = pack(left, right);
            }
            total[t][r] = fmaf(total[t][r], kept, sum);
#pragma unroll
            for (int n = 0; n < COLUMNS; n++) {
                sums[t][n][2 * r] *= kept;
                sums[t][n][2 * r + 1] *= kept;
            }
        }
        add_weighted(sums, weights, value_tile);
    }
    float inverse[TILES][2];
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        float sum = combine_row<Add>(total[i / 2][i % 2]), most = largest[i / 2][i % 2];
        inverse[i / 2][i % 2] = most == -INF ? 0.0f : 1.0f / sum;
        i32 query = row + i / 2 * 16 + i % 2 * 8;
        if (query < queries && lane % 4 == 0) logsumexp[(example * queries + query) * heads + head] = most * scale + logf(sum);
    }
    store_rows(y + start, stride, own, queries, sums, inverse);
}
