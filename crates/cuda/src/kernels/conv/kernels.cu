// The kernels of an input's gradient: from [taps, in, groups, out] to [groups, in, taps, out], with every so-manieth tap from a
// first one.
extern "C" __global__ void kernel(const UNIT *from, UNIT *to, i64 total, i64 window_w, i64 taps_h, i64 taps_w, i64 first_h,
                                  i64 first_w, i64 step_h, i64 step_w, i64 groups, i64 in, i64 out) {
    i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    i64 o = index % out, rest = index / out;
    i64 tap = rest % (taps_h * taps_w);
    rest /= taps_h * taps_w;
    i64 c = rest % in, group = rest / in;
    i64 y = first_h + tap / taps_w * step_h, x = first_w + tap % taps_w * step_w;
    to[index] = from[(((y * window_w + x) * in + c) * groups + group) * out + o];
}
