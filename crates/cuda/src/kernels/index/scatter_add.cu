// Adds rows to those of a table that indices name, in order. A block has ROWS rows of the table and 256 columns, whose sums are in shared
// memory; it looks through all indices, LISTED at a time, and lists the positions of its own.
#define OWN 16
#define LISTED (256 * OWN)
#define AT_ONCE 16
extern "C" __global__ void __launch_bounds__(256) kernel(
    const i32 *indices, const X *dy, W *y, u64 *fault, i64 rows, i64 width, i64 count
) {
    __shared__ W sums[ROWS][256];
    __shared__ u16 listed[LISTED];
    __shared__ u32 before[2][256];
    const u32 thread = threadIdx.x;
    const i64 tiles = (width + 255) / 256;
    const i64 first = blockIdx.x / (u32)tiles * ROWS, column = blockIdx.x % (u32)tiles * 256 + thread;
    const i64 last = first + ROWS < rows ? first + ROWS : rows;
    const bool inside = column < width;
    for (i64 row = first; row < last; row++) sums[row - first][thread] = ACCUMULATE && inside ? y[row * width + column] : (W)0;
    for (i64 start = 0; start < count; start += LISTED) {
        // A thread's indices lie side by side, so that threads in order have positions in order.
        const i64 position = start + thread * OWN, rest = count - position;
        i32 own[OWN];
#pragma unroll
        for (int j = 0; j < OWN; j += 4) load_vector<4>(own + j, indices + position + j, rest - j > 4 ? 4 : rest > j ? (int)rest - j : 0);
        u32 mine = 0;
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            if (blockIdx.x == 0 && j < rest && (own[j] < 0 || own[j] >= rows)) fail(fault, position + j, own[j]);
            if (j >= rest || own[j] < first || own[j] >= last) own[j] = -1;
            mine += own[j] >= 0;
        }
        if (!__syncthreads_or(mine > 0)) continue;
        // How many the threads up to each have.
        u32 from = 0;
        before[0][thread] = mine;
        for (u32 reach = 1; reach < 256; reach *= 2) {
            __syncthreads();
            before[1 - from][thread] = before[from][thread] + (thread >= reach ? before[from][thread - reach] : 0);
            from = 1 - from;
        }
        u32 place = before[from][thread] - mine;
#pragma unroll
        for (int j = 0; j < OWN; j++)
            if (own[j] >= 0) listed[place++] = (u16)(thread * OWN + j);
        __syncthreads();
        const u32 all = before[from][255];
        // Several are on the way at once; they are added in order.
        for (u32 at = 0; inside && at < all; at += AT_ONCE) {
            W parts[AT_ONCE];
            i32 to[AT_ONCE];
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++) {
                // Past the end the last one once more, which is not added.
                const i64 from = start + listed[at + j < all ? at + j : all - 1];
                parts[j] = widen(dy[from * width + column]);
                to[j] = indices[from] - (i32)first;
            }
            // The compiler may not spread the loads among the sums.
            asm volatile("" ::: "memory");
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++)
                if (at + j < all) sums[to[j]][thread] = sums[to[j]][thread] + parts[j];
        }
    }
    for (i64 row = first; inside && row < last; row++) y[row * width + column] = sums[row - first][thread];
}
