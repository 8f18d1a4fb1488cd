// Philox4x32 with ten rounds: a thread draws four numbers of an example.
extern "C" __global__ void kernel(
    const i64 *key, const i32 *examples, Y *y, i64 hash, i64 threshold, i64 elements, i64 quads, i64 count
) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count * quads) return;
    const i64 row = i / quads;
    const u32 quad = (u32)(i % quads);
    const u64 seed = (u64)key[0] ^ ((u64)hash & 0xffffffff00000000ull);
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
    u32 c0 = quad, c1 = (u32)examples[row], c2 = (u32)key[1], c3 = (u32)hash;
    for (int round = 0; round < 10; round++) {
        const u64 a = (u64)c0 * 0xd2511f53u, b = (u64)c2 * 0xcd9e8d57u;
        const u32 n0 = (u32)(b >> 32) ^ c1 ^ k0, n2 = (u32)(a >> 32) ^ c3 ^ k1;
        c0 = n0, c1 = (u32)b, c2 = n2, c3 = (u32)a;
        k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
    }
    const u32 words[4] = {c0, c1, c2, c3};
    Y drawn[4];
    draw(drawn, words, threshold);
    for (int j = 0; j < 4; j++)
        if (4 * (i64)quad + j < elements) y[row * elements + 4 * (i64)quad + j] = drawn[j];
}
