// Any bytes as a client's requests and indices in its ring and messages on its socket, any calls on the descriptors
// that it shares with the daemon, and a ring that changes while the daemon reads it. The daemon serves the client or
// closes its session. Another session beside it still gets its blocks.

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>

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

// Writes the input over the ring, from a place and in steps that the input chooses, until it is destroyed. A word
// that the daemon reads twice may differ between the two reads.
class RingMutator {
public:
    RingMutator(std::span<std::byte> ring, std::span<const std::uint8_t> input)
        : thread_([ring, input](const std::stop_token& stop) {
              std::size_t at = input[0] * std::size_t{97};
              for (std::size_t i = 0; !stop.stop_requested(); i = (i + 1) % input.size()) {
                  at = (at + 1 + input[i]) % ring.size();
                  std::atomic_ref(ring[at]).store(static_cast<std::byte>(input[i]), std::memory_order_relaxed);
              }
          }) {}

private:
    std::jthread thread_;
};

// One call on a descriptor that the client shares with the daemon.
void touch_descriptor(test::RingClient& client, std::uint8_t what, std::uint64_t value) {
    const int event = client.request_event();
    const int socket = client.socket();
    const int number = static_cast<int>(value);
    if (what % 10 < 3) ::fcntl(event, F_SETFL, O_NONBLOCK);  // this thread must not wait
    switch (what % 10) {
        case 0: static_cast<void>(!::write(event, &value, sizeof value)); return;
        case 1: static_cast<void>(!::read(event, &value, sizeof value)); return;
        case 2:
            static_cast<void>(!::read(event, &value, sizeof value));
            ::fcntl(event, F_SETFL, 0);  // reads block, also the daemon's
            return;
        case 3: ::fcntl(socket, F_SETFL, value % 2 == 0 ? O_ASYNC : O_NONBLOCK); return;
        case 4: ::fcntl(event, F_SETOWN, 0), ::fcntl(event, F_SETSIG, 0); return;
        case 5:
            ::setsockopt(socket, SOL_SOCKET, value % 2 == 0 ? SO_SNDBUF : SO_RCVBUF, &number, sizeof number);
            return;
        case 6: ::shutdown(socket, static_cast<int>(value % 3)); return;
        case 7:
            ::madvise(client.ring().data(), client.ring().size(), value % 2 == 0 ? MADV_DONTNEED : MADV_REMOVE);
            return;
        case 8: ::ioctl(socket, FIONBIO, &number); return;
        default: static_cast<void>(!::write(event, "x", 1)); return;
    }
}

void play(test::RingClient& client, std::span<const std::uint8_t> input) {
    std::optional<RingMutator> mutator;
    if (!input.empty() && input[0] % 4 == 3) mutator.emplace(client.ring(), input);
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
        if ((choices & 0x70) == 0x40) touch_descriptor(client, static_cast<std::uint8_t>(request.epoch), request.tag);
        client.submit(request);
        if (choices & 4) world().turns(1);
        // A ring that changes may show completions without end.
        for (std::uint32_t i = 0; i < client.ring_entries() && client.next_completion(); ++i) {
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
