#include "cache/dataset/index_json.h"

#include "cache/protocol/manifest.h"

namespace larder::cache {
namespace json = boost::json;
namespace {

constexpr std::uint64_t kIndexBytesMax = std::uint64_t{1} << 30;
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

Result<std::vector<JsonAt>> JsonAt::list() const {
    if (!value_->is_array()) return bad("is not a list");
    std::vector<JsonAt> items;
    const json::array& array = value_->get_array();
    items.reserve(array.size());
    for (std::size_t i = 0; i < array.size(); ++i) items.emplace_back(array[i], where_ + "[" + std::to_string(i) + "]");
    return items;
}

Result<std::string> JsonAt::text(std::string_view key) const {
    const auto value = at(key);
    return value ? value->text() : std::unexpected(value.error());
}

Result<std::uint64_t> JsonAt::whole(std::string_view key) const {
    const auto value = at(key);
    return value ? value->whole() : std::unexpected(value.error());
}

Result<std::vector<JsonAt>> JsonAt::list(std::string_view key) const {
    const auto value = at(key);
    return value ? value->list() : std::unexpected(value.error());
}

Result<JsonAt> read_index_json(ObjectSource& source, const std::string& path, json::value& memory) {
    const auto bytes = source.read_all(path, kIndexBytesMax);
    if (!bytes) return std::unexpected(bytes.error());
    boost::system::error_code error;
    memory = json::parse(std::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size()), error);
    if (error) return fail(ErrorCode::corrupt, path + " is not JSON: " + error.message());
    return JsonAt(memory, path + ": ");
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
