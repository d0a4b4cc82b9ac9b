#pragma once

// larder.Sample: one sample of a Batch, as a C type that holds a reference and an index. Call with the GIL held.

#include <Python.h>

#include <cstddef>

namespace larder::python {

// Adds the type to the module; false with an exception set.
bool add_sample_type(PyObject* module);

// Sample `index` of a Batch object, which must have it. Null with an exception set.
PyObject* make_sample(PyObject* batch, std::size_t index);

}  // namespace larder::python
