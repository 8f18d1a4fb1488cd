// Attention of 64 queries of a head: the softmax goes along with the keys, WALK at a time.
extern "C" __global__ void __launch_bounds__(128, 2) kernel(const T *q, const T *k, const T *v, T *y, float *logsumexp, const u8 *mask,
                                                         float scale, i64 all_queries, i64 all_keys, i64 heads, i64 key_heads,
                                                         i64 mask_example, i64 mask_head, i64 mask_query) {
    __shared__ uint4 key_vectors[TILE_VECTORS], value_vectors[TILE_VECTORS];
    u16 *key_tile = (u16 *)key_vectors, *value_tile = (u16 *)value_vectors;
    i32 queries = (i32)all_queries, keys = (i32)all_keys;
    u32 lane = threadIdx.x % 32, tiles = (u32)((queries + ROWS - 1) / ROWS), pair = blockIdx.x / tiles;
    // Of causal attention, the tiles with most keys come first.
    i32 first = (tiles - 1 - blockIdx.x % tiles) * ROWS, own = first + threadIdx.x / 32 * 16, row = own + lane / 4;
    u32 head = pair % (u32)heads, key_head = head / ((u32)heads / (u32)key_heads);
    i64 example = pair / (u32)heads, stride = heads * WIDTH, key_stride = key_heads * WIDTH;
    i64 start = example * queries * stride + head * WIDTH, key_start = example * keys * key_stride + key_head * WIDTH;
    const u8 *allowed = mask + example * mask_example + head * mask_head;
    u32 factors[STEPS][4];
    load_factors(factors, q + start, stride, own, queries);
    float sums[COLUMNS][4] = {}, largest[2] = {-INF, -INF}, total[2] = {}, rate = scale * LOG2_E;
    i32 end = CAUSAL && first + ROWS < keys ? first + ROWS : keys;
    for (i32 at = 0; at < end; at += WALK) {
        __syncthreads();
        load_tile(key_tile, k + key_start, key_stride, at, keys);
        load_tile(value_tile, v + key_start, key_stride, at, keys);
        __syncthreads();
        float scores[WALK / 8][4];
        score(scores, factors, key_tile);
        if (MASKED || at + WALK > keys || (CAUSAL && at + WALK > first + 1)) {
#pragma unroll
            for (int i = 0; i < WALK / 2; i++) {
                i32 query = row + i % 4 / 2 * 8, key = at + i / 4 * 8 + lane % 4 * 2 + i % 2;
                bool sees = key < keys && (!CAUSAL || key <= query) && query < queries;
                if (!sees || !SEES(query, key)) scores[i / 4][i % 4] = -INF;
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float most = largest[i];
#pragma unroll
            for (int n = 0; n < WALK / 8; n++) most = Larger::of(Larger::of(most, scores[n][2 * i]), scores[n][2 * i + 1]);
            most = combine_row<Larger>(most);
            float base = most == -INF ? 0.0f : most * rate, kept = exp2f(largest[i] * rate - base), sum = 0.0f;
            largest[i] = most;
#pragma unroll
            for (int n = 0; n < WALK / 8; n++) {
#pragma unroll
                for (int j = 2 * i; j < 2 * i + 2; j++) {
                    scores[n][j] = exp2f(fmaf(scores[n][j], rate, -base));
                    sum += scores[n][j];
                }
            }
            total[i] = total[i] * kept + sum;
#pragma unroll
            for (int n = 0; n < COLUMNS; n++) {
                sums[n][2 * i] *= kept;
                sums[n][2 * i + 1] *= kept;
            }
        }
        add_weighted(sums, scores, value_tile);
    }
    float inverse[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        total[i] = combine_row<Add>(total[i]);
        inverse[i] = largest[i] == -INF ? 0.0f : 1.0f / total[i];
        i32 query = row + i * 8;
        if (query < queries && lane % 4 == 0) {
            logsumexp[(example * queries + query) * heads + head] = largest[i] * scale + logf(total[i]);
        }
    }
    store_rows(y + start, stride, own, queries, sums, inverse);
}
