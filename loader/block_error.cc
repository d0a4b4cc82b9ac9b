#include "loader/block_error.h"

#include <cstring>

#include "base/units.h"

namespace larder::detail {

using protocol::BlockStatus;

Error block_error(const protocol::Manifest& manifest, const BlockEntry& entry, const std::string& dataset) {
    const protocol::Object object = manifest.object(manifest.block(entry.block).object);
    const std::string what = "object \"" + std::string(object.path) + "\" of dataset \"" + dataset + "\" ";
    const std::string remedy = ": run `larder dataset index " + dataset + "`; a Loader with skip_failed leaves it out";
    Error error{.code = ErrorCode::io, .message = {}, .system_errno = entry.system_errno};
    if (entry.anew && entry.status == BlockStatus::object_corrupt) {
        error.code = ErrorCode::corrupt;
        error.message = what + "is damaged at the remote, which was read twice: " + entry.damage + remedy;
        return error;
    }
    switch (entry.status) {
        case BlockStatus::object_changed:
            error.code = ErrorCode::changed;
            error.message = what + "has changed since it was indexed" + remedy;
            break;
        case BlockStatus::object_truncated:
            error.code = ErrorCode::changed;
            error.message = what + "is shorter than when it was indexed" + remedy;
            break;
        case BlockStatus::object_missing:
            error.code = ErrorCode::not_found;
            error.message = what + "is gone from the remote" + remedy;
            break;
        case BlockStatus::object_corrupt: {
            const protocol::Block block = manifest.block(entry.block);
            error.code = ErrorCode::corrupt;
            error.message = what + "is damaged at the remote: the " + std::to_string(block.length) +
                            " bytes from offset " + std::to_string(block.offset) +
                            " do not have the checksum they had when it was indexed" + remedy;
            break;
        }
        case BlockStatus::remote_failed:
        case BlockStatus::ok:
            error.message = what + "could not be read from the remote";
            if (entry.system_errno != 0) error.message += std::string(": ") + std::strerror(entry.system_errno);
            break;
    }
    return error;
}

Error starved_error(const BlockClient& client, const std::string& who_holds) {
    return {.code = ErrorCode::no_space,
            .message = "no room for the next samples: " + format_bytes(client.slot_bytes_occupied()) + " of " +
                       format_bytes(client.slot_bytes()) + " of slot memory are kept by " + who_holds +
                       "; release batches sooner, or raise memory_budget_bytes",
            .system_errno = 0};
}

}  // namespace larder::detail
