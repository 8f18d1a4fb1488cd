// Products of small tiles by tensor cores. A warp computes 16 rows; a lane has the elements of rows `row` and `row + 8`, pairs of
// columns from `2 * pair` on, where row = lane / 4 and pair = lane % 4. A block has 4 warps, so ROWS rows, and walks along WALK rows
// of another matrix at a time.
#define ROWS 64
#define STEPS (WIDTH / 16)
#define COLUMNS (WIDTH / 8)
// Elements from row to row of a tile in shared memory: so that eight rows lie in different banks.
#define STRIDE (WIDTH + 8)
#define TILE_VECTORS (WALK * STRIDE / 8)
#define LOG2_E 1.44269504088896340736f

// Two numbers as a pair of elements.
__device__ inline u32 pack(float low, float high) { return (u32)narrow<T>(low).bits | (u32)narrow<T>(high).bits << 16; }

#ifdef __CUDACC_RTC__
// sums += a * b, for a of 16 x 16 and b of 16 x 8.
__device__ inline void multiply(float sums[4], const u32 a[4], const u32 b[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." MMA "." MMA ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline u32 shared_address(const u16 *at) {
    u32 address;
    asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(address) : "l"(at));
    return address;
}

// The second factor of 16 x 8: columns are 8 rows of a tile, from an element of their first 16 on.
__device__ inline void load_rows(u32 b[2], const u16 *at) {
    u32 lane = threadIdx.x % 32, address = shared_address(at + lane % 8 * STRIDE + lane / 8 % 2 * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(b[0]), "=r"(b[1]) : "r"(address) : "memory");
}

// The second factor of 16 x 8: rows are 16 rows of a tile, from an element of their first 8 on.
__device__ inline void load_columns(u32 b[2], const u16 *at) {
    u32 address = shared_address(at + threadIdx.x % 16 * STRIDE);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(b[0]), "=r"(b[1]) : "r"(address) : "memory");
}

// Combines the numbers of the four lanes that share rows.
template <class Combine> __device__ inline float combine_row(float x) {
    x = Combine::of(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return Combine::of(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
#else
// The same where there are no warps: lanes exchange what they have, at barriers of the whole block.
inline void multiply(float sums[4], const u32 a[4], const u32 b[2]) {
    __shared__ u16 lefts[128][8], rights[128][4];
    __syncthreads();
    for (u32 i = 0; i < 8; i++) lefts[threadIdx.x][i] = (u16)(a[i / 2] >> i % 2 * 16);
    for (u32 i = 0; i < 4; i++) rights[threadIdx.x][i] = (u16)(b[i / 2] >> i % 2 * 16);
    __syncthreads();
    u32 warp = threadIdx.x / 32 * 32, lane = threadIdx.x % 32;
    for (u32 i = 0; i < 4; i++) {
        u32 row = lane / 4, column = lane % 4 * 2 + i % 2;
        for (u32 k = 0; k < 16; k++) {
            T left, right;
            left.bits = lefts[warp + row * 4 + k % 8 / 2][(i / 2 + k / 8 * 2) * 2 + k % 2];
            right.bits = rights[warp + column * 4 + k % 8 / 2][k / 8 * 2 + k % 2];
            sums[i] = fmaf(widen(left), widen(right), sums[i]);
        }
    }
}

inline void load_rows(u32 b[2], const u16 *at) {
    u32 lane = threadIdx.x % 32;
    for (u32 i = 0; i < 2; i++) {
        const u16 *from = at + lane / 4 * STRIDE + lane % 4 * 2 + i * 8;
        b[i] = (u32)from[0] | (u32)from[1] << 16;
    }
}

inline void load_columns(u32 b[2], const u16 *at) {
    u32 lane = threadIdx.x % 32;
    for (u32 i = 0; i < 2; i++) {
        const u16 *from = at + (lane % 4 * 2 + i * 8) * STRIDE + lane / 4;
        b[i] = (u32)from[0] | (u32)from[STRIDE] << 16;
    }
}

template <class Combine> inline float combine_row(float x) {
    __shared__ float all[128];
    __syncthreads();
    all[threadIdx.x] = x;
    __syncthreads();
    const float *row = all + threadIdx.x / 4 * 4;
    u32 self = threadIdx.x % 4;
    return Combine::of(Combine::of(row[self], row[self ^ 1]), Combine::of(row[self ^ 2], row[self ^ 3]));
}
#endif

// Rows of a head, from the first on, into a tile of shared memory; zeros past the end.
__device__ inline void load_tile(u16 *tile, const T *head, i64 stride, i32 first, i32 end) {
#pragma unroll
    for (u32 i = threadIdx.x; i < WALK * COLUMNS; i += 128) {
        i32 row = i / COLUMNS, column = i % COLUMNS * 8;
        uint4 elements = {};
        if (first + row < end) elements = *(const uint4 *)(head + (first + row) * stride + column);
        *(uint4 *)(tile + row * STRIDE + column) = elements;
    }
}

// The warp's 16 rows of a head as first factors; zeros past the end.
__device__ inline void load_factors(u32 factors[STEPS][4], const T *head, i64 stride, i32 first, i32 end) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        i32 row = first + lane / 4 + i % 2 * 8;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            factors[step][i] = row < end ? *(const u32 *)(head + row * stride + step * 16 + i / 2 * 8 + lane % 4 * 2) : 0;
        }
    }
}

// scores = factors * tile^T.
__device__ inline void score(float scores[WALK / 8][4], const u32 factors[STEPS][4], const u16 *tile) {
#pragma unroll
    for (int n = 0; n < WALK / 8; n++) {
        scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.0f;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            u32 b[2];
            load_rows(b, tile + n * 8 * STRIDE + step * 16);
            multiply(scores[n], factors[step], b);
        }
    }
}

// sums += weights * tile, where the weights are rounded.
__device__ inline void add_weighted(float sums[COLUMNS][4], const float weights[WALK / 8][4], const u16 *tile) {
#pragma unroll
    for (int step = 0; step < WALK / 16; step++) {
        const float *left = weights[2 * step], *right = weights[2 * step + 1];
        u32 a[4] = {pack(left[0], left[1]), pack(left[2], left[3]), pack(right[0], right[1]), pack(right[2], right[3])};
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) {
            u32 b[2];
            load_columns(b, tile + step * 16 * STRIDE + n * 8);
            multiply(sums[n], a, b);
        }
    }
}

// Stores the warp's rows, each times its factor.
__device__ inline void store_rows(T *head, i64 stride, i32 first, i32 end, const float sums[COLUMNS][4], const float factors[2]) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        i32 row = first + lane / 4 + i * 8;
        if (row >= end) continue;
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) {
            *(u32 *)(head + row * stride + n * 8 + lane % 4 * 2) = pack(sums[n][2 * i] * factors[i], sums[n][2 * i + 1] * factors[i]);
        }
    }
}
