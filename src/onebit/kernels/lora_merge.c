/* W += sum of scale * B @ A over many adapters, in one pass over W, with the bits of the plain loop.
 *
 * The plain loop is onebit.kernels.lora.reference; what must be equal is said there. Compile without contraction
 * (-ffp-contract=off): a fused multiply-add stands here where one is meant, and nowhere else.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdlib.h>

#include "lora_numbers.h"

#include "lora_vec_portable.h"
#include "lora_tile.h"

#if defined(__GNUC__) && defined(__x86_64__)
#define HAVE_X86
#include "lora_vec_avx2.h"
#include "lora_tile.h"

#include "lora_vec_avx512.h"
#include "lora_tile.h"

#if __GNUC__ >= 10 || __clang_major__ >= 9
#define USE_AVX512_BF16
#include "lora_vec_avx512.h"
#include "lora_tile.h"
#endif
#elif defined(__GNUC__) && defined(__aarch64__)
#define HAVE_NEON
#include "lora_vec_neon.h"
#include "lora_tile.h"
#endif

typedef struct {
    const char *name;
    bool (*merge)(const Job *);
    ptrdiff_t (*scratch_floats)(const Job *);
} Variant;

static Variant variants[4]; /* those this processor runs, the fastest first */
static int n_variants;

static void find_variants(void) {
    n_variants = 0;
#ifdef HAVE_X86
    __builtin_cpu_init();
#ifdef USE_AVX512_BF16
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16"))
        variants[n_variants++] = (Variant){"avx512bf16", merge_avx512bf16, scratch_floats_avx512bf16};
#endif
    if (__builtin_cpu_supports("avx512f"))
        variants[n_variants++] = (Variant){"avx512", merge_avx512, scratch_floats_avx512};
    /* every processor with AVX2 has FMA and F16C, but a hypervisor may hide them */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        variants[n_variants++] = (Variant){"avx2", merge_avx2, scratch_floats_avx2};
#endif
#ifdef HAVE_NEON
    variants[n_variants++] = (Variant){"neon", merge_neon, scratch_floats_neon};
#endif
    variants[n_variants++] = (Variant){"portable", merge_portable, scratch_floats_portable};
}

static bool number_type(int code, Number *type) {
    if (code < F32 || code > F16) {
        PyErr_Format(PyExc_ValueError, "no number type %d", code);
        return false;
    }
    *type = (Number)code;
    return true;
}

/* Takes a buffer that must hold exactly rows x cols numbers, aligned to their size. */
static bool take(PyObject *object, Py_buffer *view, int flags, Number type, Py_ssize_t rows, Py_ssize_t cols) {
    const Py_ssize_t size = (Py_ssize_t)number_size(type);
    if (rows < 1 || cols < 1 || rows > PY_SSIZE_T_MAX / cols / size) {
        PyErr_Format(PyExc_ValueError, "impossible shape %zd x %zd", rows, cols);
        return false;
    }
    if (PyObject_GetBuffer(object, view, flags) < 0) return false;
    if (view->len != rows * cols * size) {
        PyErr_Format(PyExc_ValueError, "%zd x %zd numbers of %zd bytes need %zd bytes, not %zd", rows, cols, size,
                     rows * cols * size, view->len);
    } else if ((uintptr_t)view->buf % (uintptr_t)size) {
        PyErr_Format(PyExc_ValueError, "the buffer is not aligned to %zd bytes", size);
    } else {
        return true;
    }
    PyBuffer_Release(view);
    return false;
}

/* Reads (b, b_type, a, a_type, rank, scale); on success two more views are held. */
static bool take_term(PyObject *item, Term *term, Py_buffer *views, Py_ssize_t rows, Py_ssize_t cols) {
    PyObject *a, *b;
    int a_type, b_type;
    Py_ssize_t rank;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a term is a tuple (b, b_type, a, a_type, rank, scale)");
        return false;
    }
    if (!PyArg_ParseTuple(item, "OiOinf", &b, &b_type, &a, &a_type, &rank, &term->scale)) return false;
    term->scale = plain_nan(term->scale);
    if (!number_type(b_type, &term->b_type) || !number_type(a_type, &term->a_type)) return false;
    if (!take(b, &views[0], PyBUF_C_CONTIGUOUS, term->b_type, rows, rank)) return false;
    if (!take(a, &views[1], PyBUF_C_CONTIGUOUS, term->a_type, rank, cols)) {
        PyBuffer_Release(&views[0]);
        return false;
    }
    term->b = views[0].buf;
    term->a = views[1].buf;
    term->rank = rank;
    return true;
}

static const Variant *variant_named(const char *name) {
    for (int i = 0; i < n_variants; i++)
        if (name == NULL || strcmp(name, variants[i].name) == 0) return &variants[i];
    PyErr_Format(PyExc_ValueError, "this processor does not run the variant %s", name);
    return NULL;
}

