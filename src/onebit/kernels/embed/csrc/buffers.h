/* Arguments from Python: arrays through the buffer protocol, and texts. */
#ifndef ONEBIT_BUFFERS_H
#define ONEBIT_BUFFERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "tokenizer.h"

/* Element types, as the format characters of the `struct` module that may stand for them. */
#define INT8 "b"
#define BOOL "?"
#define UINT16 "H"
#define UINT32 "IL"
#define INT64 "ql"
#define UINT64 "QL"
#define FLOAT32 "f"

/* A contiguous array of `ndim` dimensions; sets an exception and returns -1 for anything else. */
int array_open(PyObject *object, Py_buffer *view, const char *name, const char *types, size_t item_size, int ndim,
               int writable);

/* Python's texts as the tokeniser reads them. `owner` keeps them alive: also while the GIL is released. */
struct texts {
    PyObject *owner;
    struct text *items;
    size_t count;
};

/* From a sequence of str and bytes (UTF-8; what is not valid in it becomes U+FFFD). */
int texts_open(PyObject *sequence, struct texts *texts);
void texts_close(struct texts *texts);

/* Text i is read now: fetch one that comes soon, for texts lie all over the heap. */
static inline void texts_fetch(const struct texts *texts, size_t i)
{
    if (i + 4 >= texts->count)
        return;
    const struct text *soon = &texts->items[i + 4];
    __builtin_prefetch(soon->data);
    __builtin_prefetch((const char *)soon->data + 64);
}

#endif
