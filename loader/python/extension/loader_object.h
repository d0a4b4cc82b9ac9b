#pragma once

// larder::Loader and larder::Dataset for Python, as nanobind classes of the private module larder._larder.
// larder/loader.py and larder/dataset.py build the public classes on them. The GIL is released around every call that
// may wait. An object serves one thread at a time: a second thread that calls meanwhile gets a RuntimeError, except
// that `statistics` and `epoch` then answer as of the last call.

#include <nanobind/nanobind.h>

namespace larder::python {

void add_loader_types(nanobind::module_& module);

}  // namespace larder::python
