// The log-sum-exp of each row of logits, and the row's part in the loss.
extern "C" __global__ void __launch_bounds__(256) kernel(
    const float *logits, const i32 *labels, const float *weights, float *lse, float *loss, u64 *fault, i64 rows, i64 classes
) {
    const i64 row = (i64)blockIdx.x * (256 / LANES) + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    const float *from = logits + row * classes;
    const float sum = log_sum_exp(from, classes, lane, row < rows);
    if (row >= rows || lane > 0) return;
    lse[row] = sum;
    const i32 label = labels[row];
    if (label < 0 || label >= classes) fail(fault, row, label);
    else loss[row] = weights[row] * (sum - from[label]);
}
