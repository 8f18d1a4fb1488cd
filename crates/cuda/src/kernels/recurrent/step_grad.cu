// The gradient at a position: of the gates before their activations, and of the cells before the position. A thread computes a
// unit of an example.
extern "C" __global__ void kernel(const float *before, const float *cells, const float *gates, const float *dy,
                                  const float *dcells, const float *dstate, const float *dcell, float *dx, float *dbefore,
                                  i64 total, i64 units, i64 positions, i64 position, i64 before_stride) {
    i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    i64 example = index / units, unit = index % units;
    i64 here = (example * positions + position) * units + unit, wide = 4 * (here - unit) + unit;
    float input = gates[wide], forget = gates[wide + units], fresh = gates[wide + 2 * units], output = gates[wide + 3 * units];
    float squashed = tanhf(cells[here]), dh = dy[here], dc = 0.0f;
#if !LAST
    dh += dstate[index];
    dc = dcell[index];
#endif
    dc += dh * output * (1.0f - squashed * squashed);
#if CELLS
    dc += dcells[here];
#endif
    dx[wide] = dc * fresh * (input * (1.0f - input));
    dx[wide + units] = dc * before[example * before_stride + unit] * (forget * (1.0f - forget));
    dx[wide + 2 * units] = dc * input * (1.0f - fresh * fresh);
    dx[wide + 3 * units] = dh * squashed * (output * (1.0f - output));
    dbefore[index] = dc * forget;
}
