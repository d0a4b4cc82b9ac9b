#pragma once

// Finds the records of a disk segment by reading it: from header to header, and past damage by looking for the next
// header. Payload CRCs are left to the first read of a block. Blocking.

#include <cstdint>
#include <vector>

#include "cache/store/segment_header.h"
#include "cache/store/stored_block.h"

namespace larder::cache {

// Appends to `blocks` the records of the segment that `header` describes, from `offset` (a multiple of its alignment)
// on, in the first `file_bytes` of `fd`, which is open for buffered reads.
void scan_records(int fd, const SegmentHeader& header, std::uint64_t offset, std::uint64_t file_bytes,
                  std::vector<StoredBlock>& blocks);

}  // namespace larder::cache
