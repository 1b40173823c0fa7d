/* The AVX-512 intrinsics that simd_avx512.c uses, in plain C after Intel's descriptions, so that its arithmetic can be
 * checked on machines without them (scripts/check-simd). Only its arithmetic: not that the real instructions run. */
#include <stdint.h>
#include <string.h>

typedef int64_t __m128i __attribute__((vector_size(16), may_alias));
typedef int64_t __m256i __attribute__((vector_size(32), may_alias));
typedef float __m512 __attribute__((vector_size(64), may_alias));
typedef int64_t __m512i __attribute__((vector_size(64), may_alias));

typedef uint64_t __mmask64;

#define LOAD(type, from) ({ type value; memcpy(&value, from, sizeof value); value; })
#define EACH(count, target, expression) ({ for (int i = 0; i < (count); i++) (target)[i] = (expression); })

static inline __m128i _mm_loadu_si128(const __m128i *p) { return LOAD(__m128i, p); }
static inline __m256i _mm256_loadu_si256(const __m256i *p) { return LOAD(__m256i, p); }
static inline __m512i _mm512_loadu_si512(const void *p) { return LOAD(__m512i, p); }
static inline __m512 _mm512_loadu_ps(const float *p) { return LOAD(__m512, p); }
static inline void _mm512_storeu_ps(float *p, __m512 a) { memcpy(p, &a, sizeof a); }
static inline void _mm512_stream_ps(float *p, __m512 a) { memcpy(p, &a, sizeof a); }
static inline __m512i _mm512_setzero_si512(void) { return (__m512i){0}; }
static inline __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
static inline __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }

static inline __m512 _mm512_set1_ps(float x)
{
    __m512 r;
    EACH(16, (float *)&r, x);
    return r;
}

static inline __m512i _mm512_cvtepi8_epi32(__m128i a)
{
    __m512i r;
    EACH(16, (int32_t *)&r, ((const int8_t *)&a)[i]);
    return r;
}

static inline __m512i _mm512_cvtepi8_epi16(__m256i a)
{
    __m512i r;
    EACH(32, (int16_t *)&r, ((const int8_t *)&a)[i]);
    return r;
}

static inline __m512 _mm512_cvtepi32_ps(__m512i a)
{
    __m512 r;
    EACH(16, (float *)&r, (float)((const int32_t *)&a)[i]);
    return r;
}

static inline __m512i _mm512_madd_epi16(__m512i a, __m512i b)
{
    const int16_t *x = (const int16_t *)&a, *y = (const int16_t *)&b;
    __m512i r;
    EACH(16, (int32_t *)&r, x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1]);
    return r;
}

static inline __m512i _mm512_add_epi32(__m512i a, __m512i b)
{
    __m512i r;
    EACH(16, (int32_t *)&r, ((const int32_t *)&a)[i] + ((const int32_t *)&b)[i]);
    return r;
}

static inline int _mm512_reduce_add_epi32(__m512i a)
{
    int sum = 0;
    for (int i = 0; i < 16; i++)
        sum += ((const int32_t *)&a)[i];
    return sum;
}

#define MASK(count, expression) ({ __mmask64 m = 0; for (int i = 0; i < (count); i++) m |= (__mmask64)(expression) << i; m; })

static inline void _mm512_storeu_si512(void *p, __m512i a) { memcpy(p, &a, sizeof a); }
static inline __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }

static inline __m512i _mm512_set1_epi8(char x)
{
    __m512i r;
    memset(&r, x, sizeof r);
    return r;
}

static inline __m512i _mm512_maskz_loadu_epi8(__mmask64 k, const void *p)
{
    __m512i r;
    EACH(64, (uint8_t *)&r, k >> i & 1 ? ((const uint8_t *)p)[i] : 0);
    return r;
}

static inline __m512i _mm512_maskz_permutex2var_epi8(__mmask64 k, __m512i a, __m512i places, __m512i b)
{
    const uint8_t *place = (const uint8_t *)&places, *low = (const uint8_t *)&a, *high = (const uint8_t *)&b;
    __m512i r;
    EACH(64, (uint8_t *)&r, k >> i & 1 ? (place[i] & 64 ? high : low)[place[i] & 63] : 0);
    return r;
}

static inline __mmask64 _mm512_movepi8_mask(__m512i a)
{
    return MASK(64, ((const uint8_t *)&a)[i] >> 7);
}

static inline __mmask64 _mm512_test_epi8_mask(__m512i a, __m512i b)
{
    return MASK(64, (((const uint8_t *)&a)[i] & ((const uint8_t *)&b)[i]) != 0);
}

static inline __mmask64 _mm512_cmpeq_epi8_mask(__m512i a, __m512i b)
{
    return MASK(64, ((const uint8_t *)&a)[i] == ((const uint8_t *)&b)[i]);
}
