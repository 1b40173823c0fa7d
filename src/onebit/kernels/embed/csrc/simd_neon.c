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

/* Bit i: is the top bit of byte i set? */
static inline uint64_t top_bits(uint8x16x4_t bytes)
{
    static const uint8_t bits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t weights = vld1q_u8(bits);
    for (int i = 0; i < 4; i++) {
        uint8x16_t whole = vreinterpretq_u8_s8(vshrq_n_s8(vreinterpretq_s8_u8(bytes.val[i]), 7));
        bytes.val[i] = vandq_u8(whole, weights);
    }
    uint8x16_t low = vpaddq_u8(bytes.val[0], bytes.val[1]), high = vpaddq_u8(bytes.val[2], bytes.val[3]);
    low = vpaddq_u8(low, high);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(low, low)), 0);
}

/* A place that is not in the table gives 0: so two halves of it can be asked, and or-ed. */
static void classify(struct block *block, const uint8_t *plain, const uint8_t *bytes, size_t count)
{
    uint8_t whole[BLOCK_SIZE];
    bytes = whole_block(whole, bytes, count);
    uint8x16x4_t low = vld1q_u8_x4(plain), high = vld1q_u8_x4(plain + 64), known, signs, spaces;
    for (int i = 0; i < 4; i++) {
        uint8x16_t in = vld1q_u8(bytes + 16 * i);
        uint8x16_t what = vorrq_u8(vqtbl4q_u8(low, in), vqtbl4q_u8(high, veorq_u8(in, vdupq_n_u8(64))));
        known.val[i] = vtstq_u8(what, what);
        signs.val[i] = what;
        spaces.val[i] = vceqq_u8(what, vdupq_n_u8(SIGN));
        vst1q_u8(block->labels + 16 * i, vandq_u8(what, vdupq_n_u8(SIGN - 1)));
    }
    block->known = top_bits(known);
    block->signs = top_bits(signs);
    block->spaces = top_bits(spaces);
}

const struct simd simd_neon = {"neon", usable, pool, NULL, dots, classify};
#else
typedef int not_for_this_machine; /* ISO C wants something in a file */
#endif
