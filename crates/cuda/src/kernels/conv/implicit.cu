// A convolution as a product whose first factor, the patches of the image, is never in memory: its tiles are gathered. A row is a place
// of a grid over the images, a term a channel under a tap; there are 31 taps at most. Along an axis a tap is at
// place * step + tap * tap_step + offset.
extern "C" __global__ void __launch_bounds__(THREADS) kernel(
    const T *image, const T *kernels, T *y, i64 rows, i64 columns, i64 grid_h, i64 grid_w, i64 height, i64 width, i64 pixel,
    i64 channels, i64 taps_h, i64 taps_w, i64 step_h, i64 step_w, i64 tap_step_h, i64 tap_step_w, i64 offset_h, i64 offset_w,
    i64 kernels_h, i64 kernels_w, i64 out_h, i64 out_w, i64 out_step_h, i64 out_step_w, i64 out_offset_h, i64 out_offset_w
) {
    __shared__ uint4 tiles[STAGES * STAGE_BYTES / 16];
    const Shared ring = shared_address(tiles);
    const u32 thread = threadIdx.x, column_tiles = ((u32)columns + BN - 1) / BN;
    const u32 first_column = blockIdx.x % column_tiles * BN;
    const i64 first_row = (i64)(blockIdx.x / column_tiles) * BM;
    // The rows that this thread gathers, a piece of each: where their windows start, and which taps lie inside the image.
    const int EACH = BM * 4 / THREADS, KERNELS = BN * 4 / THREADS, TERMS = THREADS / (BN / 8);
    const u32 piece = thread % 4, row_in = thread / 4;
    const T *from[EACH];
    u32 inside[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const i64 row = first_row + row_in + i * (THREADS / 4);
        const INDEX place = (INDEX)(row < rows ? row : 0), rest = place / (INDEX)grid_w;
        const i64 top = (i64)(rest % (INDEX)grid_h) * step_h + offset_h, left = (i64)(place % (INDEX)grid_w) * step_w + offset_w;
        from[i] = image + (((i64)(rest / (INDEX)grid_h) * height + top) * width + left) * pixel;
        inside[i] = 0;
        for (i32 tap_y = 0, tap = 0; tap_y < (i32)taps_h; tap_y++) {
            for (i32 tap_x = 0; tap_x < (i32)taps_w; tap_x++, tap++) {
                const i32 at_y = (i32)top + tap_y * (i32)tap_step_h, at_x = (i32)left + tap_x * (i32)tap_step_w;
                if (row < rows && (u32)at_y < (u32)height && (u32)at_x < (u32)width) inside[i] |= 1u << tap;
            }
        }
        keep(from[i]);
        keep(inside[i]);
    }
    const u32 taps = (u32)taps_h * (u32)taps_w, terms = taps * (u32)channels, steps = (terms + BK - 1) / BK;
    // The channel of this thread's piece, its tap, and how far that is from the first, in the image and in the kernels.
    i32 channel = (i32)piece * 8, tap_x = 0, far = 0;
    u32 tap = 0;
    const i32 aside = (i32)(tap_step_w * pixel), below = (i32)((tap_step_h * width - (taps_w - 1) * tap_step_w) * pixel);
#if B_ROWS
    i32 far_kernels = 0;
    const i32 kernels_below = (i32)(kernels_h - (taps_w - 1) * kernels_w);
#endif
    const auto settle = [&]() {
        while (channel >= (i32)channels) {
            channel -= (i32)channels;
            tap++;
            const bool last = ++tap_x == (i32)taps_w;
            if (last) tap_x = 0;
            far += last ? below : aside;
#if B_ROWS
            far_kernels += last ? kernels_below : (i32)kernels_w;
#endif
        }
    };
    settle();
    // The pieces of the kernels.
    const T *kernel_from[KERNELS];
    bool kernel_inside[KERNELS];
#pragma unroll
    for (int i = 0; i < KERNELS; i++) {
#if B_ROWS
        const u32 column = first_column + row_in + i * (THREADS / 4);
        kernel_inside[i] = column < (u32)columns;
        kernel_from[i] = kernels + (i64)column * channels;
#else
        const u32 column = first_column + thread % (BN / 8) * 8, term = thread / (BN / 8) + i * TERMS;
        kernel_inside[i] = column < (u32)columns;
        kernel_from[i] = kernels + (i64)term * columns + column;
#endif
        keep(kernel_from[i]);
    }
    u32 to = short_row(row_in, piece), kernel_to = A_BYTES + (B_ROWS ? to : long_row<BN>(thread / (BN / 8), thread % (BN / 8)));
    keep(to);
    keep(kernel_to);
    u32 gathered = 0, filled = 0;
    const auto gather = [&]() {
        const Shared stage = ring + filled;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            copy_piece(stage + to + i * (THREADS / 4 * 64), from[i] + (far + channel), inside[i] >> tap & 1);
#pragma unroll
        for (int i = 0; i < KERNELS; i++) {
#if B_ROWS
            copy_piece(stage + kernel_to + i * (THREADS / 4 * 64), kernel_from[i] + (far_kernels + channel), kernel_inside[i] && tap < taps);
#else
            const bool whole = kernel_inside[i] && gathered * BK + thread / (BN / 8) + i * TERMS < terms;
            copy_piece(stage + kernel_to + i * (TERMS * BN * 2), kernel_from[i], whole);
            kernel_from[i] += BK * columns;
#endif
        }
        gathered++;
        filled = next_stage(filled);
        channel += BK;
        settle();
    };
    Sums sums;
#pragma unroll
    for (int i = 0; i < 2 * WN; i++) sums.x[i / (WN / 2)][i / 4 % (WN / 8)][i % 4] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) {
        if (gathered < steps) gather();
        end_stage();
    }
    const Lanes lanes = lanes_of();
    u32 read = 0;
