#pragma once

// A short measure of the disk under the daemon's state directory, through the Device that larderd uses: blocks written
// one after the other, then read in random order, with O_DIRECT where the file system has it. The file has no name, so
// nothing is left behind, however the process ends.

#include <cstdint>
#include <string>

#include "tools/doctor/finding.h"

namespace larder::doctor {

struct DiskMeasure {
    Finding finding;
    double read_bytes_per_second = 0;  // 0: not measured
};

// Measures for `seconds` of writing and `seconds` of reading. A directory that does not exist is not made: its nearest
// parent that exists is measured.
DiskMeasure check_disk(const std::string& directory, double seconds);

}  // namespace larder::doctor
