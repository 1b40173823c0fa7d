/* W += sum of scale * B @ A over many adapters, in one pass over W, with the bits of the plain loop.
 *
 * The plain loop is onebit.kernels.lora.reference; what must be equal is said there. Compile without contraction
 * (-ffp-contract=off): a fused multiply-add stands here where one is meant, and nowhere else.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>

#include "lora_numbers.h"
#include "lora_share.h"

#include "lora_vec_portable.h"
#include "lora_tile.h"
#include "lora_rows.h"

#if defined(__GNUC__) && defined(__x86_64__)
#define HAVE_X86
#include "lora_vec_avx2.h"
#include "lora_tile.h"
#include "lora_rows.h"

#include "lora_vec_avx512.h"
#include "lora_tile.h"
#include "lora_rows.h"

#if __GNUC__ >= 10 || __clang_major__ >= 9
#define USE_AVX512_BF16
#include "lora_vec_avx512.h"
#include "lora_tile.h"
#include "lora_rows.h"
#endif
#elif defined(__GNUC__) && defined(__aarch64__)
#define HAVE_NEON
#include "lora_vec_neon.h"
#include "lora_tile.h"
#include "lora_rows.h"
#endif

typedef struct {
    const char *name;
    void (*merge)(Job *);
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

typedef struct {
    PyObject_HEAD
    const Variant *variant;
    Job job;
    Term *terms;
    Py_buffer *views; /* two for each term, then W's: those that are held come first */
    Py_ssize_t held;
    void *memory;
} Merge;

static void merge_dealloc(Merge *self) {
    PyTypeObject *type = Py_TYPE(self);
    for (Py_ssize_t i = 0; i < self->held; i++) PyBuffer_Release(&self->views[i]);
    PyMem_Free(self->views);
    PyMem_Free(self->terms);
    PyMem_RawFree(self->memory);
    type->tp_free(self);
    Py_DECREF(type);
}

static bool take_memory(Merge *self) {
    Job *job = &self->job;
    /* all of A and the threads' blocks of B as floats must be countable; 1,024: rows of a block, and A's last tile */
    if (job->total_rank > PY_SSIZE_T_MAX / 8 / (job->cols + 1024 * (job->threads + 1))) return PyErr_NoMemory(), false;
    self->memory = PyMem_RawMalloc((size_t)self->variant->scratch_floats(job) * sizeof(float) + 64);
    if (self->memory == NULL) return PyErr_NoMemory(), false;
    job->scratch = (void *)(((uintptr_t)self->memory + 63) & ~(uintptr_t)63);
    return true;
}

/* Takes all terms and W. What is held of them if one does not fit, dealloc releases. */
static bool take_all(Merge *self, PyObject *w, PyObject *terms) {
    Job *job = &self->job;
    const Py_ssize_t count = PyTuple_GET_SIZE(terms);
    self->terms = PyMem_Calloc((size_t)count + 1, sizeof *self->terms); /* one more: never of size 0 */
    self->views = PyMem_Calloc(2 * (size_t)count + 1, sizeof *self->views);
    if (self->terms == NULL || self->views == NULL) return PyErr_NoMemory(), false;
    for (Py_ssize_t i = 0; i < count; i++, self->held += 2) {
        PyObject *item = PyTuple_GET_ITEM(terms, i);
        if (!take_term(item, &self->terms[i], &self->views[self->held], job->rows, job->cols)) return false;
        job->total_rank += self->terms[i].rank;
    }
    Py_buffer *view = &self->views[self->held];
    if (!take(w, view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE, job->w_type, job->rows, job->cols)) return false;
    self->held++;
    job->w = view->buf;
    job->terms = self->terms;
    job->n_terms = count;
    return count == 0 || take_memory(self);
}