#pragma unroll 1
    for (u32 step = 0; step < steps; step++) {
        wait_stage<STAGES - 2>();
        __syncthreads();
        if (gathered < steps) gather();
        end_stage();
        add_product(sums, ring + read, lanes);
        read = next_stage(read);
    }
    wait_stage<0>();
    __syncthreads();
    // Through shared memory, so that rows are written in whole pieces.
    const int STRIDE = BN + 8;
    T *out = (T *)tiles;
    const u32 lane = thread % 32, warp = thread / 32;
#pragma unroll
    for (int s = 0; s < 2 * WN; s += 2) {
        const u32 i = s / (WN / 2), j = s / 4 % (WN / 8), e = s % 4;
        const u32 row = warp / 2 * 64 + i * 16 + lane / 4 + e / 2 * 8, column = warp % 2 * WN + j * 8 + lane % 4 * 2;
        const u32 low = narrow<T>(sums.x[i][j][e]).bits, high = narrow<T>(sums.x[i][j][e + 1]).bits;
        *(u32 *)(out + row * STRIDE + column) = low | high << 16;
    }
    __syncthreads();
    const u32 column = thread % (BN / 8) * 8;
    if (first_column + column >= (u32)columns) return;
    for (u32 i = thread / (BN / 8); i < BM; i += TERMS) {
        const i64 row = first_row + i;
        if (row >= rows) return;
        const INDEX place = (INDEX)row, rest = place / (INDEX)grid_w;
        const i64 at_x = (i64)(place % (INDEX)grid_w) * out_step_w + out_offset_w;
        const i64 at_y = (i64)(rest % (INDEX)grid_h) * out_step_h + out_offset_h, example = rest / (INDEX)grid_h;
        T *result = y + ((example * out_h + at_y) * out_w + at_x) * columns + first_column + column;
        *(uint4 *)result = *(const uint4 *)(out + i * STRIDE + column);
    }
}
