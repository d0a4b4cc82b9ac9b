#include "bench/loopback.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "bench/feeder.h"

namespace larder::bench {
namespace {

Result<FileDescriptor> tcp_socket() {
    FileDescriptor created(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (created.get() < 0) return fail_errno(errno, "make a socket");
    return created;
}

// Returns the two ends of one connection: to write into, and to read from.
Result<std::pair<FileDescriptor, FileDescriptor>> connection() {
    auto listening = tcp_socket();
    auto writing_end = tcp_socket();
    if (!listening || !writing_end) return std::unexpected(!listening ? listening.error() : writing_end.error());
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const generic_address = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    if (::bind(listening->get(), generic_address, size) != 0 || ::listen(listening->get(), 1) != 0 ||
        ::getsockname(listening->get(), generic_address, &size) != 0 ||
        ::connect(writing_end->get(), generic_address, size) != 0) {
        return fail_errno(errno, "connect over loopback");
    }
    FileDescriptor reading_end(::accept4(listening->get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (reading_end.get() < 0) return fail_errno(errno, "accept over loopback");
    return std::pair(std::move(*writing_end), std::move(reading_end));
}

}  // namespace

Result<double> loopback_rate(std::span<const std::byte> data, std::span<std::byte> received, std::uint64_t block_bytes,
                             std::uint64_t seed) {
    auto ends = connection();
    if (!ends) return std::unexpected(ends.error());
    std::vector<std::size_t> order(data.size() / block_bytes);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::mt19937_64 random(seed);
    std::ranges::shuffle(order, random);

    const SteadyClock clock;
    const std::int64_t began_ns = clock.now_ns();
    std::jthread writer([&, writing_end = std::move(ends->first)] {
        for (const std::size_t block : order) {
            auto left = data.subspan(block * block_bytes, block_bytes);
            while (!left.empty()) {
                const ssize_t sent = ::send(writing_end.get(), left.data(), left.size(), MSG_NOSIGNAL);
                if (sent < 0 && errno != EINTR) return;  // the reader sees the end
                if (sent > 0) left = left.subspan(static_cast<std::size_t>(sent));
            }
        }
    });
    // Declared after the writer, so that it is closed first: the writer may be waiting for its end of the connection.
    const FileDescriptor reading_end = std::move(ends->second);
    std::size_t bytes = 0;
    std::uint64_t sum = 0;
    while (bytes < order.size() * block_bytes) {
        const std::size_t wanted = std::min<std::size_t>(block_bytes, order.size() * block_bytes - bytes);
        const ssize_t got = ::recv(reading_end.get(), received.data() + bytes, wanted, MSG_WAITALL);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno(errno, "read over loopback");
        if (got == 0) return fail(ErrorCode::internal, "the loopback connection ended early");
        sum += sum_bytes(received.data() + bytes, static_cast<std::size_t>(got));
        bytes += static_cast<std::size_t>(got);
    }
    const double seconds = seconds_since(clock, began_ns);
    if (sum == 0) return fail(ErrorCode::internal, "nothing but zeros came over loopback");
    return static_cast<double>(bytes) / seconds;
}

}  // namespace larder::bench
