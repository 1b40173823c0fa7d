/* The inner loops, once for each instruction set. All give the same bits: pool() rounds each product and each sum
 * (never a fused multiply-add) and no column depends on another; dots() and classify() have to do with integers. */
#ifndef ONEBIT_SIMD_H
#define ONEBIT_SIMD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    CACHE_LINE = 64,
    MAX_DIMS = 16384, /* 16384 products of int8 by int8 fit an int32 eight times over */
};

/* What a table for classify() says of a character: 0 nothing; else its label, with SIGN if it is a word by itself. SIGN
 * without a label: a space. */
enum { PLAIN_CHARS = 128, SIGN = 0x80, BLOCK_SIZE = 64, BLOCK_SPARE = 8 };

/* Up to BLOCK_SIZE characters. Bit i of the masks tells of character i. */
struct block {
    uint64_t known, signs, spaces;            /* a space is a sign, too */
    uint8_t labels[BLOCK_SIZE + BLOCK_SPARE]; /* without SIGN; the spare ones are there to be read, no more */
};

struct simd {
    const char *name;
    int (*usable)(void);
    /* total[c] += rows[ids[t]][c] * scales[ids[t]], for t = 0, 1, … count - 1 in this order, c < dims. */
    void (*pool)(float *total, const int8_t *rows, const float *scales, size_t dims, const uint32_t *ids,
                 size_t count);
    /* out[c] = total[c] * share, past the cache, for as many c as fill whole lines of it; returns their number. `out`
     * begins at such a line. NULL: not here. */
    size_t (*stream)(float *out, const float *total, size_t dims, float share);
    /* out[r] = sum over c of rows[r][c] * query[c], for r < count. The query is widened to int16 beforehand. */
    void (*dots)(int32_t *out, const int8_t *rows, size_t dims, size_t count, const int16_t *query);
    /* Look up bytes[0 .. count), count <= BLOCK_SIZE, in plain[PLAIN_CHARS]. Of bytes that are not ASCII, and of all
     * from `count` on, nothing is known. */
    void (*classify)(struct block *block, const uint8_t *plain, const uint8_t *bytes, size_t count);
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

/* A whole block to be read: `bytes`, or, if there are fewer, a copy in `whole` that goes on with what is not ASCII. */
static inline const uint8_t *whole_block(uint8_t whole[BLOCK_SIZE], const uint8_t *bytes, size_t count)
{
    if (count == BLOCK_SIZE)
        return bytes;
    memset(whole, 0xFF, BLOCK_SIZE);
    return memcpy(whole, bytes, count);
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
