#include "base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace larder {

void assertion_failed(const char* condition, const char* file, int line) {
    std::fprintf(stderr, "larder: invariant broken: %s at %s:%d\n", condition, file, line);
    std::abort();
}

}  // namespace larder
