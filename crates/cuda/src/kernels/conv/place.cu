// Writes the rows of a grid over images where they belong in the images: a row has the pixels of a tile, from the row's place on.
// A thread copies a UNIT.
extern "C" __global__ void kernel(const UNIT *rows, UNIT *image, i64 total, i64 first_example, i64 first_place, i64 grid_h,
                                  i64 grid_w, i64 height, i64 width, i64 channels, i64 stride_h, i64 stride_w, i64 offset_h,
                                  i64 offset_w, i64 tile_h, i64 tile_w) {
    u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    u32 channel = index % (u32)channels, pixel = index / (u32)channels, pixels = (u32)tile_h * (u32)tile_w;
    INDEX place = (INDEX)first_place + pixel / pixels;
    pixel %= pixels;
    INDEX places = (INDEX)grid_h * (INDEX)grid_w, example = place / places;
    place %= places;
    i64 y = (i64)(place / (INDEX)grid_w) * stride_h + offset_h + pixel / (u32)tile_w;
    i64 x = (i64)(place % (INDEX)grid_w) * stride_w + offset_w + pixel % (u32)tile_w;
    image[(((first_example + example) * height + y) * width + x) * channels + channel] = rows[index];
}
