#include "pool.h"

#include "buffers.h"

#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static const struct simd *chosen;

const struct simd *simd_now(void)
{
    return chosen;
}

int simd_use(const char *name)
{
    for (const struct simd *const *simd = simd_all; *simd; simd++) {
        if ((*simd)->usable() && (!name || !strcmp(name, (*simd)->name))) {
            chosen = *simd;
            return 0;
        }
    }
    return -1;
}

int table_open(PyObject *rows, PyObject *scales, PyObject *out, struct table_args *args)
{
    *args = (struct table_args){0};
    if (array_open(rows, &args->rows, "rows", INT8, 1, 2, 0) < 0 ||
        array_open(scales, &args->scales, "scales", FLOAT32, 4, 1, 0) < 0 ||
        array_open(out, &args->out, "out", FLOAT32, 4, 2, 1) < 0) {
        table_close(args);
        return -1;
    }
    args->table = (struct table){args->rows.buf, args->scales.buf, (size_t)args->rows.shape[0],
                                 (size_t)args->rows.shape[1]};
    if (args->scales.shape[0] != args->rows.shape[0] || args->out.shape[1] != args->rows.shape[1]) {
        PyErr_SetString(PyExc_ValueError, "rows, scales and out do not fit each other");
        table_close(args);
        return -1;
    }
    return 0;
}

void table_close(struct table_args *args)
{
    PyBuffer_Release(&args->rows);
    PyBuffer_Release(&args->scales);
    PyBuffer_Release(&args->out);
}

float *pool_total(const struct table *table)
{
    size_t lines = table->dims * sizeof(float) / CACHE_LINE + 1; /* never none */
    return aligned_alloc(CACHE_LINE, lines * CACHE_LINE);
}

void pool_rows(const struct simd *simd, const struct table *table, float *total, const uint32_t *ids, size_t count)
{
    simd->pool(total, table->rows, table->scales, table->dims, ids, count);
}

/* Results that are larger than the second cache go past it: to write a line the ordinary way it is read first. */
enum { STREAMED = 1 << 20 }; /* bytes */

static size_t stream(const struct simd *simd, float *out, const float *total, size_t dims, float share)
{
    size_t c = simd->stream && (uintptr_t)out % CACHE_LINE == 0 ? simd->stream(out, total, dims, share) : 0;
#if defined(__x86_64__)
    if ((uintptr_t)out % 16 == 0)
        for (; c + 4 <= dims; c += 4)
            _mm_stream_ps(out + c, _mm_mul_ps(_mm_loadu_ps(total + c), _mm_set1_ps(share)));
#endif
    return c;
}

void pool_finish(const struct simd *simd, const struct table_args *args, size_t text, const float *total, size_t count)
{
    size_t dims = args->table.dims, c = 0;
    float *out = (float *)args->out.buf + text * dims;
    float share = count ? 1.0f / (float)count : 0.0f;
    if (args->out.len > STREAMED)
        c = stream(simd, out, total, dims, share);
    for (; c < dims; c++)
        out[c] = total[c] * share;
}

void pool_end(void)
{
#if defined(__x86_64__)
    _mm_sfence(); /* other threads see what was streamed before they see that the work is done */
#endif
}
