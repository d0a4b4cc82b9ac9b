#pragma once

// The memory that the index of one dataset may take while it is made. Whoever wrote the files pays far less for it: a
// few bytes can declare millions of samples, in sparse files too, and two bytes of JSON take 24 bytes once parsed. So
// indexing ends with an error before the machine has no memory left.
//
// The functions are pure but for index_bytes_max(), which asks the machine. A BoundedJsonMemory belongs to one thread.

#include <boost/json/memory_resource.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "cache/dataset/indexed_object.h"

namespace larder::cache {

// A quarter of the memory that this process can have.
std::uint64_t index_bytes_max();

// Returns the memory that an object takes until it is in the manifest.
constexpr std::uint64_t index_bytes(const IndexedObject& object) {
    constexpr std::uint64_t kSampleBytes = 16;
    constexpr std::uint64_t kBlockBytes = 64;
    std::uint64_t details_bytes = 0;
    for (const auto& details : object.block_details) details_bytes += sizeof(std::string) + details.size();
    return object.samples.size() * kSampleBytes + object.blocks.size() * kBlockBytes + details_bytes;
}

std::unexpected<Error> index_too_large(std::uint64_t bytes_max);

// Memory for parsed JSON. Throws std::bad_alloc where it would take more than `bytes_max`.
class BoundedJsonMemory : public boost::json::memory_resource {
public:
    explicit BoundedJsonMemory(std::uint64_t bytes_max) : left_bytes_(bytes_max) {}

private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override;
    void do_deallocate(void* place, std::size_t bytes, std::size_t alignment) override;
    bool do_is_equal(const boost::json::memory_resource& other) const noexcept override { return this == &other; }

    std::uint64_t left_bytes_;
};

}  // namespace larder::cache
