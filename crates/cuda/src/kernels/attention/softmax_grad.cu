// A block turns a query's scores into weights once more, and the gradients of its weights into those of its scores. Results may be
// in the place of the scores and of the weights' gradients.
extern "C" __global__ void kernel(const float *scores, const float *dweights, T *weights, T *dscores, const T *y, const T *dy,
                                  const float *logsumexp, const u8 *mask, float scale, i64 rows, i64 keys, i64 stride,
                                  i64 first_query, i64 queries, i64 heads, i64 first_head, i64 all_heads, i64 first_example,
                                  i64 mask_example, i64 mask_head, i64 mask_query, i64 width) {
    i64 query = first_query + blockIdx.x % (u32)rows, pair = blockIdx.x / (u32)rows;
    i64 head = first_head + pair % heads, example = first_example + pair / heads;
    const u8 *allowed = mask + example * mask_example + head * mask_head + query * mask_query;
    i64 end = CAUSAL && query + 1 < keys ? query + 1 : keys, row = blockIdx.x * stride;
    i64 place = (example * queries + query) * all_heads + head;
    // What all keys share of the softmax's gradient.
    float shared = 0.0f;
    for (i64 c = threadIdx.x; c < width; c += blockDim.x) {
        shared = fmaf(widen(dy[place * width + c]), widen(y[place * width + c]), shared);
    }
    shared = block_sum(shared);
    float sum = logsumexp[place];
    for (i64 k = threadIdx.x; k < keys; k += blockDim.x) {
        float weight = 0.0f, dscore = 0.0f;
        if (k < end && SEES(k)) {
            weight = expf(scores[row + k] * scale - sum);
            dscore = weight * (dweights[row + k] - shared) * scale;
        }
        weights[row + k] = narrow<T>(weight);
        dscores[row + k] = narrow<T>(dscore);
    }
}
