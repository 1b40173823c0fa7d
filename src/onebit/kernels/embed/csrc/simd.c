#include "simd.h"

static int always(void)
{
    return 1;
}

static void pool_portable(float *total, const int8_t *rows, const float *scales, size_t dims, const uint32_t *ids,
                          size_t count)
{
    pool_columns(total, rows, scales, dims, ids, count, 0);
}

static void dots_portable(int32_t *out, const int8_t *rows, size_t dims, size_t count, const int16_t *query)
{
    for (size_t r = 0; r < count; r++)
        out[r] = dot_columns(rows + r * dims, query, dims, 0);
}

static void classify_portable(struct block *block, const uint8_t *plain, const uint8_t *bytes, size_t count)
{
    uint64_t known = 0, signs = 0, spaces = 0;
    for (size_t i = 0; i < count; i++) {
        uint8_t what = bytes[i] < PLAIN_CHARS ? plain[bytes[i]] : 0;
        block->labels[i] = what & (SIGN - 1);
        known |= (uint64_t)(what != 0) << i;
        signs |= (uint64_t)(what >> 7) << i;
        spaces |= (uint64_t)(what == SIGN) << i;
    }
    block->known = known;
    block->signs = signs;
    block->spaces = spaces;
}

const struct simd simd_portable = {"portable", always, pool_portable, NULL, dots_portable, classify_portable};

const struct simd *const simd_all[] = {
#if defined(__x86_64__)
    &simd_avx512, &simd_avx2,
#elif defined(__aarch64__)
    &simd_neon,
#endif
    &simd_portable, 0,
};
