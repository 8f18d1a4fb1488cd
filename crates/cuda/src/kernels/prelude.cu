// Element types, their conversions, and sums over a block. No headers: kernels are compiled where no toolkit is installed. What
// differs between a device and the host, where tests run the kernels, is in the macros that the host's shim defines before this.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;

struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};

#define INF __uint_as_float(0x7f800000u)
#define NOT_A_NUMBER __uint_as_float(0x7fc00000u)

// The type that an element is computed in.
template <class T> struct WideOf {
    typedef T type;
};
template <> struct WideOf<bf16> {
    typedef float type;
};
template <> struct WideOf<f16> {
    typedef float type;
};
template <class T> using Wide = typename WideOf<T>::type;

// An element in the type that it is computed in.
template <class T> __device__ inline T widen(T x) { return x; }
__device__ inline float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ inline float widen(f16 x) {
#ifdef __CUDACC_RTC__
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
#else
    u32 sign = (u32)(x.bits & 0x8000) << 16, exponent = (x.bits >> 10) & 31, mantissa = x.bits & 1023;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | mantissa << 13);
    if (exponent > 0) return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
    return __uint_as_float(sign | __float_as_uint((float)mantissa * 0x1p-24f));
#endif
}

// Rounds to an f32 so that rounding the result to 16 bits is the same as rounding x to them: no value lands on a tie, or leaves
// one, because an inexact result is odd.
__device__ inline float round_to_odd(double x) {
    float nearest = (float)x;
    u32 bits = __float_as_uint(nearest);
    if ((double)nearest == x || (bits & 0x7f800000u) == 0x7f800000u || (bits & 1)) return nearest;
    return __uint_as_float(((double)nearest < x) == (x > 0) ? bits + 1 : bits - 1);
}

// A number rounded to an element type, to nearest even. NaN stays NaN.
template <class T> struct Narrow {
    __device__ static inline T of(T x) { return x; }
};
template <> struct Narrow<float> {
    __device__ static inline float of(float x) { return x; }
    __device__ static inline float of(double x) { return (float)x; }
};
template <> struct Narrow<bf16> {
    __device__ static inline bf16 of(float x) {
        bf16 narrow;
#ifdef __CUDACC_RTC__
        // Of two numbers at once: what rounds one is a quarter as fast.
        u32 pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.0f), "f"(x));
        narrow.bits = (u16)pair;
#else
        u32 bits = __float_as_uint(x);
        narrow.bits = (u16)(x != x ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
        return narrow;
    }
    __device__ static inline bf16 of(double x) { return of(round_to_odd(x)); }
};
template <> struct Narrow<f16> {
    __device__ static inline f16 of(float x) {
        f16 narrow;
#ifdef __CUDACC_RTC__
        u32 pair;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.0f), "f"(x));
        narrow.bits = (u16)pair;
#else
        u32 bits = __float_as_uint(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
        u32 rounded;
        if (size > 0x7f800000u) rounded = 0x7e00;
        else if (size >= 0x477ff000u) rounded = 0x7c00;
        // Below the normals: the addition rounds at the last bit of a subnormal.
        else if (size < 0x38800000u) rounded = __float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u;
        else rounded = (size - 0x38000000u + 0xfff + (size >> 13 & 1)) >> 13;
        narrow.bits = (u16)(sign | rounded);
#endif
        return narrow;
    }
    __device__ static inline f16 of(double x) { return of(round_to_odd(x)); }
};
template <class T, class X> __device__ inline T narrow(X x) { return Narrow<T>::of(x); }

// As many consecutive elements as one instruction moves.
template <class T, int N> struct alignas(N * sizeof(T)) Words {
    T x[N];
};

// V consecutive elements, which are aligned, in words of up to 16 bytes.
template <int V, class T> __device__ inline void load_whole(T *x, const T *from) {
    const int N = V * sizeof(T) <= 16 ? V : 16 / sizeof(T);
#pragma unroll
    for (int k = 0; k < V; k += N) {
        Words<T, N> words = *(const Words<T, N> *)(from + k);
#pragma unroll
        for (int j = 0; j < N; j++) x[k + j] = words.x[j];
    }
}

