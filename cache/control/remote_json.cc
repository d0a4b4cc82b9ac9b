#include "cache/control/remote_json.h"

#include "base/server/json_reader.h"

namespace larder::cache {
namespace {

const char* name(S3Addressing addressing) {
    return addressing == S3Addressing::path ? "path" : addressing == S3Addressing::host ? "host" : "auto";
}

}  // namespace

Result<S3Addressing> parse_addressing(std::string_view text) {
    for (const S3Addressing addressing : {S3Addressing::automatic, S3Addressing::path, S3Addressing::host}) {
        if (text == name(addressing)) return addressing;
    }
    return fail(ErrorCode::invalid_argument, "addressing \"" + std::string(text) + "\" is not auto, path or host");
}

boost::json::object remote_json(const RemoteOptions& options) {
    boost::json::object object;
    if (!options.endpoint.empty()) object["endpoint"] = options.endpoint;
    if (!options.region.empty()) object["region"] = options.region;
    if (!options.profile.empty()) object["profile"] = options.profile;
    if (options.addressing != S3Addressing::automatic) object["addressing"] = name(options.addressing);
    if (options.unsigned_access) object["unsigned"] = true;
    if (options.requester_pays) object["requester_pays"] = true;
    if (options.follow_symlinks) object["follow_symlinks"] = true;
    return object;
}

Result<RemoteOptions> read_remote(const boost::json::object& object, const std::string& where) {
    JsonReader reader(object, where);
    RemoteOptions options{.endpoint = reader.optional_string("endpoint").value_or(""),
                          .region = reader.optional_string("region").value_or(""),
                          .profile = reader.optional_string("profile").value_or("")};
    if (const auto text = reader.optional_string("addressing")) {
        const auto addressing = parse_addressing(*text);
        if (addressing) {
            options.addressing = *addressing;
        } else {
            reader.reject("addressing", "is not auto, path or host");
        }
    }
    options.unsigned_access = reader.optional_boolean("unsigned").value_or(false);
    options.requester_pays = reader.optional_boolean("requester_pays").value_or(false);
    options.follow_symlinks = reader.optional_boolean("follow_symlinks").value_or(false);
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    return options;
}

}  // namespace larder::cache
