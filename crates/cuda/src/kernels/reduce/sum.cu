// Sums over the batch: added to what the result holds (ACCUMULATE), or to zero.
__device__ inline void add(void *y, i64 i, W s) { ((Y *)y)[i] = narrow<Y>(widen(((Y *)y)[i]) + s); }
__device__ inline void finish(void *y, i64 i, W s, i64 reduce) {
    ((Y *)y)[i] = narrow<Y>((ACCUMULATE ? widen(((Y *)y)[i]) : (W)0) + s);
}
