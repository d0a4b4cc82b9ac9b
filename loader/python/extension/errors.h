#pragma once

// From larder::Error to Python: each ErrorCode is a class of larder/errors.py, which is where they are documented.
// Everything here is called with the GIL held.

#include <Python.h>

#include "base/error.h"

namespace larder::python {

// Sets Python's exception from the error. The exception a signal handler raised, if there is one, is kept instead.
void set_error(const Error& error);

// Sets it and throws what nanobind takes for "an exception is set".
[[noreturn]] void throw_error(const Error& error);

template <typename T>
T value_or_throw(Result<T> result) {
    if (!result) throw_error(result.error());
    if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace larder::python
