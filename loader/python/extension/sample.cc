#include "loader/python/extension/sample.h"

#include "loader/python/extension/objects.h"

namespace larder::python {
namespace {

PyTypeObject* sample_type = nullptr;

struct SampleObject {
    PyObject_HEAD PyObject* batch;
    std::size_t index;  // in the batch
};

SampleObject& as_sample(PyObject* self) {
    return *reinterpret_cast<SampleObject*>(self);
}

const larder::Sample* sample_of(PyObject* self) {
    const larder::Batch* samples = samples_of(as_sample(self).batch);
    return samples == nullptr ? nullptr : &(*samples)[as_sample(self).index];
}

void dealloc(PyObject* self) {
    Py_DECREF(as_sample(self).batch);
    PyTypeObject* type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

PyObject* get_index(PyObject* self, void*) {
    const larder::Sample* sample = sample_of(self);
    return sample == nullptr ? nullptr : PyLong_FromUnsignedLongLong(sample->index);
}

PyObject* get_key(PyObject* self, void*) {
    const larder::Sample* sample = sample_of(self);
    return sample == nullptr ? nullptr : new_text(sample->key);
}

PyObject* get_label(PyObject* self, void*) {
    const larder::Sample* sample = sample_of(self);
    return sample == nullptr ? nullptr : label_of(*sample);
}

PyObject* get_bytes(PyObject* self, void*) {
    const larder::Sample* sample = sample_of(self);
    return sample == nullptr ? nullptr : view_of(as_sample(self).batch, sample->bytes());
}

PyObject* get_fields(PyObject* self, void*) {
    const larder::Sample* sample = sample_of(self);
    if (sample == nullptr) return nullptr;
    const BatchUse use(as_sample(self).batch);
    PyObject* fields = PyDict_New();
    if (fields == nullptr) return nullptr;
    for (const Field& field : sample->fields) {
        PyObject* name = new_text(field.name);
        PyObject* view = name == nullptr ? nullptr : view_of(as_sample(self).batch, field.bytes);
        const bool added = view != nullptr && PyDict_SetItem(fields, name, view) == 0;
        Py_XDECREF(name);
        Py_XDECREF(view);
        if (added) continue;
        Py_DECREF(fields);
        return nullptr;
    }
    return fields;
}

PyObject* get_encodings(PyObject* self, void*) {
    const larder::Sample* sample = sample_of(self);
    if (sample == nullptr) return nullptr;
    const BatchUse use(as_sample(self).batch);
    PyObject* encodings = PyDict_New();
    if (encodings == nullptr) return nullptr;
    for (const Field& field : sample->fields) {
        PyObject* name = new_text(field.name);
        PyObject* encoding = name == nullptr ? nullptr : new_text(field.encoding);
        const bool added = encoding != nullptr && PyDict_SetItem(encodings, name, encoding) == 0;
        Py_XDECREF(name);
        Py_XDECREF(encoding);
        if (added) continue;
        Py_DECREF(encodings);
        return nullptr;
    }
    return encodings;
}

PyObject* get_structure(PyObject* self, void*) {
    const larder::Sample* sample = sample_of(self);
    if (sample == nullptr) return nullptr;
    if (sample->structure.empty()) Py_RETURN_NONE;
    return new_text(sample->structure);
}

PyObject* get_row(PyObject* self, void*) {
    const larder::Sample* sample = sample_of(self);
    if (sample == nullptr) return nullptr;
    if (sample->row == nullptr) Py_RETURN_NONE;
    return Py_BuildValue("(NInO)", key_of(*sample->row), sample->row->row,
                         static_cast<Py_ssize_t>(as_sample(self).index), as_sample(self).batch);
}

PyObject* subscript(PyObject* self, PyObject* name) {
    const larder::Sample* sample = sample_of(self);
    if (sample == nullptr) return nullptr;
    if (!PyUnicode_Check(name)) {
        PyErr_SetString(PyExc_TypeError, "a sample is indexed by a field's name");
        return nullptr;
    }
    const Field* field = field_of(*sample, name);
    return field != nullptr ? view_of(as_sample(self).batch, field->bytes) : nullptr;
}

int contains(PyObject* self, PyObject* name) {
    const larder::Sample* sample = sample_of(self);
    if (sample == nullptr) return -1;
    if (!PyUnicode_Check(name)) return 0;
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(name, &size);
    if (text == nullptr) return -1;
    for (const Field& field : sample->fields) {
        if (field.name == std::string_view(text, static_cast<std::size_t>(size))) return 1;
    }
    return 0;
}

// Calls numpy.frombuffer. Looks it up on first use, because NumPy takes longer to import than all of Larder.
PyObject* numpy_array(PyObject* view, ElementType element) {
    static PyObject* frombuffer = nullptr;
    static PyObject* types[kElementTypeEnd] = {};
    if (element == ElementType::none) element = ElementType::uint8;
    PyObject*& type = types[static_cast<std::size_t>(element)];
    if (frombuffer == nullptr || type == nullptr) {
        PyObject* numpy = PyImport_ImportModule("numpy");
        if (numpy == nullptr) return nullptr;
        if (type == nullptr) type = PyObject_GetAttrString(numpy, name(element).data());
        if (type != nullptr && frombuffer == nullptr) frombuffer = PyObject_GetAttrString(numpy, "frombuffer");
        Py_DECREF(numpy);
        if (frombuffer == nullptr || type == nullptr) return nullptr;
    }
    PyObject* arguments[] = {view, type};
    return PyObject_Vectorcall(frombuffer, arguments, 2, nullptr);
}

PyObject* numpy(PyObject* self, PyObject* arguments, PyObject* keywords) {
    static const char* names[] = {"field", nullptr};
    PyObject* field = Py_None;
    if (PyArg_ParseTupleAndKeywords(arguments, keywords, "|O:numpy", const_cast<char**>(names), &field) == 0) {
        return nullptr;
    }
    const larder::Sample* sample = sample_of(self);
    if (sample == nullptr) return nullptr;
    const Field* found = field_of(*sample, field);
    if (found == nullptr) return nullptr;
    const ElementType element = found->element;
    PyObject* view = view_of(as_sample(self).batch, found->bytes);
    if (view == nullptr) return nullptr;
    PyObject* array = numpy_array(view, element);
    Py_DECREF(view);
    return array;
}

PyObject* repr(PyObject* self) {
    const larder::Sample* sample = sample_of(self);
    if (sample == nullptr) {
        PyErr_Clear();
        return PyUnicode_FromString("<larder.Sample, released>");
    }
    PyObject* key = new_text(sample->key);
    if (key == nullptr) return nullptr;
    PyObject* text = PyUnicode_FromFormat("<larder.Sample %llu %R>", sample->index, key);
    Py_DECREF(key);
    return text;
}

PyMethodDef methods[] = {
    {"numpy", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(numpy)), METH_VARARGS | METH_KEYWORDS,
     "numpy(field=None)\n--\n\nThe first field's bytes, or the named one's, as a read-only array of shape (n,). The "
     "dtype is the field's\nif it holds numbers (tokens, columns of a fixed dtype), else uint8. No copy."},
    {},
};

PyGetSetDef properties[] = {
    {"index", get_index, nullptr, "The sample's index in the dataset.", nullptr},
    {"key", get_key, nullptr, "WebDataset: the name that its members share. Else the path of its file in the dataset.",
     nullptr},
    {"label", get_label, nullptr, "The class index (see `class_names`), or None.", nullptr},
    {"bytes", get_bytes, nullptr, "The first field's bytes as a read-only memoryview. No copy.", nullptr},
    {"fields", get_fields, nullptr, "Each field's name with its bytes as a read-only memoryview. No copy.", nullptr},
    {"encodings", get_encodings, nullptr,
     "Each field's name with its encoding, as the format spells it (\"int\", \"ndarray:int32\"); \"\" for plain bytes.",
     nullptr},
    {"structure", get_structure, nullptr,
     "LitData: the tree whose leaves are the fields, as in its index.json. Else None.", nullptr},
    {"_row", get_row, nullptr, nullptr, nullptr},
    {},
};

const char* const kDoc =
    "One sample of a batch. `sample[\"jpg\"]` is a field's bytes as a read-only memoryview, without a copy; it stays "
    "valid as\nlong as it exists, and keeps the whole batch's memory. `\"jpg\" in sample` is True if the sample has "
    "that field.";

PyType_Slot slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_repr, reinterpret_cast<void*>(repr)},
    {Py_tp_doc, const_cast<char*>(kDoc)},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_mp_subscript, reinterpret_cast<void*>(subscript)},
    {Py_sq_contains, reinterpret_cast<void*>(contains)},
    {0, nullptr},
};

PyType_Spec spec = {
    .name = "larder.Sample",
    .basicsize = sizeof(SampleObject),
    .itemsize = 0,
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

}  // namespace

bool add_sample_type(PyObject* module) {
    sample_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    return sample_type != nullptr && PyModule_AddType(module, sample_type) == 0;
}

PyObject* make_sample(PyObject* batch, std::size_t index) {
    PyObject* self = PyType_GenericAlloc(sample_type, 0);
    if (self == nullptr) return nullptr;
    as_sample(self).batch = Py_NewRef(batch);
    as_sample(self).index = index;
    return self;
}

}  // namespace larder::python
