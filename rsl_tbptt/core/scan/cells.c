/* One step of an LSTM or a GRU for N environments without its matrix product, in one pass.
 *
 * All matrices are row-major with one row per environment. `next_starts` and `later_starts` mark
 * the environments whose episode starts with step t + 1 (NULL: none); no value and no gradient, not
 * even NaN, crosses such a start. The docstring of cpu.py has the formulas.
 *
 * REAL (float or double) is the type of state and gates. `operand` is the type of the operands and
 * results of matrix products: bfloat16 with BFLOAT16_OPERANDS, otherwise REAL.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define FOR_EACH_ENV \
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (N * H > 4096)") \
    for (int64_t n = 0; n < N; n++)
#define FOR_EACH_UNIT \
    _Pragma("omp simd") \
    for (int64_t j = 0; j < H; j++)

/* No branches, so that loops over it are vectorised. A polynomial is used below 0.625, above it
 * 1 - 2 / (exp(2 |x|) + 1), both with the coefficients of Moshier's Cephes; NaN stays NaN. */
static inline float tanh_of_float(float x)
{
    const float size = fabsf(x), square = x * x;
    const float small = x + x * square * (-3.33332819422e-1f + square * (1.33314422036e-1f
        + square * (-5.37397155531e-2f + square * (2.06390887954e-2f + square * -5.70498872745e-3f))));

    const float y = 2.0f * (size > 9.1f ? 9.1f : size), round = 12582912.0f; /* 1.5 * 2^23 */
    const float rounded = y * 1.44269504f + round, n = rounded - round;
    const float r = y - n * 0.693359375f + n * 2.12194440e-4f;
    const float mantissa = 1.0f + r + r * r * (5.0000001201e-1f + r * (1.6666665459e-1f
        + r * (4.1665795894e-2f + r * (8.3334519073e-3f + r * (1.3981999507e-3f + r * 1.9875691500e-4f)))));
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    bits = (bits + 127u) << 23; /* 2^n: the low bits of `rounded` hold n */
    float power;
    memcpy(&power, &bits, sizeof power);
    const float large = 1.0f - 2.0f / (mantissa * power + 1.0f);

    return size < 0.625f ? small : copysignf(large, x);
}

#ifdef BFLOAT16_OPERANDS
typedef uint16_t operand;

