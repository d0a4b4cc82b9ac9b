#include "loader/python/extension/batch_object.h"

#include <algorithm>
#include <charconv>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/protocol/parquet.h"
#include "loader/python/extension/objects.h"
#include "loader/python/extension/sample.h"

namespace larder::python {
namespace {

// Py_TPFLAGS_SEQUENCE, for `match`, which the limited API lacks.
constexpr unsigned kSequenceFlag = 1U << 5;

PyTypeObject* batch_type = nullptr;

// Destroys the C++ batch, or leaves that to the thread that is inside the loader.
void destroy_batch(BatchObject& batch) {
    if (!batch.samples) return;
    if (batch.returns->loader_busy) {
        batch.returns->waiting.push_back(std::move(*batch.samples));
    }
    batch.samples.reset();
}

void dealloc(PyObject* self) {
    BatchObject& batch = as_batch(self);
    destroy_batch(batch);
    batch.samples.~optional();
    batch.returns.~shared_ptr();
    PyTypeObject* type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

// Reached only through `view_of`, which says what to export: a batch has no single buffer.
int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    BatchObject& batch = as_batch(self);
    if (batch.exported.data() == nullptr) {
        view->obj = nullptr;
        PyErr_SetString(PyExc_BufferError, "a batch has no single buffer; use those of its samples");
        return -1;
    }
    // The buffer protocol has no const; readonly=1 keeps Python from writing.
    auto* data = const_cast<std::byte*>(batch.exported.data());
    if (PyBuffer_FillInfo(view, self, data, static_cast<Py_ssize_t>(batch.exported.size()), 1, flags) != 0) return -1;
    ++batch.views;
    return 0;
}

void drop_view(BatchObject& batch) {
    if (--batch.views == 0 && batch.released) destroy_batch(batch);
}

void release_buffer(PyObject* self, Py_buffer*) {
    drop_view(as_batch(self));
}

Py_ssize_t length(PyObject* self) {
    const larder::Batch* samples = samples_of(self);
    return samples == nullptr ? -1 : static_cast<Py_ssize_t>(samples->size());
}

// Iteration calls this until the IndexError.
PyObject* item(PyObject* self, Py_ssize_t index) {
    const larder::Batch* samples = samples_of(self);
    if (samples == nullptr) return nullptr;
    if (index < 0 || static_cast<std::size_t>(index) >= samples->size()) {
        PyErr_SetString(PyExc_IndexError, "sample index out of range");
        return nullptr;
    }
    return make_sample(self, static_cast<std::size_t>(index));
}

PyObject* subscript(PyObject* self, PyObject* key) {
    const Py_ssize_t size = length(self);
    if (size < 0) return nullptr;
    if (PyIndex_Check(key)) {
        const Py_ssize_t index = PyNumber_AsSsize_t(key, PyExc_IndexError);
        if (index == -1 && PyErr_Occurred() != nullptr) return nullptr;
        return item(self, index < 0 ? index + size : index);
    }
    Py_ssize_t start = 0;
    Py_ssize_t stop = 0;
    Py_ssize_t step = 0;
    if (!PySlice_Check(key)) {
        PyErr_SetString(PyExc_TypeError, "a batch is indexed by integers and slices");
        return nullptr;
    }
    if (PySlice_Unpack(key, &start, &stop, &step) != 0) return nullptr;
    const Py_ssize_t count = PySlice_AdjustIndices(size, &start, &stop, step);
    return make_list(count, [&](Py_ssize_t i) { return item(self, start + i * step); });
}

PyObject* samples_bytes(PyObject* self, PyObject* arguments, PyObject* keywords) {
    static const char* names[] = {"field", nullptr};
    PyObject* field = Py_None;
    if (PyArg_ParseTupleAndKeywords(arguments, keywords, "|O:samples_bytes", const_cast<char**>(names), &field) == 0) {
        return nullptr;
    }
    const larder::Batch* samples = samples_of(self);
    if (samples == nullptr) return nullptr;
    const BatchUse use(self);
    return make_list(static_cast<Py_ssize_t>(samples->size()), [&](Py_ssize_t i) -> PyObject* {
        const larder::Field* found = field_of((*samples)[static_cast<std::size_t>(i)], field);
        return found != nullptr ? view_of(self, found->bytes) : nullptr;
    });
}

PyObject* labels(PyObject* self, PyObject*) {
    const larder::Batch* samples = samples_of(self);
    if (samples == nullptr) return nullptr;
    return make_list(static_cast<Py_ssize_t>(samples->size()),
                     [&](Py_ssize_t i) { return label_of((*samples)[static_cast<std::size_t>(i)]); });
}

PyObject* indices(PyObject* self, PyObject*) {
    const larder::Batch* samples = samples_of(self);
    if (samples == nullptr) return nullptr;
    return make_list(static_cast<Py_ssize_t>(samples->size()), [&](Py_ssize_t i) {
        return PyLong_FromUnsignedLongLong((*samples)[static_cast<std::size_t>(i)].index);
    });
}

PyObject* bytes_object(std::span<const std::byte> bytes) {
    return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(bytes.data()),
                                     static_cast<Py_ssize_t>(bytes.size()));
}

// The samples of a batch that are rows of one block.
struct RowsOfBlock {
    const larder::RowPlace* place = nullptr;  // of the first
    std::vector<std::uint32_t> rows;          // in the block
    std::vector<std::uint32_t> positions;     // in the batch
};

std::vector<RowsOfBlock> by_block(std::span<const larder::Sample> samples) {
    std::vector<RowsOfBlock> blocks;
    std::unordered_map<std::uint32_t, std::size_t> found;
    for (std::size_t i = 0; i < samples.size(); ++i) {
        const larder::RowPlace& place = *samples[i].row;
        const auto [at, is_new] = found.try_emplace(place.block, blocks.size());
        if (is_new) blocks.push_back({.place = &place});
        blocks[at->second].rows.push_back(place.row);
        blocks[at->second].positions.push_back(static_cast<std::uint32_t>(i));
    }
    return blocks;
}

PyObject* row_groups(PyObject* self, PyObject*) {
    const larder::Batch* samples = samples_of(self);
    if (samples == nullptr) return nullptr;
    if (samples->size() > 0 && (*samples)[0].row == nullptr) {
        PyErr_SetString(PyExc_TypeError, "the samples of this batch are no rows of tables");
        return nullptr;
    }
    const BatchUse use(self);
    const std::vector<RowsOfBlock> blocks = by_block(samples->samples());
    return make_list(static_cast<Py_ssize_t>(blocks.size()), [&](Py_ssize_t i) -> PyObject* {
        const RowsOfBlock& block = blocks[static_cast<std::size_t>(i)];
        PyObject* view = view_of(self, block.place->block_bytes);
        if (view == nullptr) return nullptr;
        PyObject* rows = bytes_object(std::as_bytes(std::span(block.rows)));
        PyObject* positions = bytes_object(std::as_bytes(std::span(block.positions)));
        if (rows == nullptr || positions == nullptr) {
            Py_XDECREF(rows);
            Py_XDECREF(positions);
            Py_DECREF(view);
            return nullptr;
        }
        return Py_BuildValue("(NNNN)", key_of(*block.place), view, rows, positions);
    });
}

// Null with an exception set if the sample is no row.
const larder::RowPlace* row_at(PyObject* self, PyObject* argument) {
    const larder::Batch* samples = samples_of(self);
    if (samples == nullptr) return nullptr;
    const auto index = PyLong_AsSize_t(argument);
    if (PyErr_Occurred() != nullptr) return nullptr;
    if (index < samples->size() && (*samples)[index].row != nullptr) return (*samples)[index].row;
    PyErr_SetString(PyExc_IndexError, "the batch has no such row of a table");
    return nullptr;
}

PyObject* row_columns(PyObject* self, PyObject* argument) {
    const larder::RowPlace* place = row_at(self, argument);
    if (place == nullptr) return nullptr;
    const BatchUse use(self);
    return make_list(static_cast<Py_ssize_t>(place->columns.size()),
                     [&](Py_ssize_t i) { return new_text(place->columns[static_cast<std::size_t>(i)]); });
}

PyObject* row_metadata(PyObject* self, PyObject* argument) {
    const larder::RowPlace* place = row_at(self, argument);
    if (place == nullptr) return nullptr;
    if (place->head.empty()) return Py_BuildValue("(sNI)", "arrow", bytes_object(place->details), place->row_count);
    const auto footer = protocol::parquet_footer_file(place->head, place->details, place->row_count);
    if (!footer) {
        PyErr_SetString(PyExc_ValueError, footer.error().message.c_str());
        return nullptr;
    }
    return Py_BuildValue("(sNI)", "parquet", bytes_object(std::as_bytes(std::span(*footer))), place->row_count);
}

PyObject* release(PyObject* self, PyObject*) {
    BatchObject& batch = as_batch(self);
    batch.released = true;
    if (batch.views == 0) destroy_batch(batch);
    return PyBool_FromLong(batch.views == 0);
}

PyObject* enter(PyObject* self, PyObject*) {
    if (samples_of(self) == nullptr) return nullptr;
    return Py_NewRef(self);
}

PyObject* leave(PyObject* self, PyObject*) {
    Py_XDECREF(release(self, nullptr));
    Py_RETURN_NONE;
}

PyObject* get_released(PyObject* self, void*) {
    return PyBool_FromLong(as_batch(self).released);
}

PyObject* get_nbytes(PyObject* self, void*) {
    const larder::Batch* samples = samples_of(self);
    if (samples == nullptr) return nullptr;
    std::size_t total = 0;
    for (const larder::Sample& sample : samples->samples()) {
        for (const Field& field : sample.fields) total += field.bytes.size();
        if (sample.row != nullptr) {
            total += sample.row->block_bytes.size() / std::max<std::uint32_t>(1, sample.row->row_count);
        }
    }
    return PyLong_FromSize_t(total);
}

PyObject* repr(PyObject* self) {
    const BatchObject& batch = as_batch(self);
    if (batch.released) return PyUnicode_FromString("<larder.Batch, released>");
    return PyUnicode_FromFormat("<larder.Batch of %zu samples>", batch.samples->size());
}

PyMethodDef methods[] = {
    {"samples_bytes", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(samples_bytes)),
     METH_VARARGS | METH_KEYWORDS,
     "samples_bytes(field=None)\n--\n\nThe bytes of every sample, of its first field or the named one, as a list of "
     "read-only\nmemoryviews, in one call."},
    {"labels", labels, METH_NOARGS, "labels()\n--\n\nThe class index of every sample; None if it has none."},
    {"indices", indices, METH_NOARGS, "indices()\n--\n\nThe index of every sample in the dataset."},
    {"row_groups", row_groups, METH_NOARGS,
     "row_groups()\n--\n\nRows of tables: the rows by block, a list of (key of the block, its bytes as a memoryview, "
     "places "
     "in "
     "the\nblock, places in the batch); places are uint32s. See larder.parquet."},
    {"row_columns", row_columns, METH_O,
     "row_columns(index)\n--\n\nRows of tables: names of the dataset's columns. Rows of LitData may have others."},
    {"row_metadata", row_metadata, METH_O,
     "row_metadata(index)\n--\n\nRows of tables: what Arrow needs to decode the block of this sample of the batch, and "
     "its\nnumber of rows: (\"parquet\", a file that is only a footer, rows) or (\"arrow\", the message with the "
     "schema, "
     "rows)."},
    {"release", release, METH_NOARGS,
     "release()\n--\n\nGives the batch's memory back to the loader. False if memoryviews are left: the memory then "
     "goes "
     "back with the\nlast of them. The batch and its samples cannot be used afterwards."},
    {"__enter__", enter, METH_NOARGS, nullptr},
    {"__exit__", leave, METH_VARARGS, nullptr},
    {},
};

