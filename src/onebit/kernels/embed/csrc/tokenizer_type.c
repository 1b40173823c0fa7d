/* The Python class around the tokeniser: tokenize(texts), embed(texts, …). */
#include "tokenizer_type.h"

#include "buffers.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    PyObject_HEAD
    struct tokenizer tokenizer;
    Py_buffer units, runs; /* held as long as the object lives */
    uint32_t highest_id;
} Tokenizer;

static void free_added(struct tokenizer *t)
{
    for (size_t i = 0; i < t->added_count; i++)
        PyMem_Free((void *)t->added[i].text);
    PyMem_Free(t->added);
}

static void tokenizer_dealloc(Tokenizer *self)
{
    PyTypeObject *type = Py_TYPE(self);
    trie_free(&self->tokenizer.trie);
    short_words_free(&self->tokenizer.short_words);
    free_added(&self->tokenizer);
    PyBuffer_Release(&self->units);
    PyBuffer_Release(&self->runs);
    type->tp_free(self);
    Py_DECREF(type);
}

/* (labels, ends, ids) as arrays; the views must be released by the caller, filled or not. */
static int pieces_open(PyObject *tuple, Py_buffer views[3], struct pieces *pieces)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 3) {
        PyErr_SetString(PyExc_TypeError, "pieces must be a tuple (labels, ends, ids)");
        return -1;
    }
    if (array_open(PyTuple_GET_ITEM(tuple, 0), &views[0], "labels", UINT16, 2, 1, 0) < 0 ||
        array_open(PyTuple_GET_ITEM(tuple, 1), &views[1], "ends", UINT32, 4, 1, 0) < 0 ||
        array_open(PyTuple_GET_ITEM(tuple, 2), &views[2], "ids", UINT32, 4, 1, 0) < 0)
        return -1;
    if (views[1].len != views[2].len) {
        PyErr_SetString(PyExc_ValueError, "ends and ids differ in length");
        return -1;
    }
    *pieces = (struct pieces){views[0].buf, views[1].buf, views[2].buf, (size_t)views[1].len / 4,
                              (size_t)views[0].len / 2};
    return 0;
}

static int build_trie(Tokenizer *self, PyObject *first, PyObject *later)
{
    Py_buffer views[6] = {0};
    struct pieces a, b;
    int failed = -1;
    if (pieces_open(first, views, &a) == 0 && pieces_open(later, views + 3, &b) == 0) {
        enum trie_result result = trie_build(&self->tokenizer.trie, &a, &b);
        if (result == TRIE_NO_MEMORY || (result == TRIE_OK && short_words_build(&self->tokenizer.short_words, &a) < 0))
            PyErr_NoMemory();
        else if (result == TRIE_INVALID)
            PyErr_SetString(PyExc_ValueError, "pieces must be sorted, different from each other, and within bounds");
        else
            failed = 0;
        for (size_t i = 0; i < a.count; i++)
            self->highest_id = a.ids[i] > self->highest_id ? a.ids[i] : self->highest_id;
        for (size_t i = 0; i < b.count; i++)
            self->highest_id = b.ids[i] > self->highest_id ? b.ids[i] : self->highest_id;
    }
    for (int i = 0; i < 6; i++)
        PyBuffer_Release(&views[i]);
    return failed;
}

static int longer_first(const void *a, const void *b)
{
    size_t x = ((const struct added *)a)->len, y = ((const struct added *)b)->len;
    return (x < y) - (x > y);
}

