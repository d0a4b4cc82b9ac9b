#pragma once

// Reads the index.json that another tool wrote for a dataset. The size of the file is bounded, and so is the memory
// that its values take. The file is parsed as it is read, so that memory follows the text that is JSON and not the size
// of the file. Values are read by name, so that an error names the file and the value ("train/index.json:
// shards[3].samples is not a whole number"). Other keys are ignored, because writers add keys with each version. A
// JsonAt is valid as long as the `memory` given to read_index_json. One thread.

#include <boost/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/dataset/index_memory.h"
#include "cache/remote/object_source.h"

namespace larder::cache {

class JsonList;

// A value and its position in the file, for error messages.
class JsonAt {
public:
    JsonAt(const boost::json::value& value, std::string where) : value_(&value), where_(std::move(where)) {}

    Result<JsonAt> at(std::string_view key) const;
    // Returns nullopt if the value is missing or null.
    std::optional<JsonAt> find(std::string_view key) const;
    Result<std::string> text(std::string_view key) const;
    Result<std::uint64_t> whole(std::string_view key) const;
    Result<JsonList> list(std::string_view key) const;

    Result<std::string> text() const;
    Result<std::uint64_t> whole() const;
    Result<JsonList> list() const;
    bool is_null() const { return value_->is_null(); }
    bool is_object() const { return value_->is_object(); }
    const boost::json::value& value() const { return *value_; }
    std::unexpected<Error> bad(const std::string& what) const;

private:
    const boost::json::value* value_;
    std::string where_;
};

// The items of a list. An item is made when it is asked for: a list may have many.
class JsonList {
public:
    class Iterator {
    public:
        Iterator(const JsonList& list, std::size_t at) : list_(&list), at_(at) {}
        JsonAt operator*() const { return (*list_)[at_]; }
        Iterator& operator++() {
            ++at_;
            return *this;
        }
        bool operator==(const Iterator& other) const { return at_ == other.at_; }

    private:
        const JsonList* list_;
        std::size_t at_;
    };

    JsonList(const boost::json::array& items, std::string where) : items_(&items), where_(std::move(where)) {}

    std::size_t size() const { return items_->size(); }
    bool empty() const { return items_->empty(); }
    JsonAt operator[](std::size_t at) const { return {(*items_)[at], where_ + "[" + std::to_string(at) + "]"}; }
    Iterator begin() const { return {*this, 0}; }
    Iterator end() const { return {*this, size()}; }

private:
    const boost::json::array* items_;
    std::string where_;
};

// Returns the root value of the file. `memory` owns the value.
Result<JsonAt> read_index_json(ObjectSource& source, const std::string& path, std::optional<boost::json::value>& memory,
                               std::uint64_t bytes_max = index_bytes_max());

// Returns the path that `entry` has under `key`, relative to the dataset: "a/b" for an index.json in "a" that names
// "b". Fails if the path leads out of the dataset.
Result<std::string> path_beside(const std::string& index_path, const JsonAt& entry, std::string_view key);

// Returns the paths of the index files of a dataset: the one at the root, else all below the root, sorted.
Result<std::vector<std::string>> find_index_files(ObjectSource& source, std::stop_token stop);

}  // namespace larder::cache