PyGetSetDef properties[] = {
    {"released", get_released, nullptr, "True if release() was called.", nullptr},
    {"nbytes", get_nbytes, nullptr, "Bytes of all fields of all samples.", nullptr},
    {},
};

const char* const kDoc =
    "Samples delivered together: a sequence of Sample.\n\n"
    "The samples' bytes lie in memory shared with the node's daemon. A batch holds that memory until it, its samples "
    "and all\nmemoryviews and arrays made from them are gone, or until release() or the end of a `with` block. Keep "
    "few\nbatches at a time: they use up the loader's memory_budget.";

PyType_Slot slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_repr, reinterpret_cast<void*>(repr)},
    {Py_tp_doc, const_cast<char*>(kDoc)},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_sq_length, reinterpret_cast<void*>(length)},
    {Py_sq_item, reinterpret_cast<void*>(item)},
    {Py_mp_length, reinterpret_cast<void*>(length)},
    {Py_mp_subscript, reinterpret_cast<void*>(subscript)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
    {0, nullptr},
};

PyType_Spec spec = {
    .name = "larder.Batch",
    .basicsize = sizeof(BatchObject),
    .itemsize = 0,
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE | kSequenceFlag,
    .slots = slots,
};

}  // namespace

bool add_batch_type(PyObject* module) {
    batch_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    return batch_type != nullptr && PyModule_AddType(module, batch_type) == 0;
}

