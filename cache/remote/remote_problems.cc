#include "cache/remote/remote_problems.h"

#include <algorithm>

namespace larder::cache {

void RemoteProblems::note(std::string_view path, std::string_view message) {
    const std::scoped_lock lock(mutex_);
    const auto known = std::ranges::find(problems_, path, &Problem::path);
    if (known != problems_.end()) {
        problems_.erase(known);
    } else if (problems_.size() == kObjectsMax) {
        problems_.pop_front();
    }
    problems_.push_back({std::string(path), std::string(message)});
}

std::string RemoteProblems::latest(std::string_view path) const {
    const std::scoped_lock lock(mutex_);
    const auto known = std::ranges::find(problems_, path, &Problem::path);
    return known == problems_.end() ? std::string() : known->message;
}

}  // namespace larder::cache
