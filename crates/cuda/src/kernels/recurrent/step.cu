// A position of a long short-term memory, once its product of state and kernel is there: a thread computes a unit of an example.
__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

extern "C" __global__ void kernel(const float *x, const float *product, const float *before, float *y, float *cells,
                                  float *gates, i64 total, i64 units, i64 positions, i64 position, i64 before_stride) {
    i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    i64 example = index / units, unit = index % units;
    i64 here = (example * positions + position) * units + unit, wide = 4 * (here - unit) + unit;
    const float *from = product + example * 4 * units + unit;
    float gate[4];
#pragma unroll
    for (int g = 0; g < 4; g++) {
        float sum = x[wide + g * units] + from[g * units];
        gate[g] = g == 2 ? tanhf(sum) : sigmoid(sum);
        gates[wide + g * units] = gate[g];
    }
    float cell = gate[1] * before[example * before_stride + unit] + gate[0] * gate[2];
    cells[here] = cell;
    y[here] = gate[3] * tanhf(cell);
}
