// Cosine and sine of the angle of every position and pair of elements. Angles are turns here: exact enough for positions beyond
// any sequence, and without a slow path for large ones.
extern "C" __global__ void kernel(float *table, i64 total, i64 pairs, i64 start) {
    i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    const double pi = 3.14159265358979323846;
    double rate = exp(-(double)(index % pairs) / (double)pairs * LOG_BASE);
    double turns = (double)(start + index / pairs) * rate / (2.0 * pi);
    turns -= rint(turns);
    double quarters = rint(4.0 * turns), x = 2.0 * pi * (turns - 0.25 * quarters), square = x * x;
    // Taylor's series up to an eighth of a turn.
    double sine = 1.0, cosine = 1.0;
    for (int n = 14; n > 0; n -= 2) {
        sine = 1.0 - sine * square / (double)(n * (n + 1));
        cosine = 1.0 - cosine * square / (double)(n * (n - 1));
    }
    sine *= x;
    int quarter = (int)quarters & 3;
    double c = quarter == 0 ? cosine : quarter == 1 ? -sine : quarter == 2 ? -cosine : sine;
    double s = quarter == 0 ? sine : quarter == 1 ? cosine : quarter == 2 ? -sine : -cosine;
    table[2 * index] = (float)c;
    table[2 * index + 1] = (float)(INVERSE ? -s : s);
}
