/* onebit.kernels.embed._native: see compiled.py, which is the Python side of it, and twin.py, which does the same. */
#include "buffers.h"
#include "search.h"
#include "tokenizer_type.h"

#include <stdlib.h>
#include <string.h>

static PyObject *native_pool(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *ids_arg, *ends_arg, *rows, *scales, *out, *result = NULL;
    struct table_args table;
    Py_buffer ids = {0}, ends = {0};
    if (!PyArg_ParseTuple(args, "OOOOO:pool", &ids_arg, &ends_arg, &rows, &scales, &out) ||
        table_open(rows, scales, out, &table) < 0)
        return NULL;
    if (array_open(ids_arg, &ids, "ids", UINT32, 4, 1, 0) < 0 ||
        array_open(ends_arg, &ends, "ends", UINT64, 8, 1, 0) < 0)
        goto done;
    const uint32_t *id = ids.buf;
    const uint64_t *end = ends.buf;
    size_t count = (size_t)ends.shape[0], total = (size_t)ids.shape[0];
    int valid = (size_t)table.out.shape[0] == count && (count ? end[count - 1] : 0) == total;
    for (size_t i = 1; i < count && valid; i++)
        valid = end[i - 1] <= end[i];
    for (size_t i = 0; i < total && valid; i++)
        valid = id[i] < table.table.count;
    if (!valid) {
        PyErr_SetString(PyExc_ValueError, "ids, ends and out do not fit each other or the table");
        goto done;
    }
    size_t dims = table.table.dims;
    float *sum = pool_total(&table.table);
    if (!sum) {
        PyErr_NoMemory();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0, start = 0; i < count; start = end[i++]) {
        memset(sum, 0, dims * sizeof *sum);
        pool_rows(simd_now(), &table.table, sum, id + start, end[i] - start);
        pool_finish(simd_now(), &table, i, sum, end[i] - start);
    }
    pool_end();
    Py_END_ALLOW_THREADS
    free(sum);
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&ids);
    PyBuffer_Release(&ends);
    table_close(&table);
    return result;
}

/* Everything that a search reads, opened; -1 with an exception set, the views to be released either way. */
static int search_open(PyObject *const args[6], Py_buffer views[6])
{
    if (array_open(args[0], &views[0], "rows", INT8, 1, 2, 0) < 0 ||
        array_open(args[1], &views[1], "scales", FLOAT32, 4, 1, 0) < 0 ||
        array_open(args[2], &views[2], "query", INT8, 1, 1, 0) < 0 ||
        (args[3] != Py_None && array_open(args[3], &views[3], "allow", BOOL, 1, 1, 0) < 0) ||
        array_open(args[4], &views[4], "out_rows", INT64, 8, 1, 1) < 0 ||
        array_open(args[5], &views[5], "out_scores", FLOAT32, 4, 1, 1) < 0)
        return -1;
    Py_ssize_t rows = views[0].shape[0], dims = views[0].shape[1];
    if (dims <= MAX_DIMS && views[1].shape[0] == rows && views[2].shape[0] == dims &&
        (!views[3].obj || views[3].shape[0] == rows) && views[4].shape[0] == views[5].shape[0])
        return 0;
    PyErr_SetString(PyExc_ValueError, "rows, scales, query, allow and the results do not fit each other");
    return -1;
}

static PyObject *native_search(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given[6], *result = NULL;
    Py_buffer views[6] = {0};
    struct hit *hits = NULL;
    if (!PyArg_ParseTuple(args, "OOOOOO:search", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5]))
        return NULL;
    if (search_open(given, views) < 0)
        goto done;
    size_t k = (size_t)views[4].shape[0], dims = (size_t)views[0].shape[1];
    hits = PyMem_New(struct hit, k ? k : 1);
    if (!hits) {
        PyErr_NoMemory();
        goto done;
    }
    size_t count;
    Py_BEGIN_ALLOW_THREADS
    int16_t query[MAX_DIMS];
    for (size_t c = 0; c < dims; c++)
        query[c] = ((const int8_t *)views[2].buf)[c];
    struct haystack haystack = {views[0].buf, views[1].buf, views[3].buf, dims};
    count = search(simd_now(), &haystack, query, (size_t)views[0].shape[0], hits, k);
    Py_END_ALLOW_THREADS
    for (size_t i = 0; i < count; i++) {
        ((int64_t *)views[4].buf)[i] = hits[i].row;
        ((float *)views[5].buf)[i] = hits[i].score;
    }
    result = PyLong_FromSize_t(count);
done:
    PyMem_Free(hits);
    for (int i = 0; i < 6; i++)
        PyBuffer_Release(&views[i]);
    return result;
}

static PyObject *native_instruction_sets(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    PyObject *names = PyList_New(0);
    for (const struct simd *const *simd = simd_all; names && *simd; simd++) {
        if (!(*simd)->usable())
            continue;
        PyObject *name = PyUnicode_FromString((*simd)->name);
        if (!name || PyList_Append(names, name) < 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyObject *native_use(PyObject *Py_UNUSED(module), PyObject *name)
{
    const char *text = PyUnicode_AsUTF8(name);
    if (!text)
        return NULL;
    if (simd_use(text) < 0)
        return PyErr_Format(PyExc_ValueError, "%R is no instruction set that this machine has", name);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"pool", native_pool, METH_VARARGS, "pool(ids, ends, rows, scales, out)"},
    {"search", native_search, METH_VARARGS,
     "search(rows, scales, query, allow, out_rows, out_scores) -> count"},
    {"instruction_sets", native_instruction_sets, METH_NOARGS, "instruction_sets() -> names, the best first"},
    {"use", native_use, METH_O, "use(name): take this instruction set from now on, for tests"},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&tokenizer_spec);
    if (!type || simd_use(NULL) < 0)
        return -1;
    int failed = PyModule_AddObjectRef(module, "Tokenizer", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)execute}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "onebit.kernels.embed._native",
    .m_doc = "The compiled kernels of onebit.kernels.embed.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
