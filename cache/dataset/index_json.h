#pragma once

// Reads the index.json of a dataset that others wrote: bounded, and every value by name, so that an error says which
// file and which value of it ("train/index.json: shards[3].samples is not a whole number"). Keys that are not asked for
// are left alone, as writers add some with each version. Values stay valid as long as the JsonFile. One thread.

#include <boost/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/object_source.h"

namespace larder::cache {

// A value and where it stands, for messages.
class JsonAt {
public:
    JsonAt(const boost::json::value& value, std::string where) : value_(&value), where_(std::move(where)) {}

    Result<JsonAt> at(std::string_view key) const;
    // nullopt where it is missing or null.
    std::optional<JsonAt> find(std::string_view key) const;
    Result<std::string> text(std::string_view key) const;
    Result<std::uint64_t> whole(std::string_view key) const;
    Result<std::vector<JsonAt>> list(std::string_view key) const;

    Result<std::string> text() const;
    Result<std::uint64_t> whole() const;
    Result<std::vector<JsonAt>> list() const;
    bool is_null() const { return value_->is_null(); }
    bool is_object() const { return value_->is_object(); }
    const boost::json::value& value() const { return *value_; }
    std::unexpected<Error> bad(const std::string& what) const;

private:
    const boost::json::value* value_;
    std::string where_;
};

// The file's value. `memory` keeps it.
Result<JsonAt> read_index_json(ObjectSource& source, const std::string& path, boost::json::value& memory);

// The path that `entry` names under `key`, relative to the dataset: "a/b" for an index.json in "a" that names "b"; an
// error for names that lead out of the dataset.
Result<std::string> path_beside(const std::string& index_path, const JsonAt& entry, std::string_view key);

// The paths of the index files that make up a dataset: the one at the root, else all below it, in the order of paths.
Result<std::vector<std::string>> find_index_files(ObjectSource& source, std::stop_token stop);

}  // namespace larder::cache
