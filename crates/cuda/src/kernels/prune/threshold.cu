#define COUNTERS 2048

// The magnitude of a weight as an integer: in the order of magnitudes, with NaN above infinity.
__device__ inline u32 magnitude(float weight) { return __float_as_uint(weight) & 0x7fffffffu; }

// Three digits of a magnitude, the highest first: 11, 10 and 10 bits.
__device__ inline int low_bit(int digit) { return 20 - 10 * digit; }
__device__ inline u32 largest(int digit) { return digit == 0 ? 2047 : 1023; }

// Whether the old mask stays.
__device__ inline bool keeps_mask(float sparsity) { return !(sparsity >= 0); }

// How many weights are kept: at least one, rounded half to even.
__device__ inline u32 kept_at(i64 n, float sparsity) {
    const float kept = rintf((float)n * (1.0f - sparsity));
    return kept < 1 ? 1 : kept < (float)n ? (u32)kept : (u32)n;
}

// The threshold's digits before one, found from their counters: of the magnitudes that begin with `known`, `left` are kept. Every
// block finds them by itself. All threads of a block call it.
__device__ inline void find_digits(const u32 *counters, int digits, u32 &known, u32 &left) {
    __shared__ u32 sums[256], found[2];
    for (int digit = 0; digit < digits; digit++) {
        // A thread adds eight counters, the first one those of the largest values.
        const u32 *counts = counters + digit * COUNTERS;
        u32 sum = 0;
        for (u32 i = 0; i < 8; i++) sum += counts[COUNTERS - 1 - 8 * threadIdx.x - i];
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 group = 0;
            while (group < 255 && sums[group] < left) left -= sums[group++];
            u32 value = COUNTERS - 1 - 8 * group;
            while (value > 0 && counts[value] < left) left -= counts[value--];
            found[0] = value;
            found[1] = left;
        }
        __syncthreads();
        known |= found[0] << low_bit(digit);
        left = found[1];
        __syncthreads();
    }
}

