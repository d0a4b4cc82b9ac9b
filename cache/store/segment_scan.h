#pragma once

// Finds the records of a disk segment by reading the segment from header to header. After damage, searches for the next
// header. Payload CRCs are checked when a block is first read, not here. Blocking.

#include <cstdint>
#include <vector>

#include "cache/store/segment_header.h"
#include "cache/store/stored_block.h"

namespace larder::cache {

// Appends to `blocks` the records in the first `file_bytes` of `fd`, from `offset` on. `header` describes the segment,
// `offset` is a multiple of its alignment, and `fd` is open for buffered reads.
void scan_records(int fd, const SegmentHeader& header, std::uint64_t offset, std::uint64_t file_bytes,
                  std::vector<StoredBlock>& blocks);

}  // namespace larder::cache
