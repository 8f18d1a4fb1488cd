// Products of small tiles by tensor cores. A warp computes TILES times 16 rows; of each 16 a lane has the elements of rows `row` and
// `row + 8`, pairs of columns from `2 * pair` on, where row = lane / 4 and pair = lane % 4. A block has WARPS warps, so ROWS rows, and
// walks along WALK rows of other matrices at a time, whose next tiles are on the way to shared memory meanwhile.
#define THREADS (32 * WARPS)
#define ROWS (16 * TILES * WARPS)
#define STEPS (WIDTH / 16)
#define COLUMNS (WIDTH / 8)
// Elements from row to row of a tile in shared memory: so that eight rows lie in different banks.
#define STRIDE (WIDTH + 8)
#define TILE_ELEMENTS (WALK * STRIDE)
#define TILE_VECTORS (TILE_ELEMENTS / 8)
#define LOG2_E 1.44269504088896340736f

#ifdef __CUDACC_RTC__
// What a warp may leave out by itself: no lane of another warp waits for it.
#define WARP_ALONE(condition) (condition)

// Two numbers as a pair of elements.
__device__ inline u32 pack(float low, float high) {
    u32 pair;
    asm("cvt.rn." MMA "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// 2 to the power of x; results below the normal numbers are zero.
__device__ inline float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// sums += a * b, for a of 16 x 16 and b of 16 x 8.
__device__ inline void multiply(float sums[4], const u32 a[4], const u32 b[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." MMA "." MMA ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// A tile of shared memory, by its address there, and a place in it.
typedef u32 Tile;
__device__ inline Tile tile_of(const void *at) {
    Tile tile;
    asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(tile) : "l"(at));
    return tile;
}
__device__ inline Tile place(Tile tile, u32 elements) { return tile + 2 * elements; }

// Two second factors of 16 x 8: columns are 8 rows of a tile each, from an element of their first 16 on.
__device__ inline void load_rows(u32 b[4], Tile at) {
    u32 lane = threadIdx.x % 32;
    Tile own = place(at, (lane % 8 + lane / 16 * 8) * STRIDE + lane / 8 % 2 * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(own) : "memory");
}

// Two second factors of 16 x 8: rows are 16 rows of a tile, from an element of their first 8 on, and 8 further.
__device__ inline void load_columns(u32 b[4], Tile at) {
    u32 lane = threadIdx.x % 32;
    Tile own = place(at, lane % 16 * STRIDE + lane / 16 * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(own) : "memory");
}

// Starts a copy of 8 elements to shared memory; zeros if they are not inside.
__device__ inline void copy_vector(Tile to, const T *from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}

// Waits for the copies that this thread has started.
__device__ inline void finish_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Combines the numbers of the four lanes that share rows.
template <class Combine> __device__ inline float combine_row(float x) {
    x = Combine::of(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return Combine::of(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
#else
// The same where there are no warps: lanes exchange what they have, at barriers of the whole block.
#define WARP_ALONE(condition) false

inline u32 pack(float low, float high) { return (u32)narrow<T>(low).bits | (u32)narrow<T>(high).bits << 16; }

inline float power_of_two(float x) { return x < -126.0f ? 0.0f : exp2f(x); }

inline void multiply(float sums[4], const u32 a[4], const u32 b[2]) {
    __shared__ u16 lefts[THREADS][8], rights[THREADS][4];
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

typedef u16 *Tile;
inline Tile tile_of(void *at) { return (Tile)at; }
inline Tile place(Tile tile, u32 elements) { return tile + elements; }

inline void load_rows(u32 b[4], Tile at) {
    u32 lane = threadIdx.x % 32;
    for (u32 i = 0; i < 4; i++) {
        const u16 *from = at + (lane / 4 + i / 2 * 8) * STRIDE + lane % 4 * 2 + i % 2 * 8;
        b[i] = (u32)from[0] | (u32)from[1] << 16;
    }
}

inline void load_columns(u32 b[4], Tile at) {
    u32 lane = threadIdx.x % 32;
    for (u32 i = 0; i < 4; i++) {
        const u16 *from = at + (lane % 4 * 2 + i % 2 * 8) * STRIDE + lane / 4 + i / 2 * 8;
        b[i] = (u32)from[0] | (u32)from[STRIDE] << 16;
    }
}

inline void copy_vector(Tile to, const T *from, bool inside) {
    uint4 elements = {};
    if (inside) elements = *(const uint4 *)from;
    *(uint4 *)to = elements;
}

inline void finish_copies() {}

template <class Combine> inline float combine_row(float x) {
    __shared__ float all[THREADS];
    __syncthreads();
    all[threadIdx.x] = x;
    __syncthreads();
    const float *row = all + threadIdx.x / 4 * 4;
    u32 self = threadIdx.x % 4;
    return Combine::of(Combine::of(row[self], row[self ^ 1]), Combine::of(row[self ^ 2], row[self ^ 3]));
}
#endif

// Keeps what follows in a branch of its own, because few tiles need it: it would be computed for all of them otherwise.
#define BRANCH asm volatile("")

// What the exponents of a query's scores are shifted by: so that the weights of one that sees no key are zero.
__device__ inline float base_of(float logsumexp) { return logsumexp == -INF ? 0.0f : logsumexp * LOG2_E; }

// The larger number; of a number and NaN the number.
struct Most {
    __device__ static inline float of(float a, float b) { return fmaxf(a, b); }
};

// Starts to copy rows of a head into a tile of shared memory; zeros past the last of them.
__device__ inline void load_tile(Tile tile, const T *rows, i32 stride, i32 count) {
    i32 row = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS * 8;
#pragma unroll
    for (u32 i = 0; i < WALK * COLUMNS; i += THREADS) {
        // Threads have whole rows, or there is more than one vector of a row for each.
        if (THREADS % COLUMNS != 0) {
            row = (i + threadIdx.x) / COLUMNS;
            column = (i + threadIdx.x) % COLUMNS * 8;
        }
        if (WALK * COLUMNS % THREADS != 0 && i + threadIdx.x >= WALK * COLUMNS) break;
        bool inside = row < count;
        copy_vector(place(tile, row * STRIDE + column), rows + (inside ? row * stride : 0) + column, inside);
        row += THREADS / COLUMNS;
    }
}

// The warp's rows of a head as first factors; zeros past the end.
__device__ inline void load_factors(u32 factors[TILES][STEPS][4], const T *head, i64 stride, i32 first, i32 end) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4 * TILES; i++) {
        i32 row = first + i / 4 * 16 + lane / 4 + i % 2 * 8;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            u32 pair = row < end ? *(const u32 *)(head + row * stride + step * 16 + i / 2 % 2 * 8 + lane % 4 * 2) : 0;
            factors[i / 4][step][i % 4] = pair;
        }
    }
}

// scores = factors * tile^T. Products that follow each other add to different scores, so that none waits for the one before.
__device__ inline void score(float scores[TILES][WALK / 8][4], const u32 factors[TILES][STEPS][4], Tile tile) {
#pragma unroll
    for (int i = 0; i < TILES * WALK / 2; i++) scores[i / (WALK / 2)][i % (WALK / 2) / 4][i % 4] = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
#pragma unroll
        for (int n = 0; n < WALK / 8; n += 2) {
            u32 b[4];
            load_rows(b, place(tile, n * 8 * STRIDE + step * 16));
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                multiply(scores[t][n], factors[t][step], b);
                multiply(scores[t][n + 1], factors[t][step], b + 2);
            }
        }
    }
}

// sums += weights * tile, where pairs of weights are rounded: pair r of weights n has columns from 8 n on of row r.
__device__ inline void add_weighted(float sums[TILES][COLUMNS][4], const u32 weights[TILES][WALK / 8][2], Tile tile) {
#pragma unroll
    for (int step = 0; step < WALK / 16; step++) {
#pragma unroll
        for (int n = 0; n < COLUMNS; n += 2) {
            u32 b[4];
            load_columns(b, place(tile, step * 16 * STRIDE + n * 8));
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                multiply(sums[t][n], weights[t][2 * step], b);
                multiply(sums[t][n + 1], weights[t][2 * step], b + 2);
            }
        }
    }
}

// Stores the warp's rows, each times its factor.
__device__ inline void store_rows(T *head, i64 stride, i32 first, i32 end, const float sums[TILES][COLUMNS][4],
                                  const float factors[TILES][2]) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        i32 row = first + i / 2 * 16 + lane / 4 + i % 2 * 8;
        if (row >= end) continue;
        float factor = factors[i / 2][i % 2];
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) {
            const float *two = sums[i / 2][n] + i % 2 * 2;
            *(u32 *)(head + row * stride + n * 8 + lane % 4 * 2) = pack(two[0] * factor, two[1] * factor);
        }
    }
}
