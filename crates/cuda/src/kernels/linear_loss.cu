// A block for each row of logits: the logarithm of its sum of exponentials, its weighted loss, and in place of the logits their
// gradients, with zeros in the padding.
#define LOG2_E 1.44269504088896340736f
const int V = 16 / sizeof(T);

// e to the power of x - shift.
__device__ inline float exponential(float x, float shift) {
#if LOW
    float power = fmaf(x, LOG2_E, -shift * LOG2_E);
#ifdef __CUDACC_RTC__
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(power));
    return power;
#else
    return exp2f(power);
#endif
#else
    return expf(x - shift);
#endif
}

// What exponents are shifted by: an infinite shift would make NaN of what is infinite.
__device__ inline float shift_of(float largest) { return largest == INF || largest == -INF ? 0 : largest; }

extern "C" __global__ void __launch_bounds__(THREADS) kernel(
    T *logits, const i32 *labels, const float *weights, const float *sum_in, const float *gradient_of_loss, float *sum_out, float *part,
    u64 *fault, i64 classes, i64 padded, i64 first_row
) {
    i64 row = blockIdx.x;
    T *x = logits + row * padded;
    i32 label = labels[row], end = (i32)classes;
    if (label < 0 || label >= end) {
        if (threadIdx.x == 0) fail(fault, first_row + row, label);
        label = 0;
    }
#if SUM_IN
    float logsumexp = sum_in[row];
#else
    float largest = -INF, sum = 0;
#pragma unroll 4
    for (i32 c = threadIdx.x * V; c < end; c += THREADS * V) {
        Words<T, V> words = *(const Words<T, V> *)(x + c);
        float wide[V], most = largest;
#pragma unroll
        for (int j = 0; j < V; j++) {
            wide[j] = c + j < end ? (float)widen(words.x[j]) : -INF;
            most = Larger::of(most, wide[j]);
        }
        float shift = shift_of(most), own = 0;
#pragma unroll
        for (int j = 0; j < V; j++) own = own + exponential(wide[j], shift);
        sum = fmaf(sum, exponential(largest, shift), own);
        largest = most;
    }
    float all = block_reduce<Larger>(largest);
    sum = block_sum(sum * exponential(largest, shift_of(all)));
    float logsumexp = all == INF || all == -INF ? all : all + logf(sum);
#endif
    if (threadIdx.x == 0) {
#if SUM_OUT
        sum_out[row] = logsumexp;
#endif
#if LOSS
        part[row] = weights[row] * (logsumexp - (float)widen(x[label]));
#endif
    }
#if GRADIENT
    float scale = weights[row] * gradient_of_loss[0];
    // The label's logit is read before any is overwritten.
    __syncthreads();
#pragma unroll 4
    for (i32 c = threadIdx.x * V; c < (i32)padded; c += THREADS * V) {
        Words<T, V> words = *(const Words<T, V> *)(x + c);
#pragma unroll
        for (int j = 0; j < V; j++) {
            float softmax = c + j < end ? exponential((float)widen(words.x[j]), logsumexp) : 0.0f;
            words.x[j] = narrow<T>((softmax - (c + j == label ? 1.0f : 0.0f)) * scale);
        }
        *(Words<T, V> *)(x + c) = words;
    }
#endif
}
