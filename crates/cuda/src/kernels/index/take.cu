// Elements of each row of [rows, extent] that indices name, a thread for each.
extern "C" __global__ void kernel(const T *x, const i32 *indices, T *y, u64 *fault, i64 extent, i64 per_row, i64 count) {
    const i64 position = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (position >= count) return;
    const i32 index = indices[position];
    if (index < 0 || index >= extent) fail(fault, position, index);
    else y[position] = x[position / per_row * extent + index];
}
