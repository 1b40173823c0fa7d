/* Vector operations for lora_tile.h: NEON, which every 64-bit ARM has. 4 floats a register, 32 registers: 6 x 16. */

#include <arm_neon.h>

#define ISA(name) name##_neon
#define TARGET
#define VW 4
#define NV 4
#define MR 6

#define vec float32x4_t
#define v_zero() vdupq_n_f32(0.0f)
#define v_set(x) vdupq_n_f32(x)
#define v_load(p) vld1q_f32(p)
#define v_store(p, x) vst1q_f32(p, x)
#define v_fma(a, b, c) vfmaq_f32(c, a, b)
#define v_mul(a, b) vmulq_f32(a, b)
#define v_add(a, b) vaddq_f32(a, b)
#define v_sub(a, b) vsubq_f32(a, b)

TARGET static inline vec ISA(v_plain_nan)(vec x) { return vbslq_f32(vceqq_f32(x, x), x, vdupq_n_f32(PLAIN_NAN)); }

TARGET static inline vec ISA(v_round_bf16)(vec x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    return vreinterpretq_f32_u32(vandq_u32(up, vdupq_n_u32(0xffff0000u)));
}

TARGET static inline vec ISA(v_round_f16)(vec x) { return vcvt_f32_f16(vcvt_f16_f32(x)); }

TARGET static inline vec ISA(v_load_bf16)(const uint16_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

TARGET static inline void ISA(v_store_bf16)(uint16_t *p, vec x) {
    vst1_u16(p, vshrn_n_u32(vreinterpretq_u32_f32(x), 16));
}

TARGET static inline vec ISA(v_load_f16)(const uint16_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

TARGET static inline void ISA(v_store_f16)(uint16_t *p, vec x) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}
