// A block turns a query's scores into weights: a softmax over the keys that the query sees, zero for the others. Weights may be in
// the place of the scores.
extern "C" __global__ void kernel(const float *scores, T *weights, float *logsumexp, const u8 *mask, float scale, i64 rows,
                                  i64 keys, i64 stride, i64 first_query, i64 queries, i64 heads, i64 first_head, i64 all_heads,
                                  i64 first_example, i64 mask_example, i64 mask_head, i64 mask_query) {
    i64 query = first_query + blockIdx.x % (u32)rows, pair = blockIdx.x / (u32)rows;
    i64 head = first_head + pair % heads, example = first_example + pair / heads;
    const u8 *allowed = mask + example * mask_example + head * mask_head + query * mask_query;
    i64 end = CAUSAL && query + 1 < keys ? query + 1 : keys, row = blockIdx.x * stride;
    float largest = -INF;
    for (i64 k = threadIdx.x; k < end; k += blockDim.x) {
        if (SEES(k)) largest = Larger::of(largest, scores[row + k] * scale);
    }
    largest = block_reduce<Larger>(largest);
    float base = largest == -INF ? 0.0f : largest, sum = 0.0f;
    for (i64 k = threadIdx.x; k < end; k += blockDim.x) {
        if (SEES(k)) sum += expf(scores[row + k] * scale - base);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) logsumexp[(example * queries + query) * all_heads + head] = largest + logf(sum);
    for (i64 k = threadIdx.x; k < keys; k += blockDim.x) {
        bool sees = k < end && SEES(k) && largest != -INF;
        weights[row + k] = narrow<T>(sees ? expf(scores[row + k] * scale - base) / sum : 0.0f);
    }
}
