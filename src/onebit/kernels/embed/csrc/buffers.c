#include "buffers.h"

#include <string.h>

int array_open(PyObject *object, Py_buffer *view, const char *name, const char *types, size_t item_size, int ndim,
               int writable)
{
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return -1;
    const char *format = view->format ? view->format : "B";
    if (strchr("<=@", *format) && *format)
        format++;
    if (view->ndim == ndim && (size_t)view->itemsize == item_size && *format && !format[1] && strchr(types, *format))
        return 0;
    PyErr_Format(PyExc_TypeError, "%s must be a contiguous array of %d dimension(s) and format '%c', not %d and '%s'",
                 name, ndim, *types, view->ndim, view->format ? view->format : "B");
    PyBuffer_Release(view);
    view->obj = NULL;
    return -1;
}

static PyObject *as_str(PyObject *item)
{
    if (PyUnicode_Check(item))
        return Py_NewRef(item);
    if (PyBytes_Check(item))
        return PyUnicode_DecodeUTF8(PyBytes_AS_STRING(item), PyBytes_GET_SIZE(item), "replace");
    PyErr_Format(PyExc_TypeError, "a text must be str or bytes, not %.100s", Py_TYPE(item)->tp_name);
    return NULL;
}

int texts_open(PyObject *sequence, struct texts *texts)
{
    *texts = (struct texts){0};
    if (PyUnicode_Check(sequence) || PyBytes_Check(sequence)) {
        PyErr_SetString(PyExc_TypeError, "texts must be a sequence of texts, not one text");
        return -1;
    }
    PyObject *given = PySequence_Fast(sequence, "texts must be a sequence");
    if (!given)
        return -1;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(given);
    texts->owner = PyTuple_New(count);
    texts->items = PyMem_Malloc((count ? (size_t)count : 1) * sizeof *texts->items);
    if (!texts->owner || !texts->items) {
        PyErr_NoMemory();
        goto failed;
    }
    for (Py_ssize_t i = 0; i < count && i < PySequence_Fast_GET_SIZE(given); i++) {
        PyObject *text = as_str(PySequence_Fast_GET_ITEM(given, i));
        if (!text)
            goto failed;
        PyTuple_SET_ITEM(texts->owner, i, text);
        texts->items[i] =
            (struct text){PyUnicode_DATA(text), (size_t)PyUnicode_GET_LENGTH(text), (int)PyUnicode_KIND(text)};
        texts->count = (size_t)i + 1;
    }
    Py_DECREF(given);
    return 0;
failed:
    Py_DECREF(given);
    texts_close(texts);
    return -1;
}

void texts_close(struct texts *texts)
{
    Py_CLEAR(texts->owner);
    PyMem_Free(texts->items);
    *texts = (struct texts){0};
}