static inline float from_operand(operand x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
static inline operand to_operand(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return x != x ? 0x7fc0u : bits;
}
#else
typedef REAL operand;
static inline REAL from_operand(operand x) { return x; }
static inline operand to_operand(REAL x) { return x; }
#endif

#define tanh_of(x) _Generic((x), float: tanh_of_float, double: tanh)(x)

static inline REAL sigmoid(REAL x) { return (REAL)0.5 + (REAL)0.5 * tanh_of((REAL)0.5 * x); }

/* Arguments are those of a cell in equations.c. An LSTM has no gates of x alone, and reads h only in
 * its product.
 *
 * product: of i, f, g, o, which `gates` receives activated; it may be the same memory. tanh_c: kept
 * for the gradient. */
void lstm_forward(int64_t N, int64_t H, int threads, int64_t before_stride, int64_t input_stride,
                  const operand *product, REAL *gates, REAL *tanh_c,
                  const REAL *h_before, const REAL *c_before, REAL *c_after, REAL *h,
                  REAL *next_before, operand *next_input, const uint8_t *next_starts)
{
    FOR_EACH_ENV {
        const operand *in_i = product + n * 4 * H, *in_f = in_i + H;
        const operand *in_g = in_f + H, *in_o = in_g + H;
        REAL *i = gates + n * 4 * H, *f = i + H, *g = f + H;
        REAL *o = g + H, *out = h + n * H, *after = c_after + n * H, *tc = tanh_c + n * H;
        const REAL *before = c_before + n * H;
        const int start = next_starts && next_starts[n];
        FOR_EACH_UNIT {
            i[j] = sigmoid(from_operand(in_i[j]));
            f[j] = sigmoid(from_operand(in_f[j]));
            g[j] = tanh_of(from_operand(in_g[j]));
            o[j] = sigmoid(from_operand(in_o[j]));
            const REAL c = f[j] * before[j] + i[j] * g[j];
            after[j] = start ? (REAL)0 : c;
            tc[j] = tanh_of(c);
            out[j] = o[j] * tc[j];
        }
        if (!next_input)
            continue;
        operand *later_input = next_input + n * input_stride;
        FOR_EACH_UNIT later_input[j] = start ? (operand)0 : to_operand(out[j]);
    }
}

/* gates: activated. grads: receives the gradients of what was activated; it may be the same memory.
 * dh_gates: the gradient of h from step t + 1. carried: zeros for h, then the gradient of c, from
 * step t + 1 in, for step t - 1 out. */
void lstm_backward(int64_t N, int64_t H, int threads, int64_t before_stride, const REAL *gates,
                   operand *grads, const REAL *tanh_c, operand *input_grads,
                   const REAL *h_before, const REAL *c_before, const REAL *grad_h,
                   const uint8_t *later_starts, const operand *dh_gates, REAL *carried)
{
    FOR_EACH_ENV {
        const REAL *gate_i = gates + n * 4 * H, *gate_f = gate_i + H;
        const REAL *gate_g = gate_f + H, *gate_o = gate_g + H;
        operand *grad_i = grads + n * 4 * H, *grad_f = grad_i + H;
        operand *grad_g = grad_f + H, *grad_o = grad_g + H;
        REAL *dc = carried + (N + n) * H;
        const REAL *before = c_before + n * H, *grad = grad_h + n * H, *tc = tanh_c + n * H;
        const operand *later = dh_gates + n * H;
        const int start = later_starts && later_starts[n];
        FOR_EACH_UNIT {
            const REAL i = gate_i[j], f = gate_f[j], g = gate_g[j], o = gate_o[j];
            const REAL dh = grad[j] + (start ? (REAL)0 : from_operand(later[j]));
            const REAL d = (start ? (REAL)0 : dc[j]) + dh * o * (1 - tc[j] * tc[j]);
            grad_i[j] = to_operand(d * g * i * (1 - i));
            grad_f[j] = to_operand(d * before[j] * f * (1 - f));
            grad_g[j] = to_operand(d * i * (1 - g * g));
            grad_o[j] = to_operand(dh * tc[j] * o * (1 - o));
            dc[j] = d * f;
        }
    }
}

/* Arguments are those of a cell in equations.c; a GRU has no c, which is not touched.
 *
 * product: of r, z, u, which `gates` receives with r and z activated; it may be the same memory.
 * candidates: n's part of x, replaced by n. next_before and next_input receive h, or zeros, and may
 * be the same memory. */
void gru_forward(int64_t N, int64_t H, int threads, int64_t before_stride, int64_t input_stride,
                 const operand *product, REAL *gates, REAL *candidates, const REAL *h_before,
                 const REAL *c_before, REAL *c_after, REAL *h, REAL *next_before,
                 operand *next_input, const uint8_t *next_starts)
{
    FOR_EACH_ENV {
        const operand *in_r = product + n * 3 * H, *in_z = in_r + H, *in_u = in_z + H;
        REAL *r = gates + n * 3 * H, *z = r + H, *u = z + H;
        REAL *candidate = candidates + n * H, *out = h + n * H;
        const REAL *before = h_before + n * before_stride;
        FOR_EACH_UNIT {
            r[j] = sigmoid(from_operand(in_r[j]));
            z[j] = sigmoid(from_operand(in_z[j]));
            u[j] = from_operand(in_u[j]);
            candidate[j] = tanh_of(candidate[j] + r[j] * u[j]);
            out[j] = candidate[j] + z[j] * (before[j] - candidate[j]);
        }
        if (!next_input)
            continue;
        const int start = next_starts && next_starts[n];
        REAL *later_before = next_before + n * before_stride;
        operand *later_input = next_input + n * input_stride;
        FOR_EACH_UNIT {
            const REAL value = start ? (REAL)0 : out[j];
            later_before[j] = value;
            later_input[j] = to_operand(value);
        }
    }
}

/* gates and candidates: r, z, u and n. grads and candidate_grads: receive the gradients of what was
 * activated, and of u; they may be the same memory. dh_gates: the gradient of h from step t + 1
 * through its gates; dh: the rest of it, for step t - 1 out. */
void gru_backward(int64_t N, int64_t H, int threads, int64_t before_stride, const REAL *gates,
                  operand *grads, const REAL *candidates, operand *candidate_grads,
                  const REAL *h_before, const REAL *c_before, const REAL *grad_h,
                  const uint8_t *later_starts, const operand *dh_gates, REAL *dh)
{
    FOR_EACH_ENV {
        const REAL *gate_r = gates + n * 3 * H, *gate_z = gate_r + H;
        const REAL *gate_u = gate_z + H, *candidate = candidates + n * H;
        operand *grad_r = grads + n * 3 * H, *grad_z = grad_r + H, *grad_u = grad_z + H;
        operand *grad_n = candidate_grads + n * H;
        REAL *dh_n = dh + n * H;
        const REAL *before = h_before + n * before_stride, *grad = grad_h + n * H;
        const operand *of_gates = dh_gates + n * H;
        const int start = later_starts && later_starts[n];
        FOR_EACH_UNIT {
            const REAL r = gate_r[j], z = gate_z[j], u = gate_u[j], c = candidate[j];
            const REAL d = grad[j] + (start ? (REAL)0 : dh_n[j] + from_operand(of_gates[j]));
            const REAL dn = d * (1 - z) * (1 - c * c);
            grad_r[j] = to_operand(dn * u * r * (1 - r));
            grad_z[j] = to_operand(d * (before[j] - c) * z * (1 - z));
            grad_u[j] = to_operand(dn * r);
            grad_n[j] = to_operand(dn);
            dh_n[j] = d * z;
        }
    }
}
