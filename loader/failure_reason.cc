#include "loader/failure_reason.h"

#include <cstring>
#include <span>

#include "cache/protocol/wire.h"
#include "loader/daemon_socket.h"

namespace larder::detail {
namespace {

constexpr int kAnswerTimeout_ms = 2'000;

}  // namespace

std::string failure_reason(const FailedBlock& failed) {
    protocol::ExplainRequest request{};
    request.magic = protocol::kMagic;
    request.version = protocol::kVersion;
    request.kind = protocol::MessageKind::explain;
    request.block = failed.block;
    request.manifest_version = failed.manifest_version;
    if (failed.dataset.size() >= sizeof request.dataset) return {};
    std::memcpy(request.dataset, failed.dataset.data(), failed.dataset.size());
    auto socket = DaemonSocket::connect(failed.socket);
    if (!socket || !socket->send(std::as_bytes(std::span(&request, 1)))) return {};
    protocol::ExplainReply reply{};
    const auto received = socket->receive(std::as_writable_bytes(std::span(&reply, 1)), kAnswerTimeout_ms);
    if (!received || received->bytes != sizeof reply || reply.magic != protocol::kMagic ||
        reply.kind != protocol::MessageKind::explain) {
        return {};
    }
    return std::string(reply.reason, ::strnlen(reply.reason, sizeof reply.reason));
}

}  // namespace larder::detail