PyObject* make_batch(larder::Batch samples, std::shared_ptr<BatchReturns> returns) {
    PyObject* self = PyType_GenericAlloc(batch_type, 0);
    if (self == nullptr) return nullptr;
    BatchObject& batch = as_batch(self);
    new (&batch.samples) std::optional<larder::Batch>(std::move(samples));
    new (&batch.returns) std::shared_ptr<BatchReturns>(std::move(returns));
    return self;
}

const larder::Batch* samples_of(PyObject* self) {
    const BatchObject& batch = as_batch(self);
    if (!batch.released) return &*batch.samples;
    PyErr_SetString(PyExc_ValueError, "the batch was released");
    return nullptr;
}

BatchUse::BatchUse(PyObject* batch) : batch_(as_batch(batch)) {
    ++batch_.views;
}

BatchUse::~BatchUse() {
    drop_view(batch_);
}

PyObject* key_of(const larder::RowPlace& place) {
    return Py_BuildValue("(KKI)", static_cast<unsigned long long>(place.dataset_id),
                         static_cast<unsigned long long>(place.version), place.block);
}

PyObject* view_of(PyObject* self, std::span<const std::byte> bytes) {
    static constexpr std::byte kNothing{};
    const BatchUse use(self);
    BatchObject& batch = as_batch(self);
    batch.exported = bytes.empty() ? std::span<const std::byte>(&kNothing, 0) : bytes;
    PyObject* view = PyMemoryView_FromObject(self);
    batch.exported = {};
    return view;
}

