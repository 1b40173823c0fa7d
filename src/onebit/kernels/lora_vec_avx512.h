/* Vector operations for lora_tile.h: AVX-512F. 16 floats a register, 32 registers: a tile of 6 x 64.
 * With USE_AVX512_BF16 defined, for processors that also have a dot product of bfloat16 pairs. */

#include <immintrin.h>

#ifdef USE_AVX512_BF16
#define ISA(name) name##_avx512bf16
#define TARGET __attribute__((target("avx512f,avx512bf16")))
#define v_dot(acc, a, b) _mm512_dpbf16_ps(acc, (__m512bh)(a), (__m512bh)(b)) /* acc + a0 b0 + a1 b1, in each lane */
#else
#define ISA(name) name##_avx512
#define TARGET __attribute__((target("avx512f")))
#endif
#define VW 16
#define NV 4
#define MR 6

#define vec __m512
#define v_zero() _mm512_setzero_ps()
#define v_set(x) _mm512_set1_ps(x)
#define v_load(p) _mm512_loadu_ps(p)
#define v_store(p, x) _mm512_storeu_ps(p, x)
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_mul(a, b) _mm512_mul_ps(a, b)
#define v_add(a, b) _mm512_add_ps(a, b)
#define v_sub(a, b) _mm512_sub_ps(a, b)

TARGET static inline vec ISA(v_plain_nan)(vec x) {
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_ps(PLAIN_NAN));
}

TARGET static inline vec ISA(v_round_bf16)(vec x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_srli_epi32(_mm512_slli_epi32(bits, 15), 31); /* to test the bit would occupy an FMA unit */
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000u)));
}

TARGET static inline vec ISA(v_round_f16)(vec x) {
    return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

TARGET static inline vec ISA(v_load_bf16)(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}

TARGET static inline void ISA(v_store_bf16)(uint16_t *p, vec x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(x), 16)));
}

TARGET static inline vec ISA(v_load_f16)(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

TARGET static inline void ISA(v_store_f16)(uint16_t *p, vec x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
