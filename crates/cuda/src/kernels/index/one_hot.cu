// One at the place that an index names, zero at the others: a thread for each element of the result.
extern "C" __global__ void kernel(const i32 *indices, T *y, u64 *fault, i64 one, i64 classes, i64 count) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const i64 places = classes > 0 ? classes : 1;
    if (i >= count * places) return;
    const i64 position = i / places, place = i % places;
    const i32 index = indices[position];
    if (place == 0 && (index < 0 || index >= classes)) fail(fault, position, index);
    if (classes > 0) y[i] = index == place ? (T)one : (T)0;
}
