// A client whose ring changes while the daemon reads it, and that uses the descriptors which it shares with the daemon.
// Its session is served or closed. Another session still gets its blocks.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>

#include "tests/unit/cache/shard/shard_fixture.h"

namespace larder::test {
namespace {

constexpr cache::Quota kSmall{.memory_bytes = 512 << 10, .disk_bytes = 512 << 10};

// Another process that writes random bytes over the ring until it is killed. As another process, as a real client is:
// its writes are no data race for TSan.
class RingMutator {
public:
    // `stride`: writes the bytes from 0 to `stride` of the ring; 0: all bytes.
    RingMutator(std::span<std::byte> ring, std::uint64_t seed, std::size_t stride) : process_(::fork()) {
        if (process_ != 0) return;
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        const std::size_t bytes = stride == 0 ? ring.size() : std::min(stride, ring.size());
        // No allocation and no lock: the process was forked from a program with threads.
        for (std::uint64_t state = seed * 2 + 1;;) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            reinterpret_cast<volatile std::byte*>(ring.data())[(state >> 33) % bytes] =
                static_cast<std::byte>(state >> 24);
        }
    }
    ~RingMutator() {
        ::kill(process_, SIGKILL);
        ::waitpid(process_, nullptr, 0);
    }
    RingMutator(const RingMutator&) = delete;
    RingMutator& operator=(const RingMutator&) = delete;

private:
    pid_t process_;
};

protocol::Request random_request(std::mt19937_64& random) {
    return {.operation = static_cast<protocol::RequestOperation>(1 + random() % 3),
            .tag = static_cast<std::uint32_t>(random()),
            .block = static_cast<std::uint32_t>(random() % 40),
            .slot_page = static_cast<std::uint32_t>(random() % 1100),
            .epoch = static_cast<std::uint32_t>(random() % 4)};
}

void touch_descriptors(RingClient& client, std::mt19937_64& random) {
    const int event = client.request_event();
    const std::uint64_t most = ~std::uint64_t{1};
    std::uint64_t value = 0;
    const int bytes = static_cast<int>(random() % 5000);
    switch (random() % 8) {
        case 0:
            // The descriptors of the daemon and the client share this flag: reads now block at either end.
            ::fcntl(event, F_SETFL, O_NONBLOCK);
            static_cast<void>(!::read(event, &value, sizeof value));
            ::fcntl(event, F_SETFL, 0);
            return;
        case 1: ::fcntl(event, F_SETFL, O_NONBLOCK), static_cast<void>(!::read(event, &value, sizeof value)); return;
        case 2: ::fcntl(event, F_SETFL, O_NONBLOCK), static_cast<void>(!::write(event, &most, sizeof most)); return;
        case 3: ::fcntl(client.socket(), F_SETFL, random() % 2 == 0 ? O_NONBLOCK : 0); return;
        case 4: ::setsockopt(client.socket(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes); return;
        case 5: ::madvise(client.ring().data(), client.ring().size(), MADV_REMOVE); return;  // all zeros
        case 6: ::shutdown(client.socket(), static_cast<int>(random() % 3)); return;
        default: ::send(client.socket(), &value, 1 + random() % sizeof value, MSG_NOSIGNAL | MSG_DONTWAIT); return;
    }
}

TEST(ChangingRing, NeighbourIsServedWhateverTheClientDoes) {
    ShardWorld world({.blocks = 32, .block_bytes_max = 6000, .quota = kSmall});
    RingClient& neighbour = world.attach({.session_id = 1, .job = "neighbour"});
    std::mt19937_64 random(3);
    std::uint64_t served = 0;
    for (std::uint64_t session = 2; session < 120; ++session) {
        RingClient& client = world.attach({.session_id = session, .job = "hostile"});
        {
            // Now all of the ring changes, now only its indices or its first requests.
            constexpr std::array<std::size_t, 3> kStrides{0, 192, 4096};
            const RingMutator mutator(client.ring(), session, kStrides[session % kStrides.size()]);
            for (int i = 0; i < 60 && !client.hung_up(); ++i) {
                if (i % 10 == 9) touch_descriptors(client, random);
                client.submit(random_request(random));
                world.turns(2);
                for (std::uint32_t n = 0; n < client.ring_entries() && client.next_completion(); ++n) ++served;
            }
        }
        world.clients.pop_back();
        world.turns(5);
        const auto block = static_cast<std::uint32_t>(random() % 32);
        const auto read = world.read(neighbour, block);
        ASSERT_EQ(read.status, protocol::BlockStatus::ok) << "session " << session;
        ASSERT_EQ(read.bytes, world.content[block]) << "session " << session;
    }
    EXPECT_GT(served, 100u) << "the hostile sessions were never served";
}

// Empties an event that the daemon has already seen fire, when the device completes it.
struct Emptying {
    static void run(cache::Operation& operation, std::int32_t) noexcept {
        auto& self = reinterpret_cast<Emptying&>(operation);
        std::uint64_t count = 0;
        self.is_emptied = ::read(self.event, &count, sizeof count) == ssize_t{sizeof count};
    }

    cache::Operation operation{.done = run};
    int event = -1;
    bool is_emptied = false;
};

TEST(ChangingRing, EventEmptiedAfterItFiredDoesNotBlockTheDaemon) {
    ShardWorld world({.blocks = 8, .block_bytes_max = 6000, .quota = kSmall});
    RingClient& neighbour = world.attach({.session_id = 1, .job = "neighbour"});
    RingClient& hostile = world.attach({.session_id = 2, .job = "hostile"});
    world.turns(3);
    // The daemon shares this flag: a plain read of the empty event would now block it for ever.
    ASSERT_EQ(::fcntl(hostile.request_event(), F_SETFL, 0), 0);
    Emptying emptying{.event = hostile.request_event()};
    world.device->start_timer(0, emptying.operation);
    world.clock.advance_ns(1);  // the timer is due before the event that fires now
    const std::uint64_t one = 1;
    ASSERT_EQ(::write(hostile.request_event(), &one, sizeof one), ssize_t{sizeof one});
    world.turns(1);
    EXPECT_TRUE(emptying.is_emptied);
    EXPECT_EQ(world.read(neighbour, 0).bytes, world.content[0]);
}

}  // namespace
}  // namespace larder::test
