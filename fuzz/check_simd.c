/* Every instruction set's inner loops against the portable ones, bit for bit, on random rows of many widths. Plain C, so
 * that it also runs in an emulator; scripts/check-simd does that for those that this machine has not. */
#include "simd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 40, IDS = 30, WIDEST = 1100 };

static uint32_t state = 1;

static uint32_t chance(void)
{
    state = state * 1664525 + 1013904223;
    return state >> 8;
}

static int differs(const struct simd *simd, size_t dims)
{
    static int8_t rows[ROWS * WIDEST];
    static float scales[ROWS], a[WIDEST], b[WIDEST];
    static int16_t query[WIDEST];
    uint32_t ids[IDS];
    int32_t x[ROWS], y[ROWS];
    for (size_t i = 0; i < ROWS * dims; i++)
        rows[i] = (int8_t)chance();
    for (size_t i = 0; i < ROWS; i++)
        scales[i] = (float)chance() / (float)(1 + chance() % 100000);
    for (size_t i = 0; i < dims; i++) {
        query[i] = (int8_t)chance();
        a[i] = b[i] = (float)chance() / 1000;
    }
    for (size_t i = 0; i < IDS; i++)
        ids[i] = chance() % ROWS;
    simd->pool(a, rows, scales, dims, ids, IDS);
    simd_portable.pool(b, rows, scales, dims, ids, IDS);
    simd->dots(x, rows, dims, ROWS, query);
    simd_portable.dots(y, rows, dims, ROWS, query);
    return memcmp(a, b, dims * sizeof *a) || memcmp(x, y, sizeof x);
}

static int streams_differently(const struct simd *simd, size_t dims)
{
    static _Alignas(CACHE_LINE) float out[WIDEST + 1];
    static float total[WIDEST];
    float share = 1.0f / (float)(1 + chance() % 100);
    if (!simd->stream)
        return 0;
    for (size_t i = 0; i < dims; i++) {
        total[i] = (float)chance() / 1000;
        out[i] = -1;
    }
    size_t done = simd->stream(out, total, dims, share);
    for (size_t i = 0; i < dims; i++)
        if (out[i] != (i < done ? total[i] * share : -1))
            return 1;
    return done > dims;
}

static int classifies_differently(const struct simd *simd, size_t count)
{
    uint8_t plain[PLAIN_CHARS], *bytes = malloc(count ? count : 1); /* just as long: overruns are noticed */
    struct block a, b;
    if (!bytes)
        abort();
    for (size_t i = 0; i < PLAIN_CHARS; i++)
        plain[i] = (uint8_t)(chance() % 4 ? chance() : chance() % 2 * SIGN);
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(chance() % 8 ? chance() % PLAIN_CHARS : chance());
    simd->classify(&a, plain, bytes, count);
    simd_portable.classify(&b, plain, bytes, count);
    free(bytes);
    return a.known != b.known || a.signs != b.signs || a.spaces != b.spaces || memcmp(a.labels, b.labels, count);
}

int main(void)
{
#ifdef EMULATED
    const struct simd *const all[] = {&simd_avx512, NULL}, *const *simd = all;
#else
    const struct simd *const *simd = simd_all;
#endif
    for (; *simd; simd++) {
#ifndef EMULATED
        if (!(*simd)->usable()) {
            printf("%s: not on this machine\n", (*simd)->name);
            continue;
        }
#endif
        for (size_t dims = 1; dims <= WIDEST; dims++)
            if (differs(*simd, dims) || streams_differently(*simd, dims)) {
                printf("%s: WRONG at %zu dimensions\n", (*simd)->name, dims);
                return EXIT_FAILURE;
            }
        for (size_t round = 0; round < 100; round++)
            for (size_t count = 0; count <= BLOCK_SIZE; count++)
                if (classifies_differently(*simd, count)) {
                    printf("%s: WRONG about %zu characters\n", (*simd)->name, count);
                    return EXIT_FAILURE;
                }
        printf("%s: equal to portable, 1 to %d dimensions, 0 to %d characters\n", (*simd)->name, WIDEST, BLOCK_SIZE);
    }
    return EXIT_SUCCESS;
}
