/* The instructions that work on registers alone, each a loop over the lanes that the compiler makes vectors of. Each is
 * one row: its name, its operands, and what it computes, in the words of the PTX ISA. */
#include "tests/equipment/ptx/code.h"

#include "core/dtype.h"
#include "tests/equipment/ptx/machine.h"

#include <fenv.h>
#include <math.h>

typedef uint32_t u32;
typedef int32_t s32;
typedef uint64_t u64;
typedef int64_t s64;
typedef float f32;
typedef double f64;

/* A lane reads nothing that another one writes. */
#define SW_PTX_EACH_LANE(LANES, STATEMENT)                                                                             \
    if ((LANES) == SW_PTX_ALL_LANES) {                                                                                 \
        _Pragma("GCC ivdep") for (int l = 0; l < SW_PTX_LANES; l++) {                                                  \
            STATEMENT;                                                                                                 \
        }                                                                                                              \
    } else {                                                                                                           \
        for (uint32_t left = (LANES); left != 0; left &= left - 1) {                                                   \
            const int l = __builtin_ctz(left);                                                                         \
            STATEMENT;                                                                                                 \
        }                                                                                                              \
    }

#define UNARY(NAME, D, A, VALUE)                                                                                       \
    SW_WIDE_VECTORS static void NAME(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {           \
        D *const to = sw_ptx_register(warp, op->operands[0]);                                                          \
        const A *const as = sw_ptx_register(warp, op->operands[1]);                                                    \
        SW_PTX_EACH_LANE(lanes, const A a = as[l]; to[l] = (D)(VALUE))                                                 \
    }
#define BINARY(NAME, D, A, B, VALUE)                                                                                   \
    SW_WIDE_VECTORS static void NAME(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {           \
        D *const to = sw_ptx_register(warp, op->operands[0]);                                                          \
        const A *const as = sw_ptx_register(warp, op->operands[1]);                                                    \
        const B *const bs = sw_ptx_register(warp, op->operands[2]);                                                    \
        SW_PTX_EACH_LANE(lanes, const A a = as[l]; const B b = bs[l]; to[l] = (D)(VALUE))                              \
    }
#define TERNARY(NAME, D, A, B, C, VALUE)                                                                               \
    SW_WIDE_VECTORS static void NAME(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {           \
        D *const to = sw_ptx_register(warp, op->operands[0]);                                                          \
        const A *const as = sw_ptx_register(warp, op->operands[1]);                                                    \
        const B *const bs = sw_ptx_register(warp, op->operands[2]);                                                    \
        const C *const cs = sw_ptx_register(warp, op->operands[3]);                                                    \
        SW_PTX_EACH_LANE(lanes, const A a = as[l]; const B b = bs[l]; const C c = cs[l]; to[l] = (D)(VALUE))           \
    }

/* NaNs that arithmetic makes are one, as on a GPU. */
static inline f32 one_nan(f32 x) {
    return x != x ? sw_ptx_float(0x7fffffffu) : x;
}

static inline f32 minimum(f32 a, f32 b) {
    return a != a ? one_nan(b) : b != b ? a : a < b || (a == b && signbit(a)) ? a : b;
}

static inline f32 maximum(f32 a, f32 b) {
    return a != a ? one_nan(b) : b != b ? a : a > b || (a == b && !signbit(a)) ? a : b;
}

static inline f32 flushed(f32 x) {
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

static inline f32 saturated(f32 x) {
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; /* NaN gives 0 */
}

static inline s32 to_s32(f32 x) {
    return x != x ? 0 : x >= 0x1p31f ? INT32_MAX : x < -0x1p31f ? INT32_MIN : (s32)x;
}

static inline u32 shifted_left(u32 a, u32 b) {
    return b > 31 ? 0 : a << b;
}

static inline u32 shifted_right(u32 a, u32 b) {
    return b > 31 ? 0 : a >> b;
}

/* `selector` names a byte of the eight for each byte of the result; its highest bit repeats that byte's sign. */
static inline u32 permuted(u32 a, u32 b, u32 selector) {
    const u64 both = (u64)b << 32 | a;
    u32 result = 0;
    for (int i = 0; i < 4; i++) {
        const u32 select = selector >> (4 * i) & 15;
        const u32 byte = (u32)(both >> (select % 8 * 8)) & 255;
        result |= (select < 8 ? byte : byte > 127 ? 255u : 0u) << (8 * i);
    }
    return result;
}

static inline u32 inserted(u32 a, u32 b, u32 at, u32 bits) {
    const u32 mask = at > 31 || bits == 0 ? 0 : shifted_left(bits > 31 ? UINT32_MAX : (1u << bits) - 1, at);
    return (b & ~mask) | (shifted_left(a, at) & mask);
}

/* For a processor of no known age, the compiler's own would be a call of a function for each lane. */
static inline u32 bits_set(u32 a) {
    a -= a >> 1 & 0x55555555u;
    a = (a & 0x33333333u) + (a >> 2 & 0x33333333u);
    return ((a + (a >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24;
}

/* Division by zero has all bits set on a GPU. */
BINARY(div_u32, u32, u32, u32, b == 0 ? UINT32_MAX : a / b)
BINARY(rem_u32, u32, u32, u32, b == 0 ? UINT32_MAX : a % b)
BINARY(div_s32, s32, s32, s32, b == 0 ? -1 : (s64)a / b)
BINARY(rem_s32, s32, s32, s32, b == 0 ? -1 : (s64)a % b)
BINARY(div_u64, u64, u64, u64, b == 0 ? UINT64_MAX : a / b)
BINARY(rem_u64, u64, u64, u64, b == 0 ? UINT64_MAX : a % b)
BINARY(div_s64, s64, s64, s64, b == 0 ? -1 : b == -1 ? (s64)(0 - (u64)a) : a / b)
BINARY(rem_s64, s64, s64, s64, b == 0 ? -1 : b == -1 ? 0 : a % b)

UNARY(move_32, u32, u32, a)
UNARY(move_64, u64, u64, a)
UNARY(not_32, u32, u32, ~a)
UNARY(not_64, u64, u64, ~a)
UNARY(not_pred, u32, u32, a ^ 1)
UNARY(neg_32, u32, u32, 0 - a)
UNARY(neg_64, u64, u64, 0 - a)
UNARY(popc_32, u32, u32, bits_set(a))
BINARY(add_32, u32, u32, u32, a + b)
BINARY(add_64, u64, u64, u64, a + b)
BINARY(add_16, u32, u32, u32, (a + b) & 0xffff)
BINARY(sub_32, u32, u32, u32, a - b)
BINARY(sub_64, u64, u64, u64, a - b)
BINARY(mul_lo_32, u32, u32, u32, a *b)
BINARY(mul_lo_64, u64, u64, u64, a *b)
BINARY(mul_hi_u32, u32, u32, u32, (u64)a *b >> 32)
BINARY(mul_hi_s32, s32, s32, s32, (s32)((s64)a *b >> 32))
BINARY(mul_wide_u32, u64, u32, u32, (u64)a *b)
BINARY(mul_wide_s32, s64, s32, s32, (s64)a *b)
TERNARY(mad_lo_32, u32, u32, u32, u32, a *b + c)
TERNARY(mad_wide_s32, u64, s32, s32, u64, (u64)((s64)a *b) + c)
TERNARY(mad_wide_u32, u64, u32, u32, u64, (u64)a *b + c)
BINARY(and_32, u32, u32, u32, a &b)
BINARY(or_32, u32, u32, u32, a | b)
BINARY(xor_32, u32, u32, u32, a ^ b)
BINARY(and_64, u64, u64, u64, a &b)
BINARY(or_64, u64, u64, u64, a | b)
BINARY(xor_64, u64, u64, u64, a ^ b)
BINARY(shl_32, u32, u32, u32, shifted_left(a, b))
BINARY(shl_16, u32, u32, u32, shifted_left(a, b) & 0xffff)
BINARY(shl_64, u64, u64, u32, b > 63 ? 0 : a << b)
BINARY(shr_u32, u32, u32, u32, shifted_right(a, b))
BINARY(shr_s32, s32, s32, u32, a >> (b > 31 ? 31 : b))
BINARY(shr_u64, u64, u64, u32, b > 63 ? 0 : a >> b)
BINARY(shr_s64, s64, s64, u32, a >> (b > 63 ? 63 : b))
BINARY(min_u32, u32, u32, u32, a < b ? a : b)
BINARY(max_u32, u32, u32, u32, a > b ? a : b)
BINARY(min_s32, s32, s32, s32, a < b ? a : b)
BINARY(max_s32, s32, s32, s32, a > b ? a : b)
BINARY(min_u64, u64, u64, u64, a < b ? a : b)
BINARY(max_u64, u64, u64, u64, a > b ? a : b)
BINARY(min_s64, s64, s64, s64, a < b ? a : b)
BINARY(max_s64, s64, s64, s64, a > b ? a : b)
TERNARY(prmt_b32, u32, u32, u32, u32, permuted(a, b, c))
TERNARY(select_32, u32, u32, u32, u32, c != 0 ? a : b)
TERNARY(select_64, u64, u64, u64, u32, c != 0 ? a : b)

static void bfi_b32(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    u32 *const to = sw_ptx_register(warp, op->operands[0]);
    const u32 *const a = sw_ptx_register(warp, op->operands[1]), *const b = sw_ptx_register(warp, op->operands[2]);
    const u32 *const at = sw_ptx_register(warp, op->operands[3]), *const bits = sw_ptx_register(warp, op->operands[4]);
    SW_PTX_EACH_LANE(lanes, to[l] = inserted(a[l], b[l], at[l], bits[l]))
}

UNARY(neg_f32, u32, u32, a ^ 0x80000000u)
UNARY(abs_f32, u32, u32, a & 0x7fffffffu)
UNARY(abs_f64, u64, u64, a &UINT64_C(0x7fffffffffffffff))
UNARY(sqrt_f32, f32, f32, one_nan(sqrtf(a)))
UNARY(rcp_f32, f32, f32, one_nan(1.0f / a))
UNARY(rcp_approx_ftz, f32, f32, one_nan(flushed(1.0f / flushed(a))))
UNARY(ex2_approx, f32, f32, one_nan(exp2f(a)))
UNARY(ex2_approx_ftz, f32, f32, one_nan(flushed(exp2f(flushed(a)))))
UNARY(lg2_approx_ftz, f32, f32, one_nan(log2f(flushed(a))))
BINARY(add_f32, f32, f32, f32, one_nan(a + b))
BINARY(sub_f32, f32, f32, f32, one_nan(a - b))
BINARY(mul_f32, f32, f32, f32, one_nan(a *b))
BINARY(div_f32, f32, f32, f32, one_nan(a / b))
BINARY(min_f32, f32, f32, f32, minimum(a, b))
BINARY(max_f32, f32, f32, f32, maximum(a, b))
BINARY(copysign_f32, f32, f32, f32, copysignf(b, a))
TERNARY(fma_f32, f32, f32, f32, f32, one_nan(fmaf(a, b, c)))
UNARY(neg_f64, f64, f64, -a)
UNARY(sqrt_f64, f64, f64, sqrt(a))
UNARY(rcp_f64, f64, f64, 1.0 / a)
BINARY(max_f64, f64, f64, f64, fmax(a, b))
BINARY(add_f64, f64, f64, f64, a + b)
BINARY(sub_f64, f64, f64, f64, a - b)
BINARY(mul_f64, f64, f64, f64, a *b)
BINARY(div_f64, f64, f64, f64, a / b)
TERNARY(fma_f64, f64, f64, f64, f64, fma(a, b, c))

static void fma_rm_f32(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    volatile f32 *const to = sw_ptx_register(warp, op->operands[0]);
    const volatile f32 *const a = sw_ptx_register(warp, op->operands[1]), *const b =
                                                                              sw_ptx_register(warp, op->operands[2]);
    const volatile f32 *const c = sw_ptx_register(warp, op->operands[3]);
    const int kept = fegetround();
    fesetround(FE_DOWNWARD);
    SW_PTX_EACH_LANE(lanes, to[l] = fmaf(a[l], b[l], c[l]))
    fesetround(kept);
    SW_PTX_EACH_LANE(lanes, to[l] = one_nan(to[l]))
}

UNARY(cvt_low_16, u32, u32, a & 0xffff)
UNARY(cvt_low_8, u32, u32, a & 0xff)
UNARY(cvt_s16_s8, u32, u32, (u32)(s32)(int8_t)a & 0xffff)
UNARY(cvt_s32_s8, s32, u32, (int8_t)a)
UNARY(cvt_s32_s16, s32, u32, (int16_t)a)
UNARY(cvt_u64_u32, u64, u32, a)
UNARY(cvt_u64_u16, u64, u32, a & 0xffff)
UNARY(cvt_s64_s32, s64, s32, a)
UNARY(cvt_32_64, u32, u64, a)
UNARY(cvt_16_64, u32, u64, a & 0xffff)
UNARY(cvt_f32_s16, f32, u32, (int16_t)a)
UNARY(cvt_f32_u16, f32, u32, a & 0xffff)
UNARY(cvt_f32_s32, f32, s32, a)
UNARY(cvt_f32_u32, f32, u32, a)
UNARY(cvt_f32_s64, f32, s64, a)
UNARY(cvt_f32_u64, f32, u64, a)
UNARY(cvt_f64_f32, f64, f32, a)
UNARY(cvt_f64_s32, f64, s32, a)
UNARY(cvt_f64_s64, f64, s64, a)
UNARY(cvt_f32_f64, f32, f64, one_nan((f32)a))
UNARY(cvt_sat_f32, f32, f32, saturated(a))
UNARY(cvt_rzi_f32, f32, f32, one_nan(truncf(a)))
UNARY(cvt_rni_f32, f32, f32, one_nan(rintf(a)))
UNARY(cvt_rzi_s32, s32, f32, to_s32(truncf(a)))
UNARY(cvt_rni_s32, s32, f32, to_s32(rintf(a)))
UNARY(cvt_f32_f16, f32, u32, sw_f16_to_f32((uint16_t)a))
UNARY(cvt_f32_bf16, f32, u32, sw_bf16_to_f32((uint16_t)a))
UNARY(cvt_f16_f32, u32, f32, a != a ? 0x7fff : sw_f32_to_f16(a))
UNARY(cvt_bf16_f32, u32, f32, a != a ? 0x7fff : sw_f32_to_bf16(a))
/* The first operand is the upper half. */
BINARY(cvt_f16x2, u32, f32, f32, (u32)(a != a ? 0x7fff : sw_f32_to_f16(a)) << 16 | (b != b ? 0x7fff : sw_f32_to_f16(b)))
BINARY(cvt_bf16x2, u32, f32, f32,
       (u32)(a != a ? 0x7fff : sw_f32_to_bf16(a)) << 16 | (b != b ? 0x7fff : sw_f32_to_bf16(b)))

/* Comparisons: those with a u at the end are true for NaN. */
#define COMPARISONS(TYPE, T)                                                                                           \
    BINARY(eq_##TYPE, u32, T, T, a == b)                                                                               \
    BINARY(lt_##TYPE, u32, T, T, a < b)                                                                                \
    BINARY(le_##TYPE, u32, T, T, a <= b)                                                                               \
    BINARY(gt_##TYPE, u32, T, T, a > b)                                                                                \
    BINARY(ge_##TYPE, u32, T, T, a >= b)
#define UNORDERED_COMPARISONS(TYPE, T)                                                                                 \
    BINARY(equ_##TYPE, u32, T, T, !(a < b || a > b))                                                                   \
    BINARY(neu_##TYPE, u32, T, T, a != b)                                                                              \
    BINARY(ltu_##TYPE, u32, T, T, !(a >= b))                                                                           \
    BINARY(leu_##TYPE, u32, T, T, !(a > b))                                                                            \
    BINARY(gtu_##TYPE, u32, T, T, !(a <= b))                                                                           \
    BINARY(geu_##TYPE, u32, T, T, !(a < b))                                                                            \
    BINARY(nan_##TYPE, u32, T, T, a != a || b != b)                                                                    \
    BINARY(num_##TYPE, u32, T, T, a == a && b == b)
/* Registers of 16 bits have zeros above. */
#define SHORT_COMPARISON(NAME, OPERATOR) BINARY(NAME##_s16, u32, u32, u32, (int16_t)a OPERATOR(int16_t) b)
COMPARISONS(s32, s32)
COMPARISONS(u32, u32)
COMPARISONS(s64, s64)
COMPARISONS(u64, u64)
COMPARISONS(f32, f32)
COMPARISONS(f64, f64)
UNORDERED_COMPARISONS(f32, f32)
UNORDERED_COMPARISONS(f64, f64)
BINARY(ne_u32, u32, u32, u32, a != b)
BINARY(ne_u64, u32, u64, u64, a != b)
SHORT_COMPARISON(lt, <)
SHORT_COMPARISON(le, <=)
SHORT_COMPARISON(gt, >)
SHORT_COMPARISON(ge, >=)

/* Ordered "not equal" is false for NaN. */
BINARY(ordered_ne_f32, u32, f32, f32, a<b || a> b)
BINARY(ordered_ne_f64, u32, f64, f64, a<b || a> b)

#define SETP_ROWS(TYPE, WIDE)                                                                                          \
    {"setp.lt." #TYPE, "p=" WIDE, lt_##TYPE}, {"setp.le." #TYPE, "p=" WIDE, le_##TYPE},                                \
        {"setp.gt." #TYPE, "p=" WIDE, gt_##TYPE}, {"setp.ge." #TYPE, "p=" WIDE, ge_##TYPE}, {                          \
        "setp.eq." #TYPE, "p=" WIDE, eq_##TYPE                                                                         \
    }
#define UNORDERED_ROWS(TYPE, WIDE)                                                                                     \
    {"setp.ltu." #TYPE, "p=" WIDE, ltu_##TYPE}, {"setp.leu." #TYPE, "p=" WIDE, leu_##TYPE},                            \
        {"setp.gtu." #TYPE, "p=" WIDE, gtu_##TYPE}, {"setp.geu." #TYPE, "p=" WIDE, geu_##TYPE},                        \
        {"setp.equ." #TYPE, "p=" WIDE, equ_##TYPE}, {"setp.neu." #TYPE, "p=" WIDE, neu_##TYPE},                        \
        {"setp.nan." #TYPE, "p=" WIDE, nan_##TYPE}, {                                                                  \
        "setp.num." #TYPE, "p=" WIDE, num_##TYPE                                                                       \
    }

const struct sw_ptx_row sw_ptx_lane_rows[] = {
    {"mov.b32", "4=4", move_32},
    {"mov.u32", "4=4", move_32},
    {"mov.f32", "4=4", move_32},
    {"mov.b64", "8=8", move_64},
    {"mov.u64", "8=8", move_64},
    {"mov.f64", "8=8", move_64},
    {"mov.u16", "2=2", move_32},
    {"mov.b16", "2=2", move_32},
    {"mov.pred", "p=p", move_32},
    {"cvta.to.global.u64", "8=8", move_64},
    {"add.s16", "2=22", add_16},
    {"add.u16", "2=22", add_16},
    {"add.s32", "4=44", add_32},
    {"add.u32", "4=44", add_32},
    {"add.s64", "8=88", add_64},
    {"add.u64", "8=88", add_64},
    {"sub.s32", "4=44", sub_32},
    {"sub.u32", "4=44", sub_32},
    {"sub.s64", "8=88", sub_64},
    {"sub.u64", "8=88", sub_64},
    {"mul.lo.s32", "4=44", mul_lo_32},
    {"mul.lo.u32", "4=44", mul_lo_32},
    {"mul.hi.u32", "4=44", mul_hi_u32},
    {"mul.hi.s32", "4=44", mul_hi_s32},
    {"mul.lo.s64", "8=88", mul_lo_64},
    {"mul.lo.u64", "8=88", mul_lo_64},
    {"mul.wide.u32", "8=44", mul_wide_u32},
    {"mul.wide.s32", "8=44", mul_wide_s32},
    {"mad.lo.s32", "4=444", mad_lo_32},
    {"mad.lo.u32", "4=444", mad_lo_32},
    {"mad.wide.s32", "8=448", mad_wide_s32},
    {"mad.wide.u32", "8=448", mad_wide_u32},
    {"div.u32", "4=44", div_u32},
    {"div.s32", "4=44", div_s32},
    {"div.u64", "8=88", div_u64},
    {"div.s64", "8=88", div_s64},
    {"rem.u32", "4=44", rem_u32},
    {"rem.s32", "4=44", rem_s32},
    {"rem.u64", "8=88", rem_u64},
    {"rem.s64", "8=88", rem_s64},
    {"neg.s32", "4=4", neg_32},
    {"neg.s64", "8=8", neg_64},
    {"not.b32", "4=4", not_32},
    {"not.b64", "8=8", not_64},
    {"not.pred", "p=p", not_pred},
    {"and.b16", "2=22", and_32},
    {"or.b16", "2=22", or_32},
    {"xor.b16", "2=22", xor_32},
    {"and.b32", "4=44", and_32},
    {"or.b32", "4=44", or_32},
    {"xor.b32", "4=44", xor_32},
    {"and.b64", "8=88", and_64},
    {"or.b64", "8=88", or_64},
    {"xor.b64", "8=88", xor_64},
    {"and.pred", "p=pp", and_32},
    {"or.pred", "p=pp", or_32},
    {"xor.pred", "p=pp", xor_32},
    {"shl.b16", "2=24", shl_16},
    {"shr.u16", "2=24", shr_u32},
    {"shl.b32", "4=44", shl_32},
    {"shr.u32", "4=44", shr_u32},
    {"shr.b32", "4=44", shr_u32},
    {"shr.s32", "4=44", shr_s32},
    {"shl.b64", "8=84", shl_64},
    {"shr.u64", "8=84", shr_u64},
    {"shr.b64", "8=84", shr_u64},
    {"shr.s64", "8=84", shr_s64},
    {"min.u32", "4=44", min_u32},
    {"max.u32", "4=44", max_u32},
    {"min.s32", "4=44", min_s32},
    {"max.s32", "4=44", max_s32},
    {"min.u64", "8=88", min_u64},
    {"max.u64", "8=88", max_u64},
    {"min.s64", "8=88", min_s64},
    {"max.s64", "8=88", max_s64},
    {"prmt.b32", "4=444", prmt_b32},
    {"bfi.b32", "4=4444", bfi_b32},
    {"popc.b32", "4=4", popc_32},
    {"selp.b32", "4=44p", select_32},
    {"selp.u32", "4=44p", select_32},
    {"selp.s32", "4=44p", select_32},
    {"selp.f32", "4=44p", select_32},
    {"selp.b16", "2=22p", select_32},
    {"selp.u16", "2=22p", select_32},
    {"selp.b64", "8=88p", select_64},
    {"selp.u64", "8=88p", select_64},
    {"selp.s64", "8=88p", select_64},
    {"selp.f64", "8=88p", select_64},
    {"neg.f32", "4=4", neg_f32},
    {"abs.f32", "4=4", abs_f32},
    {"abs.f64", "8=8", abs_f64},
    {"sqrt.rn.f32", "4=4", sqrt_f32},
    {"rcp.rn.f32", "4=4", rcp_f32},
    {"rcp.approx.ftz.f32", "4=4", rcp_approx_ftz},
    {"ex2.approx.f32", "4=4", ex2_approx},
    {"ex2.approx.ftz.f32", "4=4", ex2_approx_ftz},
    {"lg2.approx.ftz.f32", "4=4", lg2_approx_ftz},
    {"add.rn.f32", "4=44", add_f32},
    {"add.f32", "4=44", add_f32},
    {"sub.rn.f32", "4=44", sub_f32},
    {"sub.f32", "4=44", sub_f32},
    {"mul.rn.f32", "4=44", mul_f32},
    {"mul.f32", "4=44", mul_f32},
    {"div.rn.f32", "4=44", div_f32},
    {"min.f32", "4=44", min_f32},
    {"max.f32", "4=44", max_f32},
    {"copysign.f32", "4=44", copysign_f32},
    {"fma.rn.f32", "4=444", fma_f32},
    {"fma.rm.f32", "4=444", fma_rm_f32},
    {"neg.f64", "8=8", neg_f64},
    {"add.rn.f64", "8=88", add_f64},
    {"add.f64", "8=88", add_f64},
    {"sub.rn.f64", "8=88", sub_f64},
    {"sub.f64", "8=88", sub_f64},
    {"mul.rn.f64", "8=88", mul_f64},
    {"mul.f64", "8=88", mul_f64},
    {"div.rn.f64", "8=88", div_f64},
    {"sqrt.rn.f64", "8=8", sqrt_f64},
    {"rcp.rn.f64", "8=8", rcp_f64},
    {"max.f64", "8=88", max_f64},
    {"fma.rn.f64", "8=888", fma_f64},
    {"cvt.u16.u32", "2=4", cvt_low_16},
    {"cvt.s16.s32", "2=4", cvt_low_16},
    {"cvt.u8.u32", "2=4", cvt_low_8},
    {"cvt.u32.u16", "4=2", move_32},
    {"cvt.s16.s8", "2=2", cvt_s16_s8},
    {"cvt.s32.s8", "4=4", cvt_s32_s8},
    {"cvt.s32.s16", "4=2", cvt_s32_s16},
    {"cvt.u64.u16", "8=2", cvt_u64_u16},
    {"cvt.u64.u32", "8=4", cvt_u64_u32},
    {"cvt.s64.s32", "8=4", cvt_s64_s32},
    {"cvt.u32.u64", "4=8", cvt_32_64},
    {"cvt.u16.u64", "2=8", cvt_16_64},
    {"cvt.rn.f32.s16", "4=2", cvt_f32_s16},
    {"cvt.rn.f32.u16", "4=2", cvt_f32_u16},
    {"cvt.rn.f32.s32", "4=4", cvt_f32_s32},
    {"cvt.rn.f32.u32", "4=4", cvt_f32_u32},
    {"cvt.rn.f32.s64", "4=8", cvt_f32_s64},
    {"cvt.rn.f32.u64", "4=8", cvt_f32_u64},
    {"cvt.rn.f32.f64", "4=8", cvt_f32_f64},
    {"cvt.f64.f32", "8=4", cvt_f64_f32},
    {"cvt.rn.f64.s32", "8=4", cvt_f64_s32},
    {"cvt.rn.f64.s64", "8=8", cvt_f64_s64},
    {"cvt.sat.f32.f32", "4=4", cvt_sat_f32},
    {"cvt.rzi.f32.f32", "4=4", cvt_rzi_f32},
    {"cvt.rni.f32.f32", "4=4", cvt_rni_f32},
    {"cvt.rzi.s32.f32", "4=4", cvt_rzi_s32},
    {"cvt.rni.s32.f32", "4=4", cvt_rni_s32},
    {"cvt.f32.f16", "4=2", cvt_f32_f16},
    {"cvt.f32.bf16", "4=2", cvt_f32_bf16},
    {"cvt.rn.f16.f32", "2=4", cvt_f16_f32},
    {"cvt.rn.bf16.f32", "2=4", cvt_bf16_f32},
    {"cvt.rn.f16x2.f32", "4=44", cvt_f16x2},
    {"cvt.rn.bf16x2.f32", "4=44", cvt_bf16x2},
    SETP_ROWS(s32, "44"),
    SETP_ROWS(u32, "44"),
    SETP_ROWS(s64, "88"),
    SETP_ROWS(u64, "88"),
    SETP_ROWS(f32, "44"),
    SETP_ROWS(f64, "88"),
    UNORDERED_ROWS(f32, "44"),
    UNORDERED_ROWS(f64, "88"),
    {"setp.ne.f32", "p=44", ordered_ne_f32},
    {"setp.ne.f64", "p=88", ordered_ne_f64},
    {"setp.ne.s32", "p=44", ne_u32},
    {"setp.ne.u32", "p=44", ne_u32},
    {"setp.ne.b32", "p=44", ne_u32},
    {"setp.eq.b32", "p=44", eq_u32},
    {"setp.ne.s64", "p=88", ne_u64},
    {"setp.ne.u64", "p=88", ne_u64},
    {"setp.ne.b64", "p=88", ne_u64},
    {"setp.eq.b64", "p=88", eq_u64},
    {"setp.eq.s16", "p=22", eq_u32},
    {"setp.ne.s16", "p=22", ne_u32},
    {"setp.eq.b16", "p=22", eq_u32},
    {"setp.ne.b16", "p=22", ne_u32},
    {"setp.lt.u16", "p=22", lt_u32},
    {"setp.lt.s16", "p=22", lt_s16},
    {"setp.le.s16", "p=22", le_s16},
    {"setp.gt.s16", "p=22", gt_s16},
    {"setp.ge.s16", "p=22", ge_s16},
    {0},
};
