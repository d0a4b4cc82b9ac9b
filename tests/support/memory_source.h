#pragma once

// In-memory bytes and objects for parsers and indexers. Every read returns a copy that lives only until the next read,
// so that a view kept too long is a use after free. Reads out of range fail loudly. Reads are counted. An object source
// may be used from several threads, like the real ones.

#include <atomic>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "cache/remote/object_source.h"

namespace larder::test {

class MemoryReader final : public cache::ObjectReader {
public:
    MemoryReader(std::string_view bytes, std::int64_t tag, std::atomic<std::uint64_t>* bytes_read = nullptr)
        : bytes_(bytes), tag_(tag), bytes_read_(bytes_read) {}
    explicit MemoryReader(std::string_view bytes) : MemoryReader(bytes, 0) {}

    std::uint64_t size_bytes() const override { return bytes_.size(); }
    std::int64_t tag() const override { return tag_; }
    Result<std::span<const std::byte>> read(std::uint64_t offset, std::size_t bytes) override {
        LARDER_ASSERT(offset <= bytes_.size() && bytes <= bytes_.size() - offset);
        const auto wanted = std::as_bytes(std::span(bytes_.substr(offset, bytes)));
        copy_ = std::vector<std::byte>(wanted.begin(), wanted.end());
        if (bytes_read_ != nullptr) *bytes_read_ += bytes;
        return copy_;
    }

private:
    std::string_view bytes_;
    std::int64_t tag_;
    std::atomic<std::uint64_t>* bytes_read_;
    std::vector<std::byte> copy_;
};

class MemorySource final : public cache::ObjectSource {
public:
    std::map<std::string, std::string> objects;
    std::atomic<std::uint64_t> bytes_read{0};
    bool lists = true;  // false: index.json only, like HTTP, which has no listing

    std::string description() const override { return "memory"; }
    Result<cache::ObjectListing> list(const std::function<void(std::uint64_t, std::uint64_t)>&,
                                      std::stop_token stop) override {
        if (stop.stop_requested()) return fail(ErrorCode::cancelled, "listing was cancelled");
        cache::ObjectListing listing;
        for (const auto& [path, content] : objects) {
            if (!content.empty() && (lists || path == "index.json")) listing.add(path, content.size(), tag_of(content));
        }
        return listing;
    }
    Result<std::unique_ptr<cache::ObjectReader>> open(const std::string& path) override {
        const auto found = objects.find(path);
        if (found == objects.end()) return fail(ErrorCode::not_found, path + " is not there");
        return std::make_unique<MemoryReader>(found->second, tag_of(found->second), &bytes_read);
    }

private:
    static std::int64_t tag_of(const std::string& content) { return static_cast<std::int64_t>(content.size()) + 7; }
};

// Returns numbers as little-endian bytes, for layouts written by hand.
template <typename Number>
std::string number_bytes(Number number) {
    return {reinterpret_cast<const char*>(&number), sizeof number};
}
template <typename Number>
std::string numbers_bytes(const std::vector<Number>& numbers) {
    return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

}  // namespace larder::test
