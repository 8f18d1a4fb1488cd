// What makes a C++ compiler of the host accept the kernels: CUDA's words, and the functions that kernels use. The prelude and a
// kernel's source follow. No headers, so that a kernel compiles in a moment.
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)

struct uint3 {
    unsigned x, y, z;
};
typedef uint3 dim3;
// Several threads of the host may run the same kernel.
static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;
static thread_local void (*meet_threads)();

static inline void __syncthreads() {
    unsigned thread = threadIdx.x;
    meet_threads();
    threadIdx.x = thread;
}

// Whether any thread of the block has a true one.
static inline int __syncthreads_or(int own) {
    static thread_local int any;
    __syncthreads();
    any = 0;
    __syncthreads();
    if (own) any = 1;
    __syncthreads();
    return any;
}

extern "C" {
float sqrtf(float), expf(float), exp2f(float), expm1f(float), logf(float), log1pf(float), tanhf(float), erff(float), sinf(float), cosf(float);
float floorf(float), ceilf(float), rintf(float), fabsf(float), powf(float, float), fmaf(float, float, float);
float fmaxf(float, float), fminf(float, float), truncf(float);
double sqrt(double), exp(double), expm1(double), log(double), log1p(double), tanh(double), erf(double), sin(double), cos(double);
double floor(double), ceil(double), rint(double), fabs(double), pow(double, double), fma(double, double, double);
double fmax(double, double), fmin(double, double), trunc(double);
}

// One thread at a time runs.
template <class T> static inline T atomicMin(T *at, T value) {
    T old = *at;
    *at = value < old ? value : old;
    return old;
}

template <class T> static inline T atomicAdd(T *at, T value) {
    T old = *at;
    *at = old + value;
    return old;
}

static inline float __uint_as_float(unsigned bits) {
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}

static inline unsigned __float_as_uint(float x) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

static inline double __longlong_as_double(long long bits) {
    double x;
    __builtin_memcpy(&x, &bits, 8);
    return x;
}
