#include "loader/block_error.h"

#include <cerrno>
#include <cstring>

#include "base/units.h"

namespace larder::detail {

using protocol::BlockStatus;

namespace {

std::string remote_reason(const BlockClient& client, const BlockEntry& entry) {
    if (std::string reason = client.failure_reason_of(entry); !reason.empty()) return reason;
    if (entry.system_errno == 0) return "the daemon's log says why";
    std::string text = std::strerror(entry.system_errno);
    if (entry.system_errno == EACCES) text += "; give the daemon's user read access to the file and its directories";
    return text;
}

}  // namespace

Error block_error(const BlockClient& client, const BlockEntry& entry, const std::string& dataset) {
    const protocol::Block block = client.manifest().block(entry.block);
    const protocol::Object object = client.manifest().object(block.object);
    const std::string what = "object \"" + std::string(object.path) + "\" of dataset \"" + dataset + "\" ";
    const std::string index_command = "`larder dataset index " + dataset + "`";
    const std::string skip_hint = "; a Loader with skip_failed leaves it out";
    // Indexing again does not repair wrong bytes.
    const std::string repair_hint = ": put a good copy in its place and run " + index_command + skip_hint;
    Error error{.code = ErrorCode::io, .message = {}, .system_errno = entry.system_errno};
    switch (entry.status) {
        case BlockStatus::object_changed:
            error.code = ErrorCode::changed;
            error.message = what + "has changed since it was indexed: run " + index_command + skip_hint;
            break;
        case BlockStatus::object_truncated:
            error.code = ErrorCode::changed;
            error.message = what + "is shorter than when it was indexed: run " + index_command + skip_hint;
            break;
        case BlockStatus::object_missing:
            error.code = ErrorCode::not_found;
            error.message = what + "is gone from the remote: put it back, or run " + index_command +
                            " to continue without it" + skip_hint;
            break;
        case BlockStatus::object_corrupt: {
            const std::string bytes =
                std::to_string(block.length) + " bytes from offset " + std::to_string(block.offset);
            error.code = ErrorCode::corrupt;
            error.message = what + "is damaged at the remote: the " + bytes +
                            (entry.is_refetch ? " were read twice: " + entry.damage
                                              : " do not have the checksum they had when it was indexed") +
                            repair_hint;
            break;
        }
        case BlockStatus::remote_failed:
        case BlockStatus::ok:
            error.message = what + "could not be read from the remote: " + remote_reason(client, entry);
            break;
    }
    return error;
}

Error starved_error(const BlockClient& client, const std::string& who_holds) {
    return {.code = ErrorCode::no_space,
            .message = "no room for the next samples: " + format_bytes(client.slot_bytes_occupied()) + " of " +
                       format_bytes(client.slot_bytes()) + " of slot memory are kept by " + who_holds +
                       "; release batches sooner, or raise the memory budget",
            .system_errno = 0};
}

}  // namespace larder::detail
