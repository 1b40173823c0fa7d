/* Vector operations for lora_tile.h: AVX2 + FMA + F16C. 8 floats a register, 16 registers: a tile of 6 x 16. */

#include <immintrin.h>

#define ISA(name) name##_avx2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define VW 8
#define NV 2
#define MR 6

#define vec __m256
#define v_zero() _mm256_setzero_ps()
#define v_set(x) _mm256_set1_ps(x)
#define v_load(p) _mm256_loadu_ps(p)
#define v_store(p, x) _mm256_storeu_ps(p, x)
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define v_mul(a, b) _mm256_mul_ps(a, b)
#define v_add(a, b) _mm256_add_ps(a, b)
#define v_sub(a, b) _mm256_sub_ps(a, b)

TARGET static inline vec ISA(v_plain_nan)(vec x) {
    return _mm256_blendv_ps(x, _mm256_set1_ps(PLAIN_NAN), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

TARGET static inline vec ISA(v_round_bf16)(vec x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    return _mm256_castsi256_ps(_mm256_and_si256(up, _mm256_set1_epi32((int)0xffff0000u)));
}

TARGET static inline vec ISA(v_round_f16)(vec x) {
    return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

TARGET static inline vec ISA(v_load_bf16)(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}

TARGET static inline void ISA(v_store_bf16)(uint16_t *p, vec x) {
    const __m256i upper = _mm256_srli_epi32(_mm256_castps_si256(x), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0x08);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(packed));
}

TARGET static inline vec ISA(v_load_f16)(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

TARGET static inline void ISA(v_store_f16)(uint16_t *p, vec x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