static PyObject *merge_with(const Variant *variant, Job *job) {
    /* all of A and a block of B as floats must be countable; 1,024: rows of a block, and A's last tile */
    if (job->total_rank > PY_SSIZE_T_MAX / 8 / (job->cols + 1024)) return PyErr_NoMemory();
    const size_t bytes = (size_t)variant->scratch_floats(job) * sizeof(float) + 64;
    void *memory = PyMem_RawMalloc(bytes);
    if (memory == NULL) return PyErr_NoMemory();
    job->scratch = (void *)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
    bool finite;
    Py_BEGIN_ALLOW_THREADS
    finite = variant->merge(job);
    Py_END_ALLOW_THREADS
    PyMem_RawFree(memory);
    return PyBool_FromLong(finite);
}

PyDoc_STRVAR(merge_doc,
"merge(w, w_type, rows, cols, terms, mode, row_begin, row_end, variant=None) -> bool\n\n"
"Update the rows row_begin..row_end of w (a writable buffer, rows x cols) in place. `terms` is a sequence of\n"
"(b, b_type, a, a_type, rank, scale): b is rows x rank, a is rank x cols. Number types: 0 float32, 1 bfloat16,\n"
"2 float16. Modes: 0 exact, 1 accurate, 2 fast, 3 factors rounded to bfloat16. True if all results are finite.\n"
"Runs without the GIL. ValueError for buffers that do not fit the shapes, and for unknown codes and variants.");

static PyObject *py_merge(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *w, *terms_arg, *items = NULL, *result = NULL;
    const char *name = NULL;
    int w_type, mode;
    Py_ssize_t rows, cols, row_begin, row_end;
    if (!PyArg_ParseTuple(args, "OinnOinn|z", &w, &w_type, &rows, &cols, &terms_arg, &mode, &row_begin, &row_end, &name))
        return NULL;
    const Variant *variant = variant_named(name);
    if (variant == NULL) return NULL;
    if (mode < EXACT || mode > BF16_FMA) return PyErr_Format(PyExc_ValueError, "no mode %d", mode);
    if (row_begin < 0 || row_begin > row_end || row_end > rows)
        return PyErr_Format(PyExc_ValueError, "rows %zd..%zd of %zd", row_begin, row_end, rows);

    Job job = {.cols = cols, .row_begin = row_begin, .row_end = row_end, .mode = (Mode)mode};
    if (!number_type(w_type, &job.w_type)) return NULL;
    items = PySequence_Fast(terms_arg, "terms must be a sequence");
    if (items == NULL) return NULL;
    const Py_ssize_t n_terms = PySequence_Fast_GET_SIZE(items);
    Term *terms = PyMem_Calloc((size_t)n_terms + 1, sizeof *terms); /* one more: never of size 0 */
    Py_buffer *views = PyMem_Calloc(2 * (size_t)n_terms + 1, sizeof *views);
    Py_ssize_t held = 0;
    Py_buffer w_view;
    if (terms == NULL || views == NULL) {
        PyErr_NoMemory();
        goto free_lists;
    }
    if (!take(w, &w_view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE, job.w_type, rows, cols)) goto free_lists;
    for (; held < n_terms; held++) {
        if (!take_term(PySequence_Fast_GET_ITEM(items, held), &terms[held], &views[2 * held], rows, cols))
            goto release;
        job.total_rank += terms[held].rank;
    }
    job.w = w_view.buf;
    job.terms = terms;
    job.n_terms = n_terms;
    result = n_terms ? merge_with(variant, &job) : PyBool_FromLong(1);

release:
    for (Py_ssize_t i = 0; i < 2 * held; i++) PyBuffer_Release(&views[i]);
    PyBuffer_Release(&w_view);
free_lists:
    PyMem_Free(views);
    PyMem_Free(terms);
    Py_DECREF(items);
    return result;
}

PyDoc_STRVAR(variants_doc, "variants() -> tuple of str\n\nThe instruction sets this processor runs, the default first.");

static PyObject *py_variants(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    PyObject *names = PyTuple_New(n_variants);
    for (int i = 0; names != NULL && i < n_variants; i++) {
        PyObject *name = PyUnicode_FromString(variants[i].name);
        if (name == NULL) Py_CLEAR(names);
        else PyTuple_SET_ITEM(names, i, name);
    }
    return names;
}

static PyMethodDef methods[] = {
    {"merge", py_merge, METH_VARARGS, merge_doc},
    {"variants", py_variants, METH_NOARGS, variants_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "onebit.kernels._lora", "The merge kernel in C.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__lora(void) {
    find_variants();
    return PyModuleDef_Init(&definition);
}
