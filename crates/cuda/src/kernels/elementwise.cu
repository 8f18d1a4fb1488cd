// Functions of elements in the types that they are computed in: float, double, int (of u8, too), long long and bool.

#define OF_FLOATS(name, f, d) \
    __device__ inline float name(float x) { return f; } \
    __device__ inline double name(double x) { return d; }

OF_FLOATS(op_neg, -x, -x)
OF_FLOATS(op_abs, fabsf(x), fabs(x))
OF_FLOATS(op_square, x * x, x * x)
OF_FLOATS(op_sqrt, sqrtf(x), sqrt(x))
OF_FLOATS(op_rsqrt, 1.0f / sqrtf(x), 1.0 / sqrt(x))
OF_FLOATS(op_exp, expf(x), exp(x))
OF_FLOATS(op_log, logf(x), log(x))
OF_FLOATS(op_tanh, tanhf(x), tanh(x))
OF_FLOATS(op_sigmoid, 1.0f / (1.0f + expf(-x)), 1.0 / (1.0 + exp(-x)))
OF_FLOATS(op_erf, erff(x), erf(x))
OF_FLOATS(op_relu, x < 0 ? 0 : x, x < 0 ? 0 : x)
OF_FLOATS(op_sin, sinf(x), sin(x))
OF_FLOATS(op_cos, cosf(x), cos(x))
OF_FLOATS(op_log1p, log1pf(x), log1p(x))
OF_FLOATS(op_expm1, expm1f(x), expm1(x))
OF_FLOATS(op_softplus, op_relu(x) + log1pf(expf(-fabsf(x))), op_relu(x) + log1p(exp(-fabs(x))))
OF_FLOATS(op_floor, floorf(x), floor(x))
OF_FLOATS(op_ceil, ceilf(x), ceil(x))
OF_FLOATS(op_round, rintf(x), rint(x))
OF_FLOATS(op_sign, x > 0 ? 1 : x < 0 ? -1 : fabsf(x), x > 0 ? 1 : x < 0 ? -1 : fabs(x))

template <class T> __device__ inline bool op_greater(T a, T b) { return a > b; }
template <class T> __device__ inline bool op_greater_equal(T a, T b) { return a >= b; }
template <class T> __device__ inline bool op_equal(T a, T b) { return a == b; }
// Of bools: or, and. NaN if either is.
template <class T> __device__ inline T op_max(T a, T b) { return a > b || a != a ? a : b; }
template <class T> __device__ inline T op_min(T a, T b) { return a < b || a != a ? a : b; }

#define TWO_FLOATS(name, f, d) \
    __device__ inline float name(float a, float b) { return f; } \
    __device__ inline double name(double a, double b) { return d; }

TWO_FLOATS(op_add, a + b, a + b)
TWO_FLOATS(op_sub, a - b, a - b)
TWO_FLOATS(op_mul, a * b, a * b)
TWO_FLOATS(op_div, a / b, a / b)
TWO_FLOATS(op_pow, powf(a, b), pow(a, b))

const i32 I32_MAX = 0x7fffffff, I32_MIN = -I32_MAX - 1;
const i64 I64_MAX = 0x7fffffffffffffffll, I64_MIN = -I64_MAX - 1;

__device__ inline i32 clamp_i32(i64 x) { return x > I32_MAX ? I32_MAX : x < I32_MIN ? I32_MIN : (i32)x; }

// Integers saturate. A quotient by zero is the end of the range, 0 / 0 is 0.
__device__ inline i32 op_add(i32 a, i32 b) { return clamp_i32((i64)a + b); }
__device__ inline i32 op_sub(i32 a, i32 b) { return clamp_i32((i64)a - b); }
__device__ inline i32 op_mul(i32 a, i32 b) { return clamp_i32((i64)a * b); }
__device__ inline i32 op_div(i32 a, i32 b) {
    if (b == 0) return a > 0 ? I32_MAX : a < 0 ? I32_MIN : 0;
    return clamp_i32((i64)a / b);
}
__device__ inline i64 op_add(i64 a, i64 b) {
    i64 sum = (i64)((u64)a + (u64)b);
    return ((a ^ sum) & (b ^ sum)) < 0 ? (a < 0 ? I64_MIN : I64_MAX) : sum;
}
__device__ inline i64 op_sub(i64 a, i64 b) {
    i64 difference = (i64)((u64)a - (u64)b);
    return ((a ^ b) & (a ^ difference)) < 0 ? (a < 0 ? I64_MIN : I64_MAX) : difference;
}
__device__ inline i64 op_mul(i64 a, i64 b) {
    if (a == 0 || b == 0) return 0;
    i64 product = (i64)((u64)a * (u64)b);
    bool fits = !(a == I64_MIN && b == -1) && !(b == I64_MIN && a == -1) && product / b == a;
    return fits ? product : (a < 0) == (b < 0) ? I64_MAX : I64_MIN;
}
__device__ inline i64 op_div(i64 a, i64 b) {
    if (b == 0) return a > 0 ? I64_MAX : a < 0 ? I64_MIN : 0;
    return a == I64_MIN && b == -1 ? I64_MAX : a / b;
}

// Casts. Floats to integers truncate, and what does not fit is the nearest that does; NaN is 0.
template <class X> __device__ inline float to_f32(X x) { return (float)x; }
template <class X> __device__ inline double to_f64(X x) { return (double)x; }
__device__ inline float to_bf16(float x) { return widen(narrow<bf16>(x)); }
template <class X> __device__ inline float to_bf16(X x) { return widen(narrow<bf16>((double)x)); }
__device__ inline float to_f16(float x) { return widen(narrow<f16>(x)); }
template <class X> __device__ inline float to_f16(X x) { return widen(narrow<f16>((double)x)); }
__device__ inline i32 to_i32(double x) {
    return x != x ? 0 : x >= 2147483647.0 ? I32_MAX : x <= -2147483648.0 ? I32_MIN : (i32)x;
}
__device__ inline i32 to_i32(float x) { return to_i32((double)x); }
__device__ inline i32 to_i32(i64 x) { return clamp_i32(x); }
__device__ inline i32 to_i32(i32 x) { return x; }
__device__ inline i32 to_i32(bool x) { return x; }
__device__ inline i64 to_i64(double x) {
    return x != x ? 0 : x >= 0x1p63 ? I64_MAX : x < -0x1p63 ? I64_MIN : (i64)x;
}
__device__ inline i64 to_i64(float x) { return to_i64((double)x); }
__device__ inline i64 to_i64(i64 x) { return x; }
__device__ inline i64 to_i64(i32 x) { return x; }
__device__ inline i64 to_i64(bool x) { return x; }
__device__ inline i32 clamp_u8(i32 x) { return x < 0 ? 0 : x > 255 ? 255 : x; }
template <class X> __device__ inline i32 to_u8(X x) { return clamp_u8(to_i32(x)); }
template <class X> __device__ inline bool to_bool(X x) { return x != 0; }
