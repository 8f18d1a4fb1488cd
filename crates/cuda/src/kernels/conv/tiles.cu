// Products of tiles by tensor cores: sums of 128 x BN, of tiles with 32 terms that wait in shared memory. A block has 2 x 2 warps, each
// with 64 x WN of them. A tile is stored as rows of 16-byte pieces, whose order changes from row to row, so that the eight pieces
// that a warp reads at once lie in different banks.
//
// A_ROWS: the first factor's tile has a row for each row of the sums, else for each term. B_ROWS: the second's has a row for each column
// of the sums, else for each term.
#define BM 128
#define BK 32
#define WN (BN / 2)
#define THREADS 128
#define STAGES (BN == 128 ? 3 : 4)
// Bytes of the first tile of a stage, and of both.
#define A_BYTES (BM * BK * 2)
#define STAGE_BYTES ((BM + BN) * BK * 2)

// Where a piece of a row lies, in bytes: of a tile with 32 elements in a row, and of one with more.
__device__ inline u32 short_row(u32 row, u32 piece) { return row * 64 + (piece ^ (row >> 1 & 3)) * 16; }
template <int WIDTH> __device__ inline u32 long_row(u32 row, u32 piece) { return row * (WIDTH * 2) + (piece ^ (row & 7)) * 16; }

// The sums of a thread: row mi * 16 + lane / 4 (+ 8), column ni * 8 + lane % 4 * 2 (+ 1) of the warp's.
struct Sums {
    float x[4][WN / 8][4];
};

// The stages of a ring of tiles, in bytes from the first.
__device__ inline u32 next_stage(u32 stage) { return stage == (STAGES - 1) * STAGE_BYTES ? 0 : stage + STAGE_BYTES; }

#ifdef __CUDACC_RTC__
// An address in shared memory.
typedef u32 Shared;
__device__ inline Shared shared_address(const void *at) {
    u32 address;
    asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(address) : "l"(at));
    return address;
}

// Copies a piece in the background, or zeros; then nothing is read.
__device__ inline void copy_piece(Shared to, const void *from, bool inside) {
    u32 bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void end_stage() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all stages but the last ones have arrived.
template <int LAST> __device__ inline void wait_stage() { asm volatile("cp.async.wait_group %0;" ::"n"(LAST) : "memory"); }

__device__ inline void load_matrices(u32 x[4], Shared at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}
__device__ inline void load_transposed(u32 x[4], Shared at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}
__device__ inline void multiply(float sums[4], const u32 a[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." MMA "." MMA ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Lets the compiler keep a number in a register instead of computing it anew in every step.
__device__ inline void keep(u32 &x) { asm volatile("" : "+r"(x)); }
template <class X> __device__ inline void keep(const X *&x) { asm volatile("" : "+l"(x)); }

// What a lane reads of a stage's tiles, in bytes from its start.
struct Lanes {
    u32 a[4], b[WN / 16];
};

__device__ inline Lanes lanes_of() {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 row = warp / 2 * 64, column = warp % 2 * WN;
    Lanes l;
#pragma unroll
    for (u32 i = 0; i < 4; i++)
        l.a[i] = A_ROWS ? short_row(row + lane % 16, i % 2 * 2 + lane / 16) : long_row<BM>(lane / 16 * 8 + lane % 8, row / 8 + i * 2 + lane / 8 % 2);
#pragma unroll
    for (u32 i = 0; i < (B_ROWS ? 2 : WN / 16); i++)
        l.b[i] = A_BYTES + (B_ROWS ? short_row(column + lane / 16 * 8 + lane % 8, i * 2 + lane / 8 % 2) : long_row<BN>(lane % 16, column / 8 + i * 2 + lane / 16));
#pragma unroll
    for (u32 i = 0; i < (A_ROWS ? 2 : 4); i++) keep(l.a[i]);
#pragma unroll
    for (u32 i = 0; i < (B_ROWS ? 2 : WN / 16); i++) keep(l.b[i]);
    return l;
}

// Adds the product of the two tiles of a stage.
__device__ inline void add_product(Sums &sums, Shared stage, const Lanes &lanes) {
#pragma unroll
    for (u32 k = 0; k < 2; k++) {
        u32 left[4][4], right[WN / 16][4];
#pragma unroll
        for (u32 j = 0; j < WN / 16; j++) {
            if (B_ROWS) load_matrices(right[j], stage + lanes.b[k] + j * (16 * 64));
            else load_transposed(right[j], stage + lanes.b[j] + k * (16 * BN * 2));
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if (A_ROWS) load_matrices(left[i], stage + lanes.a[k] + i * (16 * 64));
            else load_transposed(left[i], stage + lanes.a[i] + k * (16 * BM * 2));
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++)
#pragma unroll
            for (u32 j = 0; j < WN / 8; j++) multiply(sums.x[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
    }
}
#else
// The same where there are no warps.
typedef u64 Shared;
template <class X> inline void keep(X &) {}
inline Shared shared_address(const void *at) { return (u64)at; }
inline void copy_piece(Shared to, const void *from, bool inside) {
    uint4 zero = {};
    *(uint4 *)to = inside ? *(const uint4 *)from : zero;
}
inline void end_stage() {}
template <int LAST> inline void wait_stage() {}

struct Lanes {};
inline Lanes lanes_of() { return Lanes(); }
inline float element(Shared piece, u32 at) { return widen(((const T *)piece)[at]); }

inline void add_product(Sums &sums, Shared a, const Lanes &) {
    const Shared b = a + A_BYTES;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u32 s = 0; s < 2 * WN; s++) {
        const u32 i = s / (WN / 2), j = s / 4 % (WN / 8), e = s % 4;
        const u32 row = warp / 2 * 64 + i * 16 + lane / 4 + e / 2 * 8;
        const u32 column = warp % 2 * WN + j * 8 + lane % 4 * 2 + e % 2;
        for (u32 k = 0; k < BK; k++) {
            const float left = A_ROWS ? element(a + short_row(row, k / 8), k % 8) : element(a + long_row<BM>(k, row / 8), row % 8);
            const float right = B_ROWS ? element(b + short_row(column, k / 8), k % 8) : element(b + long_row<BN>(k, column / 8), column % 8);
            sums.x[i][j][e] = fmaf(left, right, sums.x[i][j][e]);
        }
    }
}
#endif
