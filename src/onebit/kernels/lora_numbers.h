/* Types of the merge kernel, and its scalar conversions: IEEE round to nearest, ties to even, as torch converts. */

#ifndef ONEBIT_LORA_NUMBERS_H
#define ONEBIT_LORA_NUMBERS_H

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* what compilers call differently */
#if defined(__GNUC__)
#define PREFETCH(p) __builtin_prefetch(p, 1)
#define NOINLINE __attribute__((noinline))
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#else
#define PREFETCH(p) ((void)(p))
#define NOINLINE
#define ALWAYS_INLINE static inline
#endif
/* UNROLLED is for loops over a tile's registers: GCC 12 leaves arrays of them in memory else. 8: not those of plain C. */
#if defined(__clang__)
#define UNROLL4 _Pragma("clang loop unroll_count(4)")
#define UNROLLED
#elif defined(__GNUC__)
#define UNROLL4 _Pragma("GCC unroll 4")
#define UNROLLED _Pragma("GCC unroll 8")
#else
#define UNROLL4
#define UNROLLED
#endif
#if defined(_MSC_VER)
#define ALIGNED __declspec(align(64))
#else
#define ALIGNED _Alignas(64)
#endif

typedef enum { F32 = 0, BF16 = 1, F16 = 2 } Number;

/* EXACT:    each adapter in turn: w = rn(w + rn(s * acc)), with the roundings of the factors' and of w's type.
 * ACCURATE: total = fma(s, acc, total) over all adapters in float, then once w = rn(w + total).
 * FAST:     s is folded into B, one chain over all ranks, then once w = rn(w + acc).
 * BF16_FMA: FAST with both factors rounded to bf16; products and sums stay float. */
typedef enum { EXACT = 0, ACCURATE = 1, FAST = 2, BF16_FMA = 3 } Mode;

typedef struct {
    const void *b;  /* rows x rank, row-major */
    const void *a;  /* rank x cols, row-major */
    Number b_type, a_type;
    ptrdiff_t rank;
    float scale;
} Term;

/* One merge, for all threads that work at it. */
typedef struct {
    void *w;  /* rows x cols, row-major: updated in place */
    Number w_type;
    ptrdiff_t rows, cols;
    const Term *terms;
    ptrdiff_t n_terms;
    ptrdiff_t total_rank;
    Mode mode;
    int threads;  /* at most so many */
    void *scratch;  /* of scratch_floats floats, aligned to 64 bytes */

    /* What is taken, and what is done. */
    atomic_int next_thread;
    atomic_ptrdiff_t next_strip, packed_strips, next_row, rows_done;
    atomic_bool bad;  /* is a result infinite or NaN? */
} Job;

static inline float f32_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t bits_of_f32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float bf16_to_f32(uint16_t h) { return f32_of_bits((uint32_t)h << 16); }

static inline uint16_t f32_to_bf16(float x) {
    const uint32_t bits = bits_of_f32(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0; /* NaN: the addition below could carry it into a number */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1fu, fraction = h & 0x3ffu;
    if (exponent == 0x1f) return f32_of_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent) return f32_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    const float small = (float)fraction * 0x1p-24f; /* zero or subnormal: exact */
    return sign ? -small : small;
}

static inline uint16_t f32_to_f16(float x) {
    const uint32_t bits = bits_of_f32(x), magnitude = bits & 0x7fffffffu;
    const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    if (magnitude > 0x7f800000u) return sign | 0x7e00; /* NaN */
    if (magnitude >= 0x477ff000u) return sign | 0x7c00; /* 65520 and more round to infinity */
    if (magnitude < 0x38800000u) { /* below 2^-14: subnormal; adding 0.5 makes the unit in the last place 2^-24 */
        const float shifted = f32_of_bits(magnitude) + 0.5f;
        return sign | (uint16_t)(bits_of_f32(shifted) - 0x3f000000u);
    }
    return sign | (uint16_t)((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13);
}

/* The vectors' rounding to bfloat16 adds up to half a unit without looking for NaNs: 0x7fffffff would be carried over
 * into the sign. So a NaN of a float or half among the factors comes in as this one, whose low bits are 0, as those of a
 * bfloat16 are; and arithmetic makes no others of it. W's may be any: a float W is not rounded, a half by conversion. */
#define PLAIN_NAN ((float)NAN)

static inline float plain_nan(float x) { return x == x ? x : PLAIN_NAN; }

static inline float number_at(const void *p, Number type, ptrdiff_t i) {
    switch (type) {
    case BF16: return bf16_to_f32(((const uint16_t *)p)[i]);
    case F16: return plain_nan(f16_to_f32(((const uint16_t *)p)[i]));
    default: return plain_nan(((const float *)p)[i]);
    }
}

static inline void put_number(void *p, Number type, ptrdiff_t i, float x) {
    switch (type) {
    case BF16: ((uint16_t *)p)[i] = f32_to_bf16(x); break;
    case F16: ((uint16_t *)p)[i] = f32_to_f16(x); break;
    default: ((float *)p)[i] = x;
    }
}

/* rank x width floats that are rounded to bfloat16, as pairs: those of two ranks in the place of one, (rank + 1) / 2 x
 * width. `out` may be where they are, or before. */
static inline void pair(float *out, const float *in, ptrdiff_t rank, ptrdiff_t width) {
    for (ptrdiff_t k = 0; k < rank; k += 2)
        for (ptrdiff_t j = 0; j < width; j++) {
            const uint32_t second = k + 1 < rank ? bits_of_f32(in[(k + 1) * width + j]) : 0;
            out[k / 2 * width + j] = f32_of_bits(bits_of_f32(in[k * width + j]) >> 16 | second);
        }
}

static inline size_t number_size(Number type) { return type == F32 ? 4 : 2; }

#endif
