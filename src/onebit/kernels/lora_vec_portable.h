/* Vector operations for lora_tile.h: plain C. One float a "register"; fmaf rounds once, with or without hardware. */

#define ISA(name) name##_portable
#define TARGET
#define VW 1
#define NV 16
#define MR 6

#define vec float
#define v_zero() 0.0f
#define v_set(x) (x)
#define v_load(p) (*(p))
#define v_store(p, x) (*(p) = (x))
#define v_fma(a, b, c) fmaf(a, b, c)
#define v_mul(a, b) ((a) * (b))
#define v_add(a, b) ((a) + (b))
#define v_sub(a, b) ((a) - (b))

TARGET static inline vec ISA(v_plain_nan)(vec x) { return plain_nan(x); }
TARGET static inline vec ISA(v_round_bf16)(vec x) { return bf16_to_f32(f32_to_bf16(x)); }
TARGET static inline vec ISA(v_round_f16)(vec x) { return f16_to_f32(f32_to_f16(x)); }
TARGET static inline vec ISA(v_load_bf16)(const uint16_t *p) { return bf16_to_f32(*p); }
TARGET static inline void ISA(v_store_bf16)(uint16_t *p, vec x) { *p = (uint16_t)(bits_of_f32(x) >> 16); }
TARGET static inline vec ISA(v_load_f16)(const uint16_t *p) { return f16_to_f32(*p); }
TARGET static inline void ISA(v_store_f16)(uint16_t *p, vec x) { *p = f32_to_f16(x); }