template <int V, class T> __device__ inline void store_whole(T *to, const T *x) {
    const int N = V * sizeof(T) <= 16 ? V : 16 / sizeof(T);
#pragma unroll
    for (int k = 0; k < V; k += N) {
        Words<T, N> words;
#pragma unroll
        for (int j = 0; j < N; j++) words.x[j] = x[k + j];
        *(Words<T, N> *)(to + k) = words;
    }
}

// The first `count` of V consecutive elements, in words of up to 16 bytes where they are aligned.
template <int V, class T> __device__ inline void load_vector(T *x, const T *from, int count) {
    const int N = V * sizeof(T) <= 16 ? V : 16 / sizeof(T);
    if (count == V && (u64)from % (N * sizeof(T)) == 0) {
        load_whole<V>(x, from);
    } else {
#pragma unroll
        for (int k = 0; k < V; k++)
            if (k < count) x[k] = from[k];
    }
}

// V consecutive elements, which one instruction moves.
template <int V, class T> __device__ inline void load_words(T *x, const T *from) {
    const Words<T, V> words = *(const Words<T, V> *)from;
#pragma unroll
    for (int j = 0; j < V; j++) x[j] = words.x[j];
}

template <int V, class T> __device__ inline void store_vector(T *to, const T *x, int count) {
    const int N = V * sizeof(T) <= 16 ? V : 16 / sizeof(T);
    if (count == V && (u64)to % (N * sizeof(T)) == 0) {
        store_whole<V>(to, x);
    } else {
#pragma unroll
        for (int k = 0; k < V; k++)
            if (k < count) to[k] = x[k];
    }
}

struct Add {
    template <class T> __device__ static inline T of(T a, T b) { return a + b; }
};
struct Multiply {
    template <class T> __device__ static inline T of(T a, T b) { return a * b; }
};
// NaN if there is one.
struct Larger {
    template <class T> __device__ static inline T of(T a, T b) { return b > a || b != b ? b : a; }
};
struct Smaller {
    template <class T> __device__ static inline T of(T a, T b) { return b < a || b != b ? b : a; }
};

// Combines a number of each thread of a block, whose threads are a power of two, 1024 at most: always as the same tree. Every
// thread must call it, and gets the result.
template <class Combine, class T> __device__ inline T block_reduce(T x) {
    __shared__ T parts[1024];
    u32 thread = threadIdx.x;
    __syncthreads();
    parts[thread] = x;
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half) parts[thread] = Combine::of(parts[thread], parts[thread + half]);
    }
    __syncthreads();
    return parts[0];
}
template <class T> __device__ inline T block_sum(T x) { return block_reduce<Add>(x); }

// Whether a number can be exchanged between the threads of a warp.
template <class T> struct Shuffles {
    static const bool value = false;
};
template <> struct Shuffles<float> {
    static const bool value = true;
};
template <> struct Shuffles<double> {
    static const bool value = true;
};

// As block_reduce, for each LANES consecutive threads of a block: a power of two that divides the block.
template <class Combine, int LANES, class T> __device__ inline T group_reduce(T x) {
    u32 thread = threadIdx.x, lane = thread % LANES;
    int half = LANES / 2;
#ifdef __CUDACC_RTC__
    // The same tree, with the threads of a warp exchanging what they have.
    __shared__ T parts[LANES > 32 || !Shuffles<T>::value ? 1024 : 1];
    if constexpr (Shuffles<T>::value) {
        if constexpr (LANES > 32) {
            __syncthreads();
            parts[thread] = x;
            for (; half >= 32; half /= 2) {
                __syncthreads();
                if (lane < half) parts[thread] = x = Combine::of(parts[thread], parts[thread + half]);
            }
        }
        if (LANES <= 32 || lane < 32) {
            for (; half > 0; half /= 2) x = Combine::of(x, __shfl_xor_sync(0xffffffffu, x, half));
        }
        if constexpr (LANES > 32) {
            if (lane == 0) parts[thread] = x;
            __syncthreads();
            return parts[thread - lane];
        } else {
            return __shfl_sync(0xffffffffu, x, 0, LANES);
        }
    }
#else
    __shared__ T parts[1024];
#endif
    __syncthreads();
    parts[thread] = x;
    for (; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half) parts[thread] = Combine::of(parts[thread], parts[thread + half]);
    }
    __syncthreads();
    return parts[thread - lane];
}

// Records that an index is out of range; the smallest position stays.
__device__ inline void fail(u64 *fault, i64 position, i32 index) {
    atomicMin(fault, (u64)position << 32 | (u32)index);
}
