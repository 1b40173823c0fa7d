#if defined(__aarch64__)
#include "simd.h"

#include <arm_neon.h>

enum { LANES = 4, REGISTERS = 16, BLOCK = LANES * REGISTERS }; /* 32 registers there: 16 totals leave room */

static int usable(void)
{
    return 1; /* part of the base instruction set */
}

static inline float32x4x4_t floats_at(const int8_t *row)
{
    int8x16_t bytes = vld1q_s8(row);
    int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    return (float32x4x4_t){{
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
        vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
        vcvtq_f32_s32(vmovl_s16(vget_high_s16(high))),
    }};
}

static void pool(float *total, const int8_t *rows, const float *scales, size_t dims, const uint32_t *ids,
                 size_t count)
{
    size_t c = 0;
    for (; c + BLOCK <= dims; c += BLOCK) {
        float32x4_t sums[REGISTERS];
        for (int i = 0; i < REGISTERS; i++)
            sums[i] = vld1q_f32(total + c + LANES * i);
        for (size_t t = 0; t < count; t++) {
            const int8_t *row = rows + (size_t)ids[t] * dims + c;
            float32x4_t scale = vdupq_n_f32(scales[ids[t]]);
            for (int i = 0; i < REGISTERS; i += 4) {
                float32x4x4_t values = floats_at(row + LANES * i);
                for (int j = 0; j < 4; j++) /* vmlaq would be fused */
                    sums[i + j] = vaddq_f32(sums[i + j], vmulq_f32(values.val[j], scale));
            }
        }
        for (int i = 0; i < REGISTERS; i++)
            vst1q_f32(total + c + LANES * i, sums[i]);
    }
    pool_columns(total, rows, scales, dims, ids, count, c);
}

static void dots(int32_t *out, const int8_t *rows, size_t dims, size_t count, const int16_t *query)
{
    for (size_t r = 0; r < count; r++) {
        const int8_t *row = rows + r * dims;
        int32x4_t a = vdupq_n_s32(0), b = a;
        size_t c = 0;
        for (; c + 16 <= dims; c += 16) {
            int8x16_t bytes = vld1q_s8(row + c);
            int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
            int16x8_t q0 = vld1q_s16(query + c), q1 = vld1q_s16(query + c + 8);
            a = vmlal_s16(a, vget_low_s16(low), vget_low_s16(q0));
            b = vmlal_s16(b, vget_high_s16(low), vget_high_s16(q0));
            a = vmlal_s16(a, vget_low_s16(high), vget_low_s16(q1));
            b = vmlal_s16(b, vget_high_s16(high), vget_high_s16(q1));
        }
        out[r] = vaddvq_s32(vaddq_s32(a, b)) + dot_columns(row, query, dims, c);
    }
}

const struct simd simd_neon = {"neon", usable, pool, dots};
#else
typedef int not_for_this_machine; /* ISO C wants something in a file */
#endif
