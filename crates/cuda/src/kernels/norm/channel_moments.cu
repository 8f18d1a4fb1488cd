// Joins the moments of chunks of CHUNK rows, always in the same order: a block has 8 channels, and 32 lanes that share the chunks of each.
extern "C" __global__ void __launch_bounds__(256) kernel(
    const W *partial, W *mean, W *variance, i64 rows, i64 channels, i64 chunks
) {
    __shared__ Moments parts[256];
    const u32 thread = threadIdx.x, lane = thread / 8;
    const i64 channel = (i64)blockIdx.x * 8 + thread % 8;
    Moments all = {0, 0, 0};
    if (channel < channels) {
#pragma unroll 4
        for (i64 chunk = lane; chunk < chunks; chunk += 32) {
            const i64 left = rows - chunk * CHUNK;
            const W count = (W)(left < CHUNK ? left : CHUNK);
            all = join(all, {count, partial[chunk * channels + channel], partial[(chunks + chunk) * channels + channel]});
        }
    }
    parts[thread] = all;
    for (u32 half = 16; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half) parts[thread] = join(parts[thread], parts[thread + half * 8]);
    }
    if (channel >= channels || lane > 0) return;
    mean[channel] = parts[thread].mean;
    variance[channel] = parts[thread].squares / (W)rows;
}