static int take_added(Tokenizer *self, PyObject *added)
{
    struct tokenizer *t = &self->tokenizer;
    PyObject *list = PySequence_Tuple(added);
    if (!list)
        return -1;
    t->added = PyMem_Calloc((size_t)PyTuple_GET_SIZE(list) + 1, sizeof *t->added);
    if (!t->added) {
        Py_DECREF(list);
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(list); i++) {
        PyObject *text, *pair = PyTuple_GET_ITEM(list, i);
        struct added *entry = &t->added[i];
        if (!PyTuple_Check(pair)) {
            Py_DECREF(list);
            PyErr_SetString(PyExc_TypeError, "an added token must be a tuple (str, int)");
            return -1;
        }
        if (!PyArg_ParseTuple(pair, "UI;an added token must be a tuple (str, int)", &text, &entry->id) ||
            !(entry->text = PyUnicode_AsUCS4Copy(text))) {
            Py_DECREF(list);
            return -1;
        }
        t->added_count++;
        entry->len = (size_t)PyUnicode_GET_LENGTH(text);
        self->highest_id = entry->id > self->highest_id ? entry->id : self->highest_id;
        if (!entry->len) {
            Py_DECREF(list);
            PyErr_SetString(PyExc_ValueError, "an added token is empty");
            return -1;
        }
    }
    Py_DECREF(list);
    qsort(t->added, t->added_count, sizeof *t->added, longer_first);
    return 0;
}

static PyObject *tokenizer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"units", "runs", "first", "later", "added", "unknown", "longest_word", NULL};
    PyObject *units, *runs, *first, *later, *added;
    unsigned int unknown, longest_word;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOII:Tokenizer", names, &units, &runs, &first, &later, &added,
                                     &unknown, &longest_word))
        return NULL;
    Tokenizer *self = (Tokenizer *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    struct tokenizer *t = &self->tokenizer;
    self->highest_id = unknown;
    if (array_open(units, &self->units, "units", UINT32, 4, 1, 0) < 0 ||
        array_open(runs, &self->runs, "runs", UINT32, 4, 1, 0) < 0 || build_trie(self, first, later) < 0 ||
        take_added(self, added) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    t->units = self->units.buf;
    t->runs = self->runs.buf;
    t->runs_len = (size_t)self->runs.len / 4;
    t->unknown = unknown;
    t->longest_word = longest_word;
    if (self->units.len != CODE_POINTS * 4 || tokenizer_prepare(t) != 0) {
        Py_DECREF(self);
        PyErr_SetString(PyExc_ValueError, "the tables of the tokeniser do not fit each other");
        return NULL;
    }
    return (PyObject *)self;
}

/* From this many texts on the whole vocabulary is read first. For 20,000 texts after other work: 0.39 -> 0.35 us a text;
 * where it is in the caches already, it costs what 100 texts cost. */
enum { MANY_TEXTS = 4096 };

/* A sink that keeps the ids of all texts. */
struct keeper {
    struct sink sink;
    uint32_t *ids;
    size_t count, room;
};

static int keep(struct sink *sink)
{
    struct keeper *keeper = (struct keeper *)sink;
    if (!sink->count)
        return 0; /* there may be no memory yet, and memcpy takes no NULL */
    if (keeper->room - keeper->count < sink->count) {
        size_t room = keeper->room * 2 + SINK_IDS;
        uint32_t *ids = PyMem_RawRealloc(keeper->ids, room * sizeof *ids);
        if (!ids)
            return -1;
        keeper->ids = ids;
        keeper->room = room;
    }
    memcpy(keeper->ids + keeper->count, sink->ids, sink->count * sizeof *sink->ids);
    keeper->count += sink->count;
    sink->count = 0;
    return 0;
}

static PyObject *tokenizer_tokenize(Tokenizer *self, PyObject *sequence)
{
    struct texts texts;
    if (texts_open(sequence, &texts) < 0)
        return NULL;
    PyObject *result = NULL;
    PyObject *ends = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(texts.count * sizeof(uint64_t)));
    if (ends) {
        struct keeper keeper = {.sink = {.flush = keep}};
        uint64_t *end = (uint64_t *)PyBytes_AS_STRING(ends);
        int error = 0;
        Py_BEGIN_ALLOW_THREADS
        if (texts.count >= MANY_TEXTS)
            tokenizer_warm_up(&self->tokenizer);
        for (size_t i = 0; i < texts.count && !error; i++) {
            texts_fetch(&texts, i);
            error = tokenize(simd_now(), &self->tokenizer, &texts.items[i], &keeper.sink);
            end[i] = keeper.count + keeper.sink.count;
        }
        error = error ? error : keep(&keeper.sink);
        Py_END_ALLOW_THREADS
        if (error)
            PyErr_NoMemory();
        else
            result = Py_BuildValue("y#O", keeper.ids ? (char *)keeper.ids : "", (Py_ssize_t)(keeper.count * 4), ends);
        PyMem_RawFree(keeper.ids);
        Py_DECREF(ends);
    }
    texts_close(&texts);
    return result;
}

