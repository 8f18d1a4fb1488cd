// What an element of the result is made of along an axis: (1 - share) * image[first] + share * image[second].
struct Source {
    i64 first, second;
    float share;
};

__device__ inline Source source(i64 i, i64 from, i64 to) {
    Source s;
#if NEAREST
    s.first = s.second = i * from / to;
    s.share = 0.0f;
#else
#if ALIGN_CORNERS
    double place = to == 1 ? 0.0 : (double)(i * (from - 1)) / (double)(to - 1);
#else
    double place = ((double)i + 0.5) * (double)from / (double)to - 0.5;
    if (place < 0.0) place = 0.0;
#endif
    s.first = (i64)place < from - 1 ? (i64)place : from - 1;
    s.second = s.first + 1 < from ? s.first + 1 : s.first;
    s.share = (float)(place - (double)s.first);
#endif
    return s;
}

// The weight of an element of the image in an element of the result. At the edge both sources are one element.
__device__ inline float weight(Source s, i64 element) {
    return (s.first == element ? 1.0f - s.share : 0.0f) + (s.second == element ? s.share : 0.0f);
}

// The first element of the result whose first source (or second, if not PAST) is past the element (or not before it). Both grow
// with the element of the result.
template <bool PAST> __device__ inline i64 search(i64 element, i64 from, i64 to) {
    i64 low = 0, high = to;
    while (low < high) {
        i64 middle = (low + high) / 2;
        Source s = source(middle, from, to);
        if (PAST ? s.first <= element : s.second < element) low = middle + 1;
        else high = middle;
    }
    return low;
}

// What a thread computes, an element of [n, h, w, c].
struct Place {
    i64 example, row, column, channel;
};

__device__ inline Place place_of(INDEX index, i64 height, i64 width, i64 channels) {
    Place p;
    p.channel = index % (INDEX)channels;
    index /= (INDEX)channels;
    p.column = index % (INDEX)width;
    index /= (INDEX)width;
    p.row = index % (INDEX)height;
    p.example = index / (INDEX)height;
    return p;
}
