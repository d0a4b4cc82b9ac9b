#pragma once

// One reader per trace format turns a line into a job. The reader decides what a row means; the caller checks that the
// job is valid.

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

// Returns a reader for the format of the trace's first line, which is the header if the format has one. Errors name the
// unknown or missing column.
Result<std::unique_ptr<RowReader>> row_reader(std::string_view first_line);

}  // namespace larder::scheduler
