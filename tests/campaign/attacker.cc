// larder-test-attacker SOCKET DATASET VICTIM_JOB METRICS_PORT JOBS SECONDS SEED [WEAPON...]: a user who misuses a
// daemon in every way that a client can, drawn from SEED, in several threads. Prints how often each weapon was used,
// and "BREACH: ..." for what the daemon must never allow. It uses up to JOBS job names. Without WEAPONs it uses all.
//
// Exit codes: 0: done; 2: wrong usage; 4: a breach.

#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "tests/support/hostile_client.h"

namespace larder {
namespace {

using protocol::MessageKind;
using protocol::Request;
using protocol::RequestOperation;
using std::chrono::milliseconds;
using test::HostileClient;
using test::HostileClientOptions;
using Clock = std::chrono::steady_clock;

constexpr int kThreads = 4;
constexpr int kBreach = 4;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class Draw {
public:
    explicit Draw(std::uint64_t seed) : state_(mix64(seed)) {}
    std::uint64_t word() { return state_ = mix64(state_); }
    std::uint64_t below(std::uint64_t end) { return word() % end; }
    bool one_in(std::uint64_t n) { return below(n) == 0; }

private:
    std::uint64_t state_;
};

struct Target {
    std::string socket;
    std::string dataset;
    std::string victim_job;
    std::uint16_t metrics_port = 0;
    std::uint64_t jobs = 1;
    Clock::time_point ends;
};

std::atomic<bool> breached = false;

void report_breach(const std::string& what) {
    breached = true;
    std::printf("BREACH: %s\n", what.c_str());
    std::fflush(stdout);
}

class Attacker {
public:
    Attacker(const Target& target, std::uint64_t seed) : target_(target), draw_(seed), seed_(seed) {}

    // Each weapon leaves behind what it opened in `hoard_` now and then.
    using Weapon = void (Attacker::*)();
    static const std::map<std::string, Weapon>& weapons();

    void use(Weapon weapon) {
        (this->*weapon)();
        if (hoard_.size() > kHoardMax || draw_.one_in(20)) hoard_.clear();
        if (sockets_.size() > kSocketsMax || draw_.one_in(20)) sockets_.clear();
    }
    // True every now and then: another thread of this process works at the same time.
    std::uint64_t draw_below(std::uint64_t end) { return draw_.below(end); }

private:
    static constexpr std::size_t kHoardMax = 200;
    static constexpr std::size_t kSocketsMax = 400;

    std::string new_job() {
        // Threads and processes share the first name.
        const std::uint64_t number = draw_.below(target_.jobs);
        return number == 0 ? "attack" : "j" + std::to_string(seed_) + "." + std::to_string(number);
    }
    std::optional<HostileClient> attach(HostileClientOptions options = {}) {
        if (options.job == "hostile") options.job = new_job();
        options.dataset = target_.dataset;
        auto client = HostileClient::open(target_.socket, options);
        if (!client) return std::nullopt;
        return std::move(*client);
    }
    void keep(std::optional<HostileClient> client) {
        if (client) hoard_.push_back(std::move(*client));
    }
    void pause(std::uint64_t most_ms) { std::this_thread::sleep_for(milliseconds(draw_.below(most_ms + 1))); }

    Request valid_request() {
        Request request{};
        request.operation = RequestOperation::fetch;
        request.block = static_cast<std::uint32_t>(draw_.below(200));
        request.slot_page = static_cast<std::uint32_t>(draw_.below(256));
        request.epoch = static_cast<std::uint32_t>(draw_.below(3));
        return request;
    }
    Request odd_request() {
        Request request = valid_request();
        const std::array odd{0u, 1u, 0x7fffffffu, 0x80000000u, 0xffffffffu, static_cast<std::uint32_t>(draw_.word())};
        request.operation = static_cast<RequestOperation>(draw_.one_in(8) ? draw_.below(256) : 1 + draw_.below(3));
        if (draw_.one_in(3)) request.block = odd[draw_.below(odd.size())];
        if (draw_.one_in(3)) request.slot_page = odd[draw_.below(odd.size())];
        if (draw_.one_in(2)) request.epoch = odd[draw_.below(odd.size())];
        if (draw_.one_in(3)) request.damaged_crc = odd[draw_.below(odd.size())];
        request.tag = static_cast<std::uint32_t>(draw_.word());
        return request;
    }