/* A sink that adds up the rows of one text. */
struct pooler {
    struct sink sink;
    const struct simd *simd;
    const struct table *table;
    float *total;
    size_t count;
};

static int add_rows(struct sink *sink)
{
    struct pooler *pooler = (struct pooler *)sink;
    pool_rows(pooler->simd, pooler->table, pooler->total, sink->ids, sink->count);
    pooler->count += sink->count;
    sink->count = 0;
    return 0;
}

static void pooler_read(struct pooler *pooler, const struct tokenizer *tokenizer, const struct text *text)
{
    pooler->count = 0;
    memset(pooler->total, 0, pooler->table->dims * sizeof *pooler->total);
    (void)tokenize(pooler->simd, tokenizer, text, &pooler->sink); /* adding up does not fail */
}

static void pooler_finish(struct pooler *pooler, const struct table_args *args, size_t text)
{
    add_rows(&pooler->sink);
    pool_finish(pooler->simd, args, text, pooler->total, pooler->count);
}

static PyObject *tokenizer_embed(Tokenizer *self, PyObject *args)
{
    PyObject *sequence, *rows, *scales, *out, *result = NULL;
    struct table_args table;
    struct texts texts = {0};
    if (!PyArg_ParseTuple(args, "OOOO:embed", &sequence, &rows, &scales, &out) ||
        table_open(rows, scales, out, &table) < 0)
        return NULL;
    if (texts_open(sequence, &texts) < 0)
        goto done;
    if (self->highest_id >= table.table.count || (size_t)table.out.shape[0] != texts.count) {
        PyErr_SetString(PyExc_ValueError, "the table has too few rows, or out does not fit the texts");
        goto done;
    }
    struct pooler poolers[2];
    for (int i = 0; i < 2; i++) {
        poolers[i].sink = (struct sink){.flush = add_rows, .rows = table.table.rows, .row_size = table.table.dims};
        poolers[i].simd = simd_now();
        poolers[i].table = &table.table;
        poolers[i].total = pool_total(&table.table);
    }
    if (!poolers[0].total || !poolers[1].total) {
        PyErr_NoMemory();
        goto release;
    }
    Py_BEGIN_ALLOW_THREADS
    if (texts.count >= MANY_TEXTS)
        tokenizer_warm_up(&self->tokenizer);
    /* A text's rows are added up after the next text was read: by then they have come from memory. */
    for (size_t i = 0; i <= texts.count; i++) {
        texts_fetch(&texts, i);
        if (i < texts.count)
            pooler_read(&poolers[i & 1], &self->tokenizer, &texts.items[i]);
        if (i > 0)
            pooler_finish(&poolers[(i - 1) & 1], &table, i - 1);
    }
    pool_end();
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
release:
    free(poolers[0].total);
    free(poolers[1].total);
done:
    texts_close(&texts);
    table_close(&table);
    return result;
}

static PyMethodDef methods[] = {
    {"tokenize", (PyCFunction)tokenizer_tokenize, METH_O, "tokenize(texts) -> (ids, ends)"},
    {"embed", (PyCFunction)tokenizer_embed, METH_VARARGS, "embed(texts, rows, scales, out)"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, tokenizer_new},
    {Py_tp_dealloc, tokenizer_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec tokenizer_spec = {
    .name = "onebit.kernels.embed._native.Tokenizer",
    .basicsize = sizeof(Tokenizer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
