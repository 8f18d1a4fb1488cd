// Parts of the gradient of a convolution's kernels: the patches of the image, transposed, times the gradient of the result. Patches are
// never in memory: their tiles are gathered. A row of the sums is a channel under a tap, a term is an output pixel; a part has the terms
// of some consecutive pixels.
extern "C" __global__ void __launch_bounds__(THREADS) kernel(
    const T *image, const T *dy, float *parts, i64 first_term, i64 part_terms, i64 rows, i64 columns, i64 grid_h, i64 grid_w,
    i64 height, i64 width, i64 pixel, i64 channels, i64 taps_w, i64 step_h, i64 step_w, i64 tap_step_h, i64 tap_step_w,
    i64 offset_h, i64 offset_w
) {
    __shared__ uint4 tiles[STAGES * STAGE_BYTES / 16];
    const Shared ring = shared_address(tiles);
    const u32 thread = threadIdx.x, column_tiles = ((u32)columns + BN - 1) / BN;
    const u32 first_column = blockIdx.x % column_tiles * BN, first_row = blockIdx.x / column_tiles * BM;
    const u32 first = (u32)(first_term + blockIdx.y * part_terms), terms = (u32)part_terms, steps = (terms + BK - 1) / BK;
    // The channels and the tap of this thread's pieces, and the pixels of its terms: where they are in the image, and in memory.
    const int EACH = BK * (BM / 8) / THREADS, APART = THREADS / (BM / 8), KERNELS = BN * 4 / THREADS, TERMS = THREADS / (BN / 8);
    const u32 piece = thread % (BM / 8), term_in = thread / (BM / 8);
    const u32 row = first_row + piece * 8, tap = row / (u32)channels;
    const i32 down = (i32)(tap / (u32)taps_w) * (i32)tap_step_h + (i32)offset_h;
    const i32 right = (i32)(tap % (u32)taps_w) * (i32)tap_step_w + (i32)offset_w;
    i32 at_x[EACH], at_y[EACH];
    const T *from[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const u32 place = first + term_in + i * APART, rest = place / (u32)grid_w;
        at_x[i] = (i32)(place % (u32)grid_w) * (i32)step_w + right;
        at_y[i] = (i32)(rest % (u32)grid_h) * (i32)step_h + down;
        from[i] = image + (((i64)(rest / (u32)grid_h) * height + at_y[i]) * width + at_x[i]) * pixel + row % (u32)channels;
        keep(from[i]);
    }
    // From step to step; and where a row of the grid, or the grid, ends.
    const i32 ahead_x = (i32)(BK % (u32)grid_w) * (i32)step_w, ahead_y = (i32)(BK / (u32)grid_w % (u32)grid_h) * (i32)step_h;
    const i32 end_x = (i32)(grid_w * step_w) + right, end_y = (i32)(grid_h * step_h) + down;
    const i32 back_x = (i32)(grid_w * step_w), back_y = (i32)(grid_h * step_h);
    const i64 ahead = ((i64)(BK / (u32)grid_w / (u32)grid_h) * height * width + (i64)ahead_y * width + ahead_x) * pixel;
    const i64 row_end = (step_h * width - back_x) * pixel, grid_end = (height - back_y) * width * pixel;
    // The pieces of the gradient.
    const u32 column = first_column + thread % (BN / 8) * 8;
    const T *dy_from = dy + (i64)(first + thread / (BN / 8)) * columns + column;
    u32 to = long_row<BM>(term_in, piece), dy_to = A_BYTES + long_row<BN>(thread / (BN / 8), thread % (BN / 8));
    keep(to);
    keep(dy_to);
    const bool row_inside = row < (u32)rows, column_inside = column < (u32)columns;
    // The terms that are left.
    i32 left = (i32)terms;
    u32 filled = 0;
    const auto gather = [&]() {
        const Shared stage = ring + filled;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const bool inside = row_inside && (i32)term_in + i * APART < left && (u32)at_y[i] < (u32)height && (u32)at_x[i] < (u32)width;
            // Rows of a tile that are 8 apart have their pieces in the same order.
            copy_piece(stage + to + i * (APART * BM * 2), from[i], inside);
            from[i] += ahead;
            at_x[i] += ahead_x;
            at_y[i] += ahead_y;
            if (at_x[i] >= end_x) at_x[i] -= back_x, at_y[i] += (i32)step_h, from[i] += row_end;
            if (at_y[i] >= end_y) at_y[i] -= back_y, from[i] += grid_end;
        }
#pragma unroll
        for (int i = 0; i < KERNELS; i++) {
            const bool inside = column_inside && (i32)(thread / (BN / 8)) + i * TERMS < left;
            copy_piece(stage + dy_to + i * (TERMS * BN * 2), dy_from + i * TERMS * columns, inside);
        }
        dy_from += BK * columns;
        left -= BK;
        filled = next_stage(filled);
    };
    Sums sums;
#pragma unroll
    for (int i = 0; i < 2 * WN; i++) sums.x[i / (WN / 2)][i / 4 % (WN / 8)][i % 4] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) {
        if (left > 0) gather();
        end_stage();
    }
    const Lanes lanes = lanes_of();
    u32 read = 0;
#pragma unroll 1
    for (u32 step = 0; step < steps; step++) {
        wait_stage<STAGES - 2>();
        __syncthreads();
        if (left > 0) gather();
        end_stage();
        add_product(sums, ring + read, lanes);
        read = next_stage(read);
    }
    wait_stage<0>();
    const u32 lane = thread % 32, warp = thread / 32;
    float *part = parts + blockIdx.y * rows * columns;
#pragma unroll
    for (int s = 0; s < 2 * WN; s += 2) {
        const u32 i = s / (WN / 2), j = s / 4 % (WN / 8), e = s % 4;
        const u32 r = first_row + warp / 2 * 64 + i * 16 + lane / 4 + e / 2 * 8;
        const u32 c = first_column + warp % 2 * WN + j * 8 + lane % 4 * 2;
        if (r < (u32)rows && c < (u32)columns) {
            Words<float, 2> pair;
            pair.x[0] = sums.x[i][j][e];
            pair.x[1] = sums.x[i][j][e + 1];
            *(Words<float, 2> *)(part + (i64)r * columns + c) = pair;
        }
    }
}
