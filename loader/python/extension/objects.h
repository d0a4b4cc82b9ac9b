#pragma once

// The layout of a Batch object, and what batch.cc and sample.cc share. Everything here is called with the GIL held. A
// function that returns null has set a Python exception.

#include <Python.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "loader/larder.h"
#include "loader/python/extension/batch_object.h"

namespace larder::python {

struct BatchObject {
    PyObject_HEAD std::optional<larder::Batch> samples;  // empty once given back
    std::shared_ptr<BatchReturns> returns;
    std::span<const std::byte> exported;  // what the next buffer request gets; see view_of
    Py_ssize_t views;                     // memoryviews of the batch's memory
    bool released;
};

inline BatchObject& as_batch(PyObject* self) {
    return *reinterpret_cast<BatchObject*>(self);
}

// Keeps the C++ batch while its spans are read: allocating Python objects may run finalizers that release the batch.
class BatchUse {
public:
    explicit BatchUse(PyObject* batch);
    BatchUse(const BatchUse&) = delete;
    BatchUse& operator=(const BatchUse&) = delete;
    ~BatchUse();

private:
    BatchObject& batch_;
};

// The batch's samples; null with a ValueError once the batch was released.
const larder::Batch* samples_of(PyObject* batch);

// A read-only memoryview of bytes in the batch's memory. It keeps the batch alive.
PyObject* view_of(PyObject* batch, std::span<const std::byte> bytes);

// The named field; for None the first one (an empty one if there is none). Null with a KeyError that lists the fields
// if there is no such field.
const larder::Field* field_of(const larder::Sample& sample, PyObject* field_name);

// The class index as an int: the manifest's, else the number in a field named "cls", else None.
PyObject* label_of(const larder::Sample& sample);

// The block's key, a tuple: the same for the same block in all loaders.
PyObject* key_of(const larder::RowPlace& place);

// A str. Bytes that are not UTF-8 become surrogates, as in Python's file names.
PyObject* new_text(std::string_view text);

template <typename Make>
PyObject* make_list(Py_ssize_t count, Make make) {
    PyObject* list = PyList_New(count);
    if (list == nullptr) return nullptr;
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* element = make(i);
        if (element == nullptr) {
            Py_DECREF(list);
            return nullptr;
        }
        PyList_SetItem(list, i, element);
    }
    return list;
}

}  // namespace larder::python