PyDoc_STRVAR(merge_doc,
"Merge(w, w_type, rows, cols, terms, mode, threads=1, variant=None)\n\n"
"One merge into w (a writable buffer, rows x cols), in place. `terms` is a sequence of (b, b_type, a, a_type, rank,\n"
"scale): b is rows x rank, a is rank x cols. Number types: 0 float32, 1 bfloat16, 2 float16. Modes: 0 exact,\n"
"1 accurate, 2 fast, 3 factors rounded to bfloat16. ValueError for buffers that do not fit the shapes, and for unknown\n"
"codes and variants. Nothing is done until run() is called.");

static PyObject *merge_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *w, *terms_arg;
    const char *name = NULL;
    int w_type, mode, threads = 1;
    Py_ssize_t rows, cols;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs)) return PyErr_Format(PyExc_TypeError, "Merge takes no keywords");
    if (!PyArg_ParseTuple(args, "OinnOi|iz", &w, &w_type, &rows, &cols, &terms_arg, &mode, &threads, &name)) return NULL;
    const Variant *variant = variant_named(name);
    if (variant == NULL) return NULL;
    if (mode < EXACT || mode > BF16_FMA) return PyErr_Format(PyExc_ValueError, "no mode %d", mode);
    if (threads < 1 || threads > MOST_THREADS) return PyErr_Format(PyExc_ValueError, "not on %d threads", threads);
    Number number;
    if (!number_type(w_type, &number)) return NULL;
    PyObject *terms = PySequence_Tuple(terms_arg); /* a list could change while it is read */
    if (terms == NULL) return NULL;
    Merge *self = (Merge *)type->tp_alloc(type, 0); /* all zeros */
    if (self != NULL) {
        self->variant = variant;
        self->job.w_type = number;
        self->job.rows = rows;
        self->job.cols = cols;
        self->job.mode = (Mode)mode;
        self->job.threads = threads;
        if (!take_all(self, w, terms)) Py_CLEAR(self);
    }
    Py_DECREF(terms);
    return (PyObject *)self;
}

PyDoc_STRVAR(help_doc,
"help()\n\n"
"Do what the other threads have not begun. To be called by up to `threads - 1` threads, before run() or while it runs;\n"
"who comes late finds less to do, or nothing. Runs without the GIL.");

static PyObject *merge_help(Merge *self, PyObject *unused) {
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    if (self->job.n_terms) self->variant->merge(&self->job);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyDoc_STRVAR(run_doc,
"run() -> bool\n\n"
"Do what the helpers have not begun, and wait for what they have. True if all results are finite. Called again,\n"
"it only waits. Runs without the GIL.");

static PyObject *merge_run(Merge *self, PyObject *unused) {
    (void)unused;
    if (self->job.n_terms == 0) Py_RETURN_TRUE;
    Py_BEGIN_ALLOW_THREADS
    self->variant->merge(&self->job);
    wait_for_rows(&self->job);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(!atomic_load(&self->job.bad));
}

static PyMethodDef merge_methods[] = {
    {"help", (PyCFunction)merge_help, METH_NOARGS, help_doc},
    {"run", (PyCFunction)merge_run, METH_NOARGS, run_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot merge_slots[] = {
    {Py_tp_new, merge_new},
    {Py_tp_dealloc, merge_dealloc},
    {Py_tp_methods, merge_methods},
    {Py_tp_doc, (void *)merge_doc},
    {0, NULL},
};

static PyType_Spec merge_spec = {
    .name = "onebit.kernels._lora.Merge",
    .basicsize = sizeof(Merge),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = merge_slots,
};

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
    {"variants", py_variants, METH_NOARGS, variants_doc},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module) {
    find_variants();
    PyObject *type = PyType_FromSpec(&merge_spec);
    if (type == NULL) return -1;
    const int failed = PyModule_AddObjectRef(module, "Merge", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)execute}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "onebit.kernels._lora",
    .m_doc = "The merge kernel in C.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__lora(void) { return PyModuleDef_Init(&definition); }
