// Rows of a table, a thread for each unit of a row.
extern "C" __global__ void kernel(const T *table, const i32 *indices, T *y, u64 *fault, i64 rows, i64 units, i64 count) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const i64 per_row = units > 0 ? units : 1;
    if (i >= count * per_row) return;
    const i64 position = i / per_row, unit = i % per_row;
    const i32 index = indices[position];
    if (index < 0 || index >= rows) {
        if (unit == 0) fail(fault, position, index);
    } else if (units > 0) {
        y[i] = table[index * units + unit];
    }
}
