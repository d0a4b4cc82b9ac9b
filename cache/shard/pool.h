#pragma once

// A pool of objects that the data plane takes and releases without using the heap once enough exist. A taken object
// keeps its address and is value-initialised.

#include <cstddef>
#include <memory>
#include <vector>

#include "base/assert.h"

namespace larder::cache {

template <typename T>
class Pool {
public:
    T* take() {
        if (free_.empty()) grow();
        T* object = free_.back();
        free_.pop_back();
        ++taken_;
        *object = T{};
        return object;
    }

    void release(T* object) {
        LARDER_ASSERT(taken_ > 0);
        --taken_;
        free_.push_back(object);
    }

    std::size_t taken() const { return taken_; }

private:
    static constexpr std::size_t kChunk = 256;

    void grow() {
        chunks_.push_back(std::make_unique<T[]>(kChunk));
        free_.reserve(chunks_.size() * kChunk);
        for (std::size_t i = kChunk; i-- > 0;) free_.push_back(&chunks_.back()[i]);
    }

    std::vector<std::unique_ptr<T[]>> chunks_;
    std::vector<T*> free_;
    std::size_t taken_ = 0;
};

}  // namespace larder::cache
