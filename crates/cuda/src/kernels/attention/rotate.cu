// Rotates the pairs of elements (i, i + width / 2) of every head; the result may be in the place of x.
extern "C" __global__ void kernel(const T *x, const float *table, T *y, i64 total, i64 positions, i64 heads, i64 pairs) {
    INDEX index = (INDEX)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    INDEX pair = index % (INDEX)pairs, head = index / (INDEX)pairs;
    i64 position = head / (INDEX)heads % (INDEX)positions;
    i64 first = (i64)head * 2 * pairs + pair, second = first + pairs;
    const float *angle = table + 2 * (position * pairs + pair);
    float a = widen(x[first]), b = widen(x[second]);
    y[first] = narrow<T>(a * angle[0] - b * angle[1]);
    y[second] = narrow<T>(b * angle[0] + a * angle[1]);
}
