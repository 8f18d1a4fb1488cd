// The windows along an axis. COORDINATE is a signed type that holds every place and product of extents.
struct Axis {
    COORDINATE input, output;
    // Known to the compiler, which divides by them.
    COORDINATE places, stride, before, dilation;
};

// The places of a window that lie inside the image: place p is at origin + p * step.
struct Span {
    COORDINATE begin, end, origin, step;
};

__device__ inline Span span(Axis a, COORDINATE window) {
    Span s;
#if ADAPTIVE
    s.begin = 0;
    s.origin = window * a.input / a.output;
    s.end = ((window + 1) * a.input + a.output - 1) / a.output - s.origin;
    s.step = 1;
#else
    s.origin = window * a.stride - a.before;
    s.step = a.dilation;
    s.begin = s.origin < 0 ? (a.dilation - 1 - s.origin) / a.dilation : 0;
    s.end = s.origin < a.input ? (a.input - s.origin + a.dilation - 1) / a.dilation : 0;
    if (s.end > a.places) s.end = a.places;
#endif
    return s;
}

// The windows that may have a place at an element of the image, from the first to before the end.
__device__ inline COORDINATE first_window(Axis a, COORDINATE element) {
#if ADAPTIVE
    return element * a.output / a.input;
#else
    COORDINATE past = element + a.before - (a.places - 1) * a.dilation;
    return past > 0 ? (past + a.stride - 1) / a.stride : 0;
#endif
}

__device__ inline COORDINATE end_window(Axis a, COORDINATE element) {
#if ADAPTIVE
    return ((element + 1) * a.output + a.input - 1) / a.input;
#else
    COORDINATE end = (element + a.before) / a.stride + 1;
    return end < a.output ? end : a.output;
#endif
}

// The place of a window at an element, or -1 if the element lies between two.
__device__ inline COORDINATE place_at(Axis a, COORDINATE window, COORDINATE element) {
#if ADAPTIVE
    return element - window * a.input / a.output;
#else
    COORDINATE past = element + a.before - window * a.stride;
    return past % a.dilation == 0 ? past / a.dilation : -1;
#endif
}

// The number that a mean divides by.
__device__ inline float share(Span y, Span x, Axis vertical, Axis horizontal) {
#if COUNT_PADDING
    return (float)vertical.places * (float)horizontal.places;
#else
    return (float)(y.end - y.begin) * (float)(x.end - x.begin);
#endif
}

// What a thread computes, an element of [n, h, w, c].
struct Place {
    i64 example;
    COORDINATE row, column;
    u32 channel;
};

__device__ inline Place place_of(INDEX index, i64 height, i64 width, i64 channels) {
    Place p;
    p.channel = (u32)(index % (INDEX)channels);
    index /= (INDEX)channels;
    p.column = (COORDINATE)(index % (INDEX)width);
    index /= (INDEX)width;
    p.row = (COORDINATE)(index % (INDEX)height);
    p.example = index / (INDEX)height;
    return p;
}

#define AXES                                                                                                                    \
    i64 channels, i64 in_h, i64 out_h, i64 in_w, i64 out_w
#define READ_AXES                                                                                                               \
    const COORDINATE places_w = PLACES_W;                                                                                       \
    Axis vertical = {(COORDINATE)in_h, (COORDINATE)out_h, PLACES_H, STRIDE_H, BEFORE_H, DILATION_H};                            \
    Axis horizontal = {(COORDINATE)in_w, (COORDINATE)out_w, places_w, STRIDE_W, BEFORE_W, DILATION_W}
