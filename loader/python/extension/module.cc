// The private module larder._larder, on which the Python package in larder/ is built.

#include <nanobind/nanobind.h>

#include "loader/python/extension/batch_object.h"
#include "loader/python/extension/loader_object.h"
#include "loader/python/extension/sample.h"

NB_MODULE(_larder, module) {
    // A loader that lives until the interpreter ends is not a mistake of its user.
    nanobind::set_leak_warnings(false);
    if (!larder::python::add_batch_type(module.ptr()) || !larder::python::add_sample_type(module.ptr())) {
        throw nanobind::python_error();
    }
    larder::python::add_loader_types(module);
    module.attr("__version__") = LARDER_VERSION;
}
