#include "cache/control/dataset_request.h"

#include <boost/json.hpp>

#include "base/server/json_reader.h"
#include "cache/control/api_json.h"
#include "cache/control/dataset_access.h"
#include "cache/control/remote_json.h"

namespace larder::cache {
namespace json = boost::json;

Result<DatasetRequest> read_dataset_request(const json::object& object) {
    JsonReader reader(object, "request body");
    DatasetRequest request;
    request.name = reader.string("name");
    request.url = reader.string("url");
    request.format = reader.optional_string("format");
    request.block = reader.optional_string("block");
    request.compression = reader.optional_string("compression");
    request.dry_run = reader.optional_boolean("dry_run").value_or(false);
    request.checksum = reader.optional_boolean("checksum").value_or(false);
    request.tokens_per_sample = reader.optional_unsigned_integer("tokens_per_sample");
    request.owner = reader.optional_string("owner");
    request.group = reader.optional_string("group");
    if (const auto text = reader.optional_string("mode")) {
        const auto mode = parse_mode(*text);
        if (!mode) return std::unexpected(mode.error());
        request.mode = *mode;
    }
    const json::object* quota = reader.optional_object("quota");
    const json::object* remote = reader.optional_object("remote");
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    if (quota != nullptr) {
        const auto read = read_quota(*quota, "request body: quota");
        if (!read) return std::unexpected(read.error());
        request.quota_memory_bytes = read->memory_bytes;
        request.quota_disk_bytes = read->disk_bytes;
    }
    if (remote != nullptr) {
        auto read = read_remote(*remote, "request body: remote");
        if (!read) return std::unexpected(read.error());
        request.remote = std::move(*read);
    }
    return request;
}

}  // namespace larder::cache
