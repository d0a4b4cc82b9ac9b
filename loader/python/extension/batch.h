#pragma once

// larder.Batch as a C type. Reaching a sample's bytes must cost far less than opening a file, so it uses the C API
// directly, and all memoryviews of its samples are exported by the Batch itself, so that none needs an object of its
// own.
//
// Who keeps what alive: a Sample and every memoryview (and NumPy array) of a batch refer to the Batch object. The C++
// batch, and with it the loader's memory, goes back when nothing refers to the Batch any more; or at `release()`, as
// soon as no view is left. All with the GIL held. A batch may be let go of by a thread while another is inside the
// loader without the GIL: BatchReturns keeps it until the loader is free.

#include <Python.h>

#include <memory>
#include <vector>

#include "loader/larder.h"

namespace larder::python {

// Shared by a loader (or dataset) and its batches; guarded by the GIL.
struct BatchReturns {
    bool loader_busy = false;
    std::vector<larder::Batch> waiting;  // to be destroyed when the loader is not busy
};

// Adds the type to the module; false with an exception set.
bool add_batch_type(PyObject* module);

// A new larder.Batch; null with an exception set.
PyObject* make_batch(larder::Batch batch, std::shared_ptr<BatchReturns> returns);

}  // namespace larder::python
