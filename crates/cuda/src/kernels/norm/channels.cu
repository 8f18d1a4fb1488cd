// Rows of [rows, channels] by chunks, side by side: a block has COLUMNS vectors of V channels and LANES threads for the rows of a chunk.
// They follow from the channels and the rows of a block of the fold alone, so the bits do not depend on how many rows there are.
#define BLOCK_LANES (256 / COLUMNS)

// What a thread computes.
struct Part {
    u32 column, lane;
    i64 channel, chunk, first, end;
};

__device__ inline Part part_of(i64 rows, i64 channels, i64 block_rows, i64 chunks) {
    Part p;
    p.column = threadIdx.x % COLUMNS;
    p.lane = threadIdx.x / COLUMNS;
    const i64 tiles = (channels / V + COLUMNS - 1) / COLUMNS;
    p.channel = ((i64)blockIdx.x % tiles * COLUMNS + p.column) * V;
    p.chunk = (i64)blockIdx.x / tiles;
    // Chunks of a block of rows lie side by side; a block starts with a chunk.
    const i64 per_block = (block_rows + CHUNK - 1) / CHUNK;
    const i64 start = p.chunk / per_block * block_rows;
    const i64 block_end = start + block_rows < rows ? start + block_rows : rows;
    p.first = start + p.chunk % per_block * CHUNK;
    p.end = p.first + CHUNK < block_end ? p.first + CHUNK : block_end;
    return p;
}
