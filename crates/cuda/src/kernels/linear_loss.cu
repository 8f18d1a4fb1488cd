// A block for each row of logits: the logarithm of its sum of exponentials, its weighted loss, and in place of the logits their
// gradients; zeros in the padding.
extern "C" __global__ void kernel(T *logits, const i32 *labels, const float *weights, const float *sum_in,
                                  const float *gradient_of_loss, float *sum_out, float *part, u64 *fault, i64 classes,
                                  i64 padded, i64 first_row) {
    i64 row = blockIdx.x;
    T *x = logits + row * padded;
    i32 label = labels[row];
    if (label < 0 || label >= classes) {
        if (threadIdx.x == 0) fail(fault, first_row + row, label);
        label = 0;
    }
#if SUM_IN
    float logsumexp = sum_in[row];
#else
    float largest = -INF;
    for (i64 c = threadIdx.x; c < classes; c += blockDim.x) largest = Larger::of(largest, widen(x[c]));
    largest = block_reduce<Larger>(largest);
    float sum = 0;
    // An infinite shift would make NaN of what is infinite.
    float shift = largest == INF || largest == -INF ? 0 : largest;
    for (i64 c = threadIdx.x; c < classes; c += blockDim.x) sum = sum + expf(widen(x[c]) - shift);
    sum = block_sum(sum);
    float logsumexp = largest == INF || largest == -INF ? largest : largest + logf(sum);
#endif
    if (threadIdx.x == 0) {
#if SUM_OUT
        sum_out[row] = logsumexp;
#endif
#if LOSS
        part[row] = weights[row] * (logsumexp - widen(x[label]));
#endif
    }
#if GRADIENT
    float scale = weights[row] * gradient_of_loss[0];
    // The label's logit is read before any is overwritten.
    __syncthreads();
    for (i64 c = threadIdx.x; c < padded; c += blockDim.x) {
        float softmax = c < classes ? expf(widen(x[c]) - logsumexp) : 0.0f;
        x[c] = narrow<T>((softmax - (c == label ? 1.0f : 0.0f)) * scale);
    }
#endif
}