const larder::Field* field_of(const larder::Sample& sample, PyObject* field_name) {
    static constexpr larder::Field kNoField{};
    if (field_name == Py_None) return sample.fields.empty() ? &kNoField : &sample.fields.front();
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(field_name, &size);
    if (text == nullptr) return nullptr;
    const std::string_view wanted(text, static_cast<std::size_t>(size));
    for (const Field& field : sample.fields) {
        if (field.name == wanted) return &field;
    }
    std::string names;
    for (const Field& field : sample.fields) names.append(names.empty() ? "" : ", ").append(field.name);
    if (sample.row != nullptr) names = "none, as a row of a table: larder.decode gives its columns";
    const std::string message = "sample \"" + std::string(sample.key) + "\" has no field \"" + std::string(wanted) +
                                "\"; it has " + (names.empty() ? "none" : names);
    PyObject* message_object = new_text(message);
    if (message_object != nullptr) PyErr_SetObject(PyExc_KeyError, message_object);
    Py_XDECREF(message_object);
    return nullptr;
}

PyObject* label_of(const larder::Sample& sample) {
    if (sample.label != kNoLabel) return PyLong_FromUnsignedLong(sample.label);
    for (const Field& field : sample.fields) {
        if (field.name != "cls") continue;
        const auto* text = reinterpret_cast<const char*>(field.bytes.data());
        const char* end = text + field.bytes.size();
        std::uint32_t label = 0;
        const auto [rest, error] = std::from_chars(text, end, label);
        const bool only_space = std::all_of(rest, end, [](char c) { return c == '\n' || c == ' ' || c == '\r'; });
        if (error == std::errc() && only_space) return PyLong_FromUnsignedLong(label);
    }
    Py_RETURN_NONE;
}

PyObject* new_text(std::string_view text) {
    return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
}

}  // namespace larder::python
