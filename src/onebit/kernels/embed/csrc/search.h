/* Exact search: the k rows with the highest dot(row, query) * scale. */
#ifndef ONEBIT_SEARCH_H
#define ONEBIT_SEARCH_H

#include "simd.h"

struct hit {
    float score;
    int64_t row;
};

struct haystack {
    const int8_t *rows; /* [count][dims] */
    const float *scales;
    const uint8_t *allow; /* [count], or NULL: all */
    size_t dims;
};

/* The best of `total` rows into hits[0..k), best first, equal ones by row. Returns how many there are. */
size_t search(const struct simd *simd, const struct haystack *haystack, const int16_t *query, size_t total,
              struct hit *hits, size_t k);

#endif
