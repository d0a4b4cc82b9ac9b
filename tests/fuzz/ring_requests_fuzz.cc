// Any bytes as a client's requests and indices in its ring and messages on its socket. The daemon serves them or closes
// that session. Another session beside it still gets its blocks.

#include <sys/socket.h>

#include <cstdint>
#include <cstring>

#include "base/assert.h"
#include "tests/unit/cache/shard/shard_fixture.h"

namespace larder::cache {
namespace {

using protocol::Request;
using protocol::SegmentMessage;

constexpr Quota kQuota{.memory_bytes = 512 << 10, .disk_bytes = 512 << 10};

test::ShardWorld& world() {
    static test::ShardWorld shared({.blocks = 32, .block_bytes_max = 6000, .quota = kQuota});
    return shared;
}

void play(test::RingClient& client, std::span<const std::uint8_t> input) {
    while (input.size() > sizeof(Request)) {
        const std::uint8_t choices = input[0];
        Request request;
        std::memcpy(&request, input.data() + 1, sizeof request);
        input = input.subspan(1 + sizeof request);
        // Mostly small numbers, so that some requests are valid.
        if (choices & 1) request.block %= 40;
        if (choices & 2) request.slot_page %= 1100;
        if (choices & 4) request.operation = static_cast<protocol::RequestOperation>(1 + (choices >> 6) % 3);
        if ((choices & 0xc0) == 0xc0 && request.block < world().content.size()) {
            request.damaged_crc = crc32c(std::as_bytes(std::span(world().content[request.block])));
        }
        if (choices & 8) request.epoch %= 4;
        if ((choices & 0x70) == 0x10) client.control().request_tail.fetch_add(request.tag % 400);
        if ((choices & 0x70) == 0x20) client.control().completion_head.store(request.tag);
        if ((choices & 0x70) == 0x30) {
            const SegmentMessage message{.magic = choices & 8 ? protocol::kMagic : request.tag,
                                         .kind = static_cast<protocol::MessageKind>(request.epoch % 8),
                                         .segment = request.block,
                                         .reserved = 0,
                                         .segment_bytes = 0};
            [[maybe_unused]] const auto sent =
                ::send(client.socket(), &message, 1 + request.tag % sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        client.submit(request);
        if (choices & 4) world().turns(1);
        while (client.next_completion()) {
        }
        if (client.hung_up()) return;
    }
}

}  // namespace
}  // namespace larder::cache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace larder::cache;
    static larder::test::RingClient& neighbour = world().attach({.session_id = 1, .job = "neighbour"});
    static std::uint64_t next_session_id = 2;
    play(world().attach({.session_id = next_session_id++, .job = "fuzzed"}), {data, size});
    world().clients.pop_back();
    world().turns(5);
    const std::uint32_t block = static_cast<std::uint32_t>(size) % 32;
    const auto read = world().read(neighbour, block);
    LARDER_ASSERT(read.status == larder::protocol::BlockStatus::ok && read.bytes == world().content[block]);
    return 0;
}
