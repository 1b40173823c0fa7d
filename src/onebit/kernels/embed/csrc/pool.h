/* Means of table rows, and the choice of the instruction set. */
#ifndef ONEBIT_POOL_H
#define ONEBIT_POOL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "simd.h"

/* An embedding table: int8 rows, a float32 scale for each. */
struct table {
    const int8_t *rows; /* [count][dims] */
    const float *scales;
    size_t count, dims;
};

/* rows, scales and the array for the results, from Python. */
struct table_args {
    struct table table;
    Py_buffer rows, scales, out;
};

int table_open(PyObject *rows, PyObject *scales, PyObject *out, struct table_args *args);
void table_close(struct table_args *args);

/* The instruction set in use; simd_use() takes another one for tests, -1 if it is not usable here. */
const struct simd *simd_now(void);
int simd_use(const char *name);

/* Room for the sums of one text, at the start of a cache line; to be freed. NULL without memory. */
float *pool_total(const struct table *table);
void pool_rows(const struct simd *simd, const struct table *table, float *total, const uint32_t *ids, size_t count);
/* Write total / count, or zeros, to the results of a text. After the last text: pool_end(). */
void pool_finish(const struct simd *simd, const struct table_args *args, size_t text, const float *total, size_t count);
void pool_end(void);

#endif
