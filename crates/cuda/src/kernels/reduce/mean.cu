// Means over all rows. There is one block.
__device__ inline void add(void *y, i64 i, W s) {}
__device__ inline void finish(void *y, i64 i, W s, i64 reduce) { ((Y *)y)[i] = s / (W)reduce; }
