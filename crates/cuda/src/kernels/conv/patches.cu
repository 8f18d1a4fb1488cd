// Gathers the elements under windows: row by row of a grid of windows over the source's images, the elements of every tap, group
// by group of channels. Zeros where a tap lies outside the image. A thread copies a UNIT.
extern "C" __global__ void kernel(const UNIT *source, UNIT *patches, i64 total, i64 first_example, i64 first_window, i64 grid_h,
                                  i64 grid_w, i64 height, i64 width, i64 channels, i64 group_channels, i64 taps_h, i64 taps_w,
                                  i64 window_step_h, i64 window_step_w, i64 tap_step_h, i64 tap_step_w, i64 offset_h,
                                  i64 offset_w, i64 row_stride) {
    u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    u32 taps = (u32)taps_h * (u32)taps_w, columns = taps * (u32)channels;
    u32 row = index / columns, column = index % columns;
    u32 inside = column % (u32)group_channels, part = column / (u32)group_channels;
    u32 tap = part % taps, group = part / taps;
    INDEX windows = (INDEX)grid_h * (INDEX)grid_w, window = (INDEX)first_window + row;
    INDEX example = window / windows;
    window %= windows;
    i64 y = (i64)(window / (INDEX)grid_w) * window_step_h + (i64)(tap / (u32)taps_w) * tap_step_h + offset_h;
    i64 x = (i64)(window % (INDEX)grid_w) * window_step_w + (i64)(tap % (u32)taps_w) * tap_step_w + offset_w;
    UNIT value = {};
    if (y >= 0 && y < height && x >= 0 && x < width) {
        value = source[(((first_example + example) * height + y) * width + x) * channels + group * group_channels + inside];
    }
    patches[row * row_stride + column] = value;
}
