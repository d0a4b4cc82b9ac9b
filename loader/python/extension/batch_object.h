#pragma once

// larder.Batch as a C type. Reaching a sample's bytes must cost far less than opening a file, so this type uses the C
// API directly. The Batch itself exports all memoryviews of its samples, so that none needs an object of its own.
//
// Ownership: a Sample and every memoryview (and NumPy array) of a batch refer to the Batch object. The C++ batch, and
// with it the loader's memory, is given back when nothing refers to the Batch any more, or after `release()` as soon as
// no view is left. The GIL is held throughout. A thread may drop a batch while another is inside the loader without the
// GIL: BatchReturns keeps the batch until the loader is not busy any more.

#include <Python.h>

#include <memory>
#include <vector>

#include "loader/larder.h"

namespace larder::python {

// Shared by a loader (or dataset) and its batches; guarded by the GIL.
struct BatchReturns {
    bool loader_busy = false;
    std::vector<larder::Batch> waiting;  // destroyed when the loader is no longer busy
};

// Adds the type to the module; false with an exception set.
bool add_batch_type(PyObject* module);

// A new larder.Batch; null with an exception set.
PyObject* make_batch(larder::Batch batch, std::shared_ptr<BatchReturns> returns);

}  // namespace larder::python
