/* The two inner loops, once for each instruction set. All give the same bits: pool() rounds each product and each sum
 * (never a fused multiply-add) and no column depends on another; dots() is of integers. */
#ifndef ONEBIT_SIMD_H
#define ONEBIT_SIMD_H

#include <stddef.h>
#include <stdint.h>

enum {
    MAX_DIMS = 16384, /* 16384 products of int8 by int8 fit an int32 eight times over */
};

struct simd {
    const char *name;
    int (*usable)(void);
    /* total[c] += rows[ids[t]][c] * scales[ids[t]], for t = 0, 1, … count - 1 in this order, c < dims. */
    void (*pool)(float *total, const int8_t *rows, const float *scales, size_t dims, const uint32_t *ids,
                 size_t count);
    /* out[r] = sum over c of rows[r][c] * query[c], for r < count. The query is widened to int16 beforehand. */
    void (*dots)(int32_t *out, const int8_t *rows, size_t dims, size_t count, const int16_t *query);
};

/* The last columns, where a vector does not fit; and all columns of the portable path. */
static inline void pool_columns(float *total, const int8_t *rows, const float *scales, size_t dims,
                                const uint32_t *ids, size_t count, size_t from)
{
    if (from == dims)
        return;
    for (size_t t = 0; t < count; t++) {
        const int8_t *row = rows + (size_t)ids[t] * dims;
        float scale = scales[ids[t]];
        for (size_t c = from; c < dims; c++)
            total[c] += (float)row[c] * scale;
    }
}

static inline int32_t dot_columns(const int8_t *row, const int16_t *query, size_t dims, size_t from)
{
    int32_t sum = 0;
    for (size_t c = from; c < dims; c++)
        sum += row[c] * query[c];
    return sum;
}

extern const struct simd simd_portable;
#if defined(__x86_64__)
extern const struct simd simd_avx2, simd_avx512;
#elif defined(__aarch64__)
extern const struct simd simd_neon;
#endif

/* Best first, usable or not, NULL at the end. */
extern const struct simd *const simd_all[];

#endif
