// (softmax - onehot) * weight * dloss, a thread for each logit.
extern "C" __global__ void kernel(
    const float *logits, const i32 *labels, const float *weights, const float *lse, const float *dloss, float *dlogits,
    u64 *fault, i64 rows, i64 classes
) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * classes) return;
    const i64 row = i / classes;
    const i32 label = labels[row];
    if ((label < 0 || label >= classes) && i % classes == 0) fail(fault, row, label);
    const float onehot = i % classes == label ? 1.0f : 0.0f;
    dlogits[i] = (expf(logits[i] - lse[row]) - onehot) * weights[row] * dloss[0];
}
