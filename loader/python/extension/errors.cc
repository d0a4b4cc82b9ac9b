#include "loader/python/extension/errors.h"

#include <nanobind/nanobind.h>

#include <string>

namespace nb = nanobind;

namespace larder::python {

void set_error(const Error& error) {
    if (PyErr_Occurred() != nullptr) return;
    const std::string_view code = name(error.code);
    try {
        const nb::object classes = nb::module_::import_("larder.errors").attr("BY_CODE");
        const nb::object kind = classes[nb::str(code.data(), code.size())];
        const nb::object message = nb::steal(PyUnicode_DecodeUTF8(
            error.message.data(), static_cast<Py_ssize_t>(error.message.size()), "backslashreplace"));
        if (!message.is_valid()) return;
        const nb::object exception = kind(message, error.system_errno);
        PyErr_SetObject(kind.ptr(), exception.ptr());
    } catch (nb::python_error& failure) {
        failure.restore();
    }
}

void throw_error(const Error& error) {
    set_error(error);
    throw nb::python_error();
}

}  // namespace larder::python
