#include "bench/miss_counts.h"

#include <string>

namespace larder::bench {

Result<void> check(const MissCounts& counts) {
    struct Count {
        const char* name;
        std::uint64_t is;
        std::uint64_t should_be;
    };
    const std::uint64_t blocks = counts.epochs * counts.blocks;
    const std::uint64_t bytes = counts.epochs * counts.bytes;
    for (const Count& count :
         {Count{"blocks the loader read", counts.blocks_read, blocks},
          Count{"blocks the loader read from a cache", counts.blocks_hit, 0},
          Count{"bytes the loader read", counts.bytes_read, bytes},
          Count{"misses the daemon counted", counts.misses, blocks}, Count{"hits the daemon counted", counts.hits, 0},
          Count{"bytes the daemon delivered from the remote", counts.remote_bytes, bytes},
          Count{"bytes the daemon read from the remote", counts.remote_bytes_read, bytes},
          Count{"errors of the remote", counts.remote_errors, 0}}) {
        if (count.is == count.should_be) continue;
        return fail(ErrorCode::corrupt, std::string(count.name) + " are " + std::to_string(count.is) + ", not " +
                                            std::to_string(count.should_be) + ", after " +
                                            std::to_string(counts.epochs) + " whole epochs");
    }
    return {};
}

}  // namespace larder::bench
