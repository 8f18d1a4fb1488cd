// ln of the sum of the exponentials of a row, from LANES threads: shifted by the largest element, so that nothing overflows;
// minus infinity of nothing. A row that is not inside counts as empty.
__device__ inline float log_sum_exp(const float *row, i64 width, int lane, bool inside) {
    float largest = -INF;
    if (inside)
        for (i64 i = lane; i < width; i += LANES) largest = Larger::of(largest, row[i]);
    largest = group_reduce<Larger, LANES>(largest);
    float sum = 0;
    if (inside)
        for (i64 i = lane; i < width; i += LANES) sum += expf(row[i] - largest);
    sum = group_reduce<Add, LANES>(sum);
    return fabsf(largest) == INF ? largest : largest + logf(sum);
}
