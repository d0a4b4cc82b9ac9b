#pragma once

// One reader per trace format: a line in, a job out. What a row means is decided here, whether it makes sense by the
// caller.

#include <memory>
#include <string>
#include <string_view>

#include "scheduler/simulator/trace.h"

namespace larder::scheduler {

class RowReader {
public:
    virtual ~RowReader() = default;
    virtual std::string_view format() const = 0;
    virtual bool has_header() const { return true; }
    virtual Result<TraceJob> read(std::string_view line) = 0;
};

// Chosen by the first line, which is the header where the format has one. An error names a column that is not known.
Result<std::unique_ptr<RowReader>> row_reader(std::string_view first_line);

}  // namespace larder::scheduler