    void send_garbage() {
        for (int i = 0; i < 20; ++i) {
            auto socket = test::connect_to_daemon(target_.socket);
            if (!socket) return;
            std::array<std::uint64_t, 400> words{};
            for (auto& word : words) word = draw_.word();
            const std::array sizes{sizeof(protocol::OpenRequest), sizeof(protocol::AttachRequest),
                                   sizeof(protocol::ExplainRequest), std::size_t{draw_.below(sizeof words)}};
            const std::size_t bytes = sizes[draw_.below(sizes.size())];
            if (!draw_.one_in(4)) {
                const std::array<std::uint32_t, 3> head{protocol::kMagic, protocol::kVersion,
                                                        static_cast<std::uint32_t>(draw_.below(8))};
                std::memcpy(words.data(), head.data(), sizeof head);
            }
            ::send(socket->get(), words.data(), bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (draw_.one_in(3)) sockets_.push_back(std::move(*socket));
        }
    }
    // Opens with names that are long, not terminated, of others, or odd; with versions that are not there.
    void open_oddly() {
        for (int i = 0; i < 20; ++i) {
            auto socket = test::connect_to_daemon(target_.socket);
            if (!socket) return;
            protocol::OpenRequest open{
                .magic = protocol::kMagic, .version = protocol::kVersion, .kind = MessageKind::open};
            std::strncpy(open.dataset, target_.dataset.c_str(), sizeof open.dataset - 1);
            std::strncpy(open.job, draw_.one_in(2) ? target_.victim_job.c_str() : new_job().c_str(),
                         sizeof open.job - 1);
            if (draw_.one_in(3)) std::memset(open.job, static_cast<int>(draw_.below(256)), sizeof open.job);
            if (draw_.one_in(4)) std::memset(open.dataset, static_cast<int>(draw_.below(256)), sizeof open.dataset);
            if (draw_.one_in(4)) std::strncpy(open.dataset, "../data", sizeof open.dataset - 1);
            if (draw_.one_in(3)) open.manifest_version = draw_.word() >> draw_.below(64);
            ::send(socket->get(), &open, sizeof open, MSG_NOSIGNAL);
            protocol::OpenReply opened{};
            std::vector<FileDescriptor> handed;
            test::receive_with_descriptors(socket->get(), &opened, sizeof opened, 0, handed);
            if (opened.status != 0 || handed.empty()) continue;
            protocol::AttachRequest ask{.magic = protocol::kMagic,
                                        .kind = MessageKind::attach,
                                        .ring_entries = 1u << draw_.below(20),
                                        .order = static_cast<protocol::ReadOrder>(draw_.below(4)),
                                        .slot_bytes = (draw_.word() >> draw_.below(64)) & ~std::uint64_t{4095}};
            if (draw_.one_in(3)) ask.ring_entries = static_cast<std::uint32_t>(draw_.word());
            ::send(socket->get(), &ask, sizeof ask, MSG_NOSIGNAL);
            protocol::AttachReply attached{};
            test::receive_with_descriptors(socket->get(), &attached, sizeof attached, 0, handed);
            if (attached.status == 0 && handed.size() > 1 && open.job == target_.victim_job) {
                report_breach("a session of another user's job " + target_.victim_job);
            }
        }
    }
    void hoard_handshakes() {
        for (int i = 0; i < 100; ++i) {
            auto socket = test::connect_to_daemon(target_.socket);
            if (!socket) break;
            sockets_.push_back(std::move(*socket));
        }
        pause(20);
    }
    void hoard_sessions() {
        for (int i = 0; i < 30; ++i) keep(attach({.slot_bytes = std::uint64_t{4096} << draw_.below(4)}));
    }
    void hoard_memory() {
        for (int i = 0; i < 8; ++i) {
            auto client = attach({.slot_bytes = std::uint64_t{4} << 30});
            if (!client) client = attach({.slot_bytes = kMiB << draw_.below(10)});
            if (!client) return;
            for (int block = 0; block < 8; ++block) client->fetch(static_cast<std::uint32_t>(block));
            keep(std::move(client));
        }
    }
    // Attaches and closes in a loop, and keeps the memory of ended sessions.
    void keep_mapped() {
        for (int i = 0; i < 20; ++i) {
            auto client = attach({.slot_bytes = kMiB << draw_.below(6)});
            if (!client) return;
            client->fetch(static_cast<std::uint32_t>(draw_.below(100)));
            ::shutdown(client->socket(), SHUT_RDWR);
            sockets_.push_back(std::move(client->handed()[draw_.one_in(2) ? 2 : 1]));
        }
    }
    void shut_halves() {
        auto client = attach();
        if (!client) return;
        for (int i = 0; i < 30; ++i) client->put(valid_request());
        client->wake();
        ::shutdown(client->socket(), draw_.one_in(2) ? SHUT_RD : SHUT_WR);
        pause(5);
        keep(std::move(client));
    }

    void try_fcntl(int fd) {
        static constexpr std::array kCommands{F_SETFL,       F_SETOWN,    F_SETSIG,       F_SETLEASE,  F_NOTIFY,
                                              F_SETPIPE_SZ,  F_ADD_SEALS, F_GETFD,        F_OFD_SETLK, F_SETLK,
                                              F_SET_RW_HINT, F_GETFL,     F_DUPFD_CLOEXEC};
        const int command = kCommands[draw_.below(kCommands.size())];
        struct flock lock{};
        lock.l_type = static_cast<short>(draw_.one_in(2) ? F_WRLCK : F_RDLCK);
        if (command == F_OFD_SETLK || command == F_SETLK) {
            ::fcntl(fd, command, &lock);
        } else if (command == F_DUPFD_CLOEXEC) {
            const FileDescriptor copy(::fcntl(fd, command, 0));
        } else if (command == F_SETOWN) {
            ::fcntl(fd, command, daemon_of(fd));
        } else {
            static constexpr std::array kArguments{0, O_ASYNC, O_NONBLOCK, O_APPEND, O_DIRECT, O_NOATIME, SIGKILL, 31};
            ::fcntl(fd, command, draw_.one_in(3) ? static_cast<int>(draw_.word()) : kArguments[draw_.below(8)]);
        }
    }
    int daemon_of(int) const {
        ucred peer{};
        socklen_t length = sizeof peer;
        auto socket = test::connect_to_daemon(target_.socket);
        if (socket) ::getsockopt(socket->get(), SOL_SOCKET, SO_PEERCRED, &peer, &length);
        return peer.pid;
    }
    void misuse_descriptor(const HostileClient& client, int fd) {
        const bool is_ring = fd == client.handed()[1].get();
        const bool is_event = fd == client.request_event();
        for (int i = 0; i < 4; ++i) try_fcntl(fd);
        const int on = 1;
        ::ioctl(fd, draw_.one_in(2) ? FIOASYNC : FIONBIO, &on);
        ::fchmod(fd, 0);
        ::lseek(fd, static_cast<off_t>(draw_.word() >> 1), SEEK_SET);
        if (is_event) {
            const std::uint64_t count = draw_.one_in(2) ? 0xfffffffffffffffe : draw_.word();
            const iovec part{const_cast<std::uint64_t*>(&count), sizeof count};
            ::pwritev2(fd, &part, 1, -1, RWF_NOWAIT);
            return;
        }
        struct stat status{};
        if (::fstat(fd, &status) != 0) return;
        if (::ftruncate(fd, 0) == 0) report_breach("a client could truncate memory of the daemon");
        if (::ftruncate(fd, status.st_size + 4096) == 0) report_breach("a client could enlarge memory of the daemon");
        if (is_ring) {
            ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, status.st_size);
            return;
        }
        void* const memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (memory != MAP_FAILED) {
            report_breach("a client could map for writing what only the daemon writes");
            ::munmap(memory, 4096);
        }
        const std::string path = "/proc/self/fd/" + std::to_string(fd);
        const FileDescriptor again(::open(path.c_str(), O_RDWR | O_CLOEXEC));
        const std::uint64_t word = draw_.word();
        if (again && ::pwrite(again.get(), &word, sizeof word, 0) > 0) {
            report_breach("a client could open again, and write, what only the daemon writes");
        }
        if (again && ::fallocate(again.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, status.st_size) == 0) {
            report_breach("a client could punch a hole into what only the daemon writes");
        }
    }
    void misuse_descriptors() {
        auto client = attach();
        if (!client) return;
        for (int i = 0; i < 16; ++i) client->put(valid_request());
        client->wake();
        pause(10);
        client->take_segments();
        for (const FileDescriptor& fd : client->handed()) misuse_descriptor(*client, fd.get());
        for (int i = 0; i < 16; ++i) client->put(valid_request());
        client->wake();
        pause(10);
        keep(std::move(client));
    }
    void race_event() {
        auto client = attach();
        if (!client) return;
        ::fcntl(client->request_event(), F_SETFL, 0);
        std::uint64_t count = 1;
        const iovec part{&count, sizeof count};
        for (unsigned turn = 0; turn < 3000; ++turn) {
            count = 1;
            [[maybe_unused]] const auto rung = ::pwritev2(client->request_event(), &part, 1, -1, RWF_NOWAIT);
            for (unsigned wait = turn % 256 * 16; wait > 0; --wait) asm volatile("" ::: "memory");
            [[maybe_unused]] const auto taken = ::preadv2(client->request_event(), &part, 1, -1, RWF_NOWAIT);
        }
    }
    void misuse_futexes() {
        auto client = attach();
        if (!client) return;
        auto* const client_word = reinterpret_cast<std::uint32_t*>(&client->control().client_sleeping);
        auto* const daemon_word = reinterpret_cast<std::uint32_t*>(&client->control().daemon_sleeping);
        const timespec soon{.tv_sec = 0, .tv_nsec = 1'000'000};
        for (int i = 0; i < 50; ++i) {
            client->control().client_sleeping.store(static_cast<std::uint32_t>(draw_.word()));
            client->put(valid_request());
            client->wake();
            auto* const word = draw_.one_in(2) ? client_word : daemon_word;
            switch (draw_.below(5)) {
                case 0: ::syscall(SYS_futex, word, FUTEX_WAIT, *word, &soon, nullptr, 0); break;
                case 1: ::syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0); break;
                case 2: ::syscall(SYS_futex, word, FUTEX_TRYLOCK_PI, 0, nullptr, nullptr, 0); break;
                case 3: ::syscall(SYS_futex, word, FUTEX_REQUEUE, 1, 100, daemon_word, 0); break;
                default: client->control().daemon_sleeping.store(static_cast<std::uint32_t>(draw_.word())); break;
            }
        }
    }
    // Threads write random words into the ring while the daemon reads it.
    void mutate_ring() {
        auto client = attach({.ring_entries = 1u << (2 + draw_.below(6))});
        if (!client) return;
        const auto ends = Clock::now() + milliseconds(20 + draw_.below(150));
        const bool whole = draw_.one_in(2);
        const auto mutate = [&client, ends, whole](std::uint64_t seed) {
            Draw draw(seed);
            const std::size_t words = client->ring().size() / sizeof(std::uint32_t);
            auto* const ring = reinterpret_cast<std::atomic<std::uint32_t>*>(client->ring().data());
            while (Clock::now() < ends) {
                for (int i = 0; i < 64; ++i) {
                    // Half of the time only the entries change, so that the daemon keeps reading them.
                    const std::size_t at = whole && draw.one_in(16)
                                               ? draw.below(words)
                                               : protocol::requests_offset() / 4 + draw.below(client->entries() * 8);
                    ring[at].store(draw.one_in(2) ? static_cast<std::uint32_t>(draw.below(300))
                                                  : static_cast<std::uint32_t>(draw.word()));
                }
            }
        };
        const std::jthread first(mutate, draw_.word());
        const std::jthread second(mutate, draw_.word());
        while (Clock::now() < ends) {
            client->put(draw_.one_in(3) ? odd_request() : valid_request());
            client->wake();
        }
    }
    void ask_oddly() {
        auto client =
            attach({.ring_entries = 1u << (1 + draw_.below(8)), .slot_bytes = std::uint64_t{4096} << draw_.below(10)});
        if (!client) return;
        for (int i = 0; i < 100; ++i) {
            client->put(draw_.one_in(4) ? odd_request() : valid_request());
            if (draw_.one_in(4)) client->wake();
            if (draw_.one_in(8)) client->control().completion_head.store(client->control().completion_tail.load());
        }
        client->wake();
        pause(10);
        if (draw_.one_in(2)) keep(std::move(client));
    }
    // A valid job that reads as fast as it can: a block into each place of its slot memory, again and again.
    void hog() {
        constexpr std::uint32_t kPlaces = 64;
        constexpr std::uint32_t kPages = 32;  // of a place; a block of the campaign is smaller
        auto client = attach({.ring_entries = 4 * kPlaces, .slot_bytes = std::uint64_t{kPlaces} * kPages * 4096});
        if (!client) return;
        const auto fetch = [&](std::uint32_t place) {
            Request request{};
            request.operation = RequestOperation::fetch;
            request.block = static_cast<std::uint32_t>(draw_.below(150));
            request.slot_page = place * kPages;
            request.tag = place;
            client->put(request);
        };
        for (std::uint32_t place = 0; place < kPlaces; ++place) fetch(place);
        client->wake();
        const auto ends = std::min(target_.ends, Clock::now() + milliseconds(300 + draw_.below(1000)));
        while (Clock::now() < ends) {
            std::this_thread::sleep_for(milliseconds(2));
            for (const protocol::Completion& completion : client->take_completions()) {
                Request release{};
                release.operation = RequestOperation::release;
                release.slot_page = completion.tag * kPages;
                // In a memory segment the block took no slot.
                if (completion.status == protocol::BlockStatus::ok && completion.segment == 0) client->put(release);
                fetch(completion.tag);
            }
            client->wake();
        }
        keep(std::move(client));
    }
    void lie_in_reports() {
        auto client = attach();
        if (!client) return;
        auto& control = client->control();
        for (int i = 0; i < 20; ++i) {
            control.stall_ns.store(draw_.word());
            control.samples_delivered.store(draw_.word() >> draw_.below(64));
            control.bytes_delivered.store(draw_.word() >> draw_.below(64));
            control.training_loops.store(static_cast<std::uint32_t>(draw_.word()));
            control.waiting_since_ns.store(static_cast<std::int64_t>(draw_.word()));
            control.busy_ns.store(draw_.word() >> draw_.below(64));
            control.reported_ns.store(static_cast<std::int64_t>(draw_.word() >> draw_.below(64)));
            control.world_size.store(static_cast<std::uint32_t>(draw_.below(3)));
            control.loop_is_elsewhere.store(static_cast<std::uint32_t>(draw_.below(2)));
            for (auto& entry : control.takes.entries) {
                entry.begin_ns.store(static_cast<std::int64_t>(draw_.word()));
                entry.end_ns.store(static_cast<std::int64_t>(draw_.word() >> draw_.below(64)));
            }
            control.takes.count.store(draw_.word() >> draw_.below(64));
            client->put(valid_request());
            client->wake();
            pause(2);
        }
        keep(std::move(client));
    }
    void send_messages() {
        auto client = attach();
        if (!client) return;
        for (int i = 0; i < 200; ++i) {
            protocol::SegmentMessage message{.magic = protocol::kMagic,
                                             .kind = static_cast<MessageKind>(draw_.below(8)),
                                             .segment = static_cast<std::uint32_t>(draw_.below(6)),
                                             .reserved = 0,
                                             .segment_bytes = draw_.word()};
            if (draw_.one_in(10)) message.magic = 0;
            ::send(client->socket(), &message, draw_.one_in(10) ? draw_.below(sizeof message) : sizeof message,
                   MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        keep(std::move(client));
    }
    void send_descriptors() {
        auto socket = test::connect_to_daemon(target_.socket);
        if (!socket) return;
        auto client = attach();
        for (int i = 0; i < 20; ++i) {
            const int via = client && draw_.one_in(2) ? client->socket() : socket->get();
            // Its own socket makes a cycle that only the kernel's garbage collector can close.
            const std::array fds{via, client ? client->request_event() : 0, 0};
            char byte = 0;
            iovec part{&byte, sizeof byte};
            alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof fds)> ancillary{};
            msghdr header{};
            header.msg_iov = &part;
            header.msg_iovlen = 1;
            header.msg_control = ancillary.data();
            header.msg_controllen = ancillary.size();
            cmsghdr* rights = CMSG_FIRSTHDR(&header);
            rights->cmsg_level = SOL_SOCKET;
            rights->cmsg_type = SCM_RIGHTS;
            rights->cmsg_len = CMSG_LEN(sizeof fds);
            std::memcpy(CMSG_DATA(rights), fds.data(), sizeof fds);
            ::sendmsg(via, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        keep(std::move(client));
    }
    void ask_why() {
        for (int i = 0; i < 20; ++i) {
            auto socket = test::connect_to_daemon(target_.socket);
            if (!socket) return;
            protocol::ExplainRequest ask{.magic = protocol::kMagic,
                                         .version = protocol::kVersion,
                                         .kind = MessageKind::explain,
                                         .block = static_cast<std::uint32_t>(draw_.word() >> draw_.below(64)),
                                         .manifest_version = draw_.one_in(2) ? 0 : draw_.word()};
            std::strncpy(ask.dataset, target_.dataset.c_str(), sizeof ask.dataset - 1);
            if (draw_.one_in(3)) std::memset(ask.dataset, 'x', sizeof ask.dataset);
            ::send(socket->get(), &ask, sizeof ask, MSG_NOSIGNAL);
            sockets_.push_back(std::move(*socket));
        }
    }
    void hoard_metrics_connections() {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(target_.metrics_port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        for (int i = 0; i < 100; ++i) {
            FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
            ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
            constexpr std::string_view kBegun = "GET /metrics HTTP/1.1\r\nHost: ";
            if (draw_.one_in(2)) ::send(socket.get(), kBegun.data(), kBegun.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
            sockets_.push_back(std::move(socket));
        }
    }

    const Target& target_;
    Draw draw_;
    std::uint64_t seed_;
    std::vector<HostileClient> hoard_;
    std::vector<FileDescriptor> sockets_;
};

const std::map<std::string, Attacker::Weapon>& Attacker::weapons() {
    static const std::map<std::string, Weapon> all{
        {"garbage", &Attacker::send_garbage},
        {"odd-opens", &Attacker::open_oddly},
        {"handshakes", &Attacker::hoard_handshakes},
        {"sessions", &Attacker::hoard_sessions},
        {"memory", &Attacker::hoard_memory},
        {"mapped", &Attacker::keep_mapped},
        {"halves", &Attacker::shut_halves},
        {"descriptors", &Attacker::misuse_descriptors},
        {"event", &Attacker::race_event},
        {"futex", &Attacker::misuse_futexes},
        {"ring", &Attacker::mutate_ring},
        {"requests", &Attacker::ask_oddly},
        {"hog", &Attacker::hog},
        {"reports", &Attacker::lie_in_reports},
        {"messages", &Attacker::send_messages},
        {"sent-descriptors", &Attacker::send_descriptors},
        {"explain", &Attacker::ask_why},
        {"metrics", &Attacker::hoard_metrics_connections},
    };
    return all;
}

int attack(const Target& target, std::uint64_t seed, std::span<char*> names) {
    std::vector<std::pair<std::string, Attacker::Weapon>> chosen;
    for (char* name : names) {
        const auto found = Attacker::weapons().find(name);
        if (found == Attacker::weapons().end()) {
            std::fprintf(stderr, "larder-test-attacker: no weapon is called %s\n", name);
            return 2;
        }
        chosen.emplace_back(*found);
    }
    if (chosen.empty()) chosen.assign(Attacker::weapons().begin(), Attacker::weapons().end());
    std::map<std::string, std::uint64_t> used;
    std::mutex mutex;  // guards `used`
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < kThreads; ++i) {
            threads.emplace_back([&, i] {
                Attacker attacker(target, mix64(seed) + static_cast<std::uint64_t>(i));
                while (Clock::now() < target.ends) {
                    const auto& [name, weapon] = chosen[attacker.draw_below(chosen.size())];
                    attacker.use(weapon);
                    const std::lock_guard lock(mutex);
                    ++used[name];
                }
            });
        }
    }
    for (const auto& [name, count] : used) {
        std::printf("%s %llu\n", name.c_str(), static_cast<unsigned long long>(count));
    }
    return breached ? kBreach : 0;
}

}  // namespace
}  // namespace larder

int main(int argc, char** argv) {
    if (argc < 8) {
        std::fputs(
            "usage: larder-test-attacker SOCKET DATASET VICTIM_JOB METRICS_PORT JOBS SECONDS SEED [WEAPON...]; "
            "weapons:",
            stderr);
        for (const auto& [name, weapon] : larder::Attacker::weapons()) std::fprintf(stderr, " %s", name.c_str());
        std::fputs("\n", stderr);
        return 2;
    }
    std::signal(SIGIO, SIG_IGN);
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGBUS, SIG_DFL);
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max < 8192 ? files.rlim_max : 8192;
        ::setrlimit(RLIMIT_NOFILE, &files);
    }
    const larder::Target target{
        .socket = argv[1],
        .dataset = argv[2],
        .victim_job = argv[3],
        .metrics_port = static_cast<std::uint16_t>(std::strtoul(argv[4], nullptr, 10)),
        .jobs = std::strtoull(argv[5], nullptr, 10),
        .ends =
            larder::Clock::now() + std::chrono::milliseconds(static_cast<long>(std::strtod(argv[6], nullptr) * 1000))};
    return larder::attack(target, std::strtoull(argv[7], nullptr, 10),
                          std::span(argv, static_cast<std::size_t>(argc)).subspan(8));
}
