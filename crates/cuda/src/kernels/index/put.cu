// Adds the elements of each row to those of [rows, extent] that indices name, in order: a thread for each element of the result.
extern "C" __global__ void kernel(const i32 *indices, const X *dy, X *y, u64 *fault, i64 rows, i64 per_row, i64 extent) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const i64 places = extent > 0 ? extent : 1;
    if (i >= rows * places) return;
    const i64 row = i / places, place = i % places;
    X sum = 0;
    for (i64 j = row * per_row; j < (row + 1) * per_row; j++) {
        const i32 index = indices[j];
        if (place == 0 && (index < 0 || index >= extent)) fail(fault, j, index);
        if (index == place) sum += dy[j];
    }
    if (extent > 0) y[i] = sum;
}
