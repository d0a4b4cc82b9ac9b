#include "bench/lru_store.h"

namespace larder::bench {

LruStore::Bytes LruStore::look_up(std::uint32_t dataset, std::uint32_t block) {
    const std::lock_guard lock(mutex_);
    const auto found = cached_.find(key_of(dataset, block));
    if (found == cached_.end()) return nullptr;
    recent_first_.splice(recent_first_.begin(), recent_first_, found->second);
    return found->second->bytes;
}

void LruStore::insert(std::uint32_t dataset, std::uint32_t block, const Bytes& bytes) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t key = key_of(dataset, block);
    if (cached_.contains(key) || bytes->size() > capacity_bytes_) return;
    while (bytes_ + bytes->size() > capacity_bytes_) {
        bytes_ -= recent_first_.back().bytes->size();
        cached_.erase(recent_first_.back().key);
        recent_first_.pop_back();
    }
    recent_first_.push_front({key, bytes});
    cached_[key] = recent_first_.begin();
    bytes_ += bytes->size();
}

}  // namespace larder::bench
