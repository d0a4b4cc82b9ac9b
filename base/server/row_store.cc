#include "base/server/row_store.h"

#include <boost/json.hpp>

#include <cstring>

#include "base/hash.h"

namespace larder {
namespace {

namespace json = boost::json;

std::uint32_t crc_of(std::string_view key, std::string_view text) {
    return crc32c(std::as_bytes(std::span(text)), crc32c(std::as_bytes(std::span(key))));
}

Result<std::uint64_t> version_in(std::string_view text) {
    json::error_code error;
    const json::value value = json::parse(text, error);
    const json::object* object = error ? nullptr : value.if_object();
    const json::value* version = object == nullptr ? nullptr : object->if_contains("version");
    if (version == nullptr || !version->is_number()) {
        return fail(ErrorCode::corrupt, "row \"version\" cannot be parsed");
    }
    const auto number = version->to_number<std::uint64_t>(error);
    if (error) return fail(ErrorCode::corrupt, "row \"version\" cannot be parsed");
    return number;
}

}  // namespace

std::string seal_row(std::string_view key, std::string_view text) {
    const std::uint32_t crc = crc_of(key, text);
    std::string value(sizeof crc, '\0');
    std::memcpy(value.data(), &crc, sizeof crc);
    return value.append(text);
}

std::optional<std::string_view> open_row(std::string_view key, std::string_view value) {
    std::uint32_t crc = 0;
    if (value.size() < sizeof crc) return std::nullopt;
    std::memcpy(&crc, value.data(), sizeof crc);
    value.remove_prefix(sizeof crc);
    if (crc != crc_of(key, value)) return std::nullopt;
    return value;
}

std::size_t bytes_of(std::span<const Row> rows) {
    std::size_t bytes = 0;
    for (const Row& row : rows) bytes += row.key.size() + (row.text ? row.text->size() : 0);
    return bytes;
}

Row version_row(std::uint64_t version) {
    return {std::string(kVersionKey), R"({"version":)" + std::to_string(version) + "}"};
}

Result<void> check_version(std::string_view text, const RowStoreOptions& options, const std::string& where) {
    const auto version = version_in(text);
    if (!version)
        return std::unexpected(version.error().within("read the " + std::string(options.noun) + " in " + where));
    if (*version <= options.version) return {};
    return fail(ErrorCode::unsupported, "the " + std::string(options.noun) + " in " + where + " has version " +
                                            std::to_string(*version) + ", but this " + std::string(options.program) +
                                            " reads " + std::to_string(options.version) +
                                            " and older: run a newer one, or move it away");
}

}  // namespace larder
