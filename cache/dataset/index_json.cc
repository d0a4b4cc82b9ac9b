#include "cache/dataset/index_json.h"

#include <algorithm>
#include <new>

#include "base/units.h"
#include "cache/protocol/manifest.h"

namespace larder::cache {
namespace json = boost::json;
namespace {

constexpr std::uint64_t kIndexBytesMax = std::uint64_t{1} << 30;
constexpr std::uint64_t kFirstReadBytes = std::uint64_t{1} << 20;
constexpr std::string_view kIndexName = "index.json";

}  // namespace

std::unexpected<Error> JsonAt::bad(const std::string& what) const {
    return fail(ErrorCode::corrupt, where_ + " " + what);
}

Result<JsonAt> JsonAt::at(std::string_view key) const {
    if (!value_->is_object()) return bad("is not an object");
    const json::value* found = value_->get_object().if_contains(key);
    if (found == nullptr) return bad("has no \"" + std::string(key) + "\"");
    return JsonAt(*found, where_ + (where_.ends_with(": ") ? "" : ".") + std::string(key));
}

std::optional<JsonAt> JsonAt::find(std::string_view key) const {
    if (!value_->is_object() || !value_->get_object().contains(key)) return std::nullopt;
    const auto found = at(key);
    if (!found || found->is_null()) return std::nullopt;
    return *found;
}

Result<std::string> JsonAt::text() const {
    if (!value_->is_string()) return bad("is not a string");
    return std::string(value_->get_string());
}

Result<std::uint64_t> JsonAt::whole() const {
    boost::system::error_code error;
    const auto number = value_->to_number<std::uint64_t>(error);
    if (error) return bad("is not a whole number");
    return number;
}

Result<JsonList> JsonAt::list() const {
    if (!value_->is_array()) return bad("is not a list");
    return JsonList(value_->get_array(), where_);
}

Result<std::string> JsonAt::text(std::string_view key) const {
    const auto value = at(key);
    return value ? value->text() : std::unexpected(value.error());
}

Result<std::uint64_t> JsonAt::whole(std::string_view key) const {
    const auto value = at(key);
    return value ? value->whole() : std::unexpected(value.error());
}

Result<JsonList> JsonAt::list(std::string_view key) const {
    const auto value = at(key);
    return value ? value->list() : std::unexpected(value.error());
}

Result<JsonAt> read_index_json(ObjectSource& source, const std::string& path, std::optional<json::value>& memory,
                               std::uint64_t bytes_max) try {
    auto reader = source.open(path);
    if (!reader) return std::unexpected(reader.error());
    const std::uint64_t file_bytes = (*reader)->size_bytes();
    if (file_bytes > kIndexBytesMax) {
        return fail(ErrorCode::unsupported, path + " of " + source.description() + " has " + format_bytes(file_bytes) +
                                                "; at most " + format_bytes(kIndexBytesMax) + " can be read");
    }
    // The parser's own memory and that of the result, which is copied from it array by array.
    const auto bounded = json::make_shared_resource<BoundedJsonMemory>(bytes_max);
    json::stream_parser parser(bounded);
    parser.reset(bounded);
    boost::system::error_code error;
    // Each read quadruples what has been read, so that a large index needs few requests to its remote.
    for (std::uint64_t at = 0; at < file_bytes && !error;) {
        const std::uint64_t bytes = std::min(std::max(kFirstReadBytes, 3 * at), file_bytes - at);
        const auto read = (*reader)->read(at, bytes);
        if (!read) return std::unexpected(read.error().within(path));
        parser.write(reinterpret_cast<const char*>(read->data()), read->size(), error);
        at += bytes;
    }
    if (!error) parser.finish(error);
    if (error) return fail(ErrorCode::corrupt, path + " is not JSON: " + error.message());
    memory.emplace(parser.release());
    return JsonAt(*memory, path + ": ");
} catch (const std::bad_alloc&) {
    return std::unexpected(index_too_large(bytes_max).error().within(path));
}

Result<std::string> path_beside(const std::string& index_path, const JsonAt& entry, std::string_view key) {
    const auto name = entry.text(key);
    if (!name) return name;
    if (!protocol::is_plain_path(*name)) return entry.bad("names \"" + *name + "\", which is not a path below it");
    const std::size_t slash = index_path.rfind('/');
    return slash == std::string::npos ? *name : index_path.substr(0, slash + 1) + *name;
}

Result<std::vector<std::string>> find_index_files(ObjectSource& source, std::stop_token stop) {
    const std::string root(kIndexName);
    const auto opened = source.open(root);
    if (opened) return std::vector{root};
    if (opened.error().code != ErrorCode::not_found) return std::unexpected(opened.error());
    const auto listing = source.list({}, std::move(stop));
    if (!listing) return std::unexpected(listing.error());
    std::vector<std::string> found;
    for (const ObjectListing::Object& object : listing->objects) {
        const std::string_view path = listing->path(object);
        if (path.ends_with("/" + root)) found.emplace_back(path);
    }
    if (found.empty()) {
        return fail(ErrorCode::invalid_argument,
                    source.description() + " has no index.json, and neither has any directory below it");
    }
    return found;
}

}  // namespace larder::cache
