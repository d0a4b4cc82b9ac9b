#pragma once

// Converts larder::Error to Python exceptions. Each ErrorCode is a class of larder/errors.py, which documents it.
// Everything here is called with the GIL held.

#include <Python.h>

#include "base/error.h"

namespace larder::python {

// Sets Python's exception from the error. An exception that a signal handler raised is kept instead.
void set_error(const Error& error);

// Sets the exception, and throws nanobind::python_error, which tells nanobind that an exception is set.
[[noreturn]] void throw_error(const Error& error);

template <typename T>
T value_or_throw(Result<T> result) {
    if (!result) throw_error(result.error());
    if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace larder::python
