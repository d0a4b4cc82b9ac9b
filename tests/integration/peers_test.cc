// Two real daemons that know each other: jobs of one need not read from the remote what the other has cached.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "cache/peers/digests_answer.h"
#include "cache/peers/held_answer.h"
#include "cache/peers/peer_datasets.h"
#include "cache/protocol/manifest.h"
#include "cache/protocol/record.h"
#include "loader/larder.h"
#include "tests/support/certificates.h"
#include "tests/support/http_service.h"
#include "tests/support/sample_data.h"
#include "tests/support/test_daemon.h"
#include "tests/support/test_units.h"

namespace larder::test {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

class Peers : public testing::Test {
protected:
    Peers() {
        for (NamedBytes& file : make_tree(root, {.class_count = 3, .files_per_class = 30, .bytes_max = 40'000})) {
            total_bytes += file.content.size();
            files.emplace(std::move(file.name), std::move(file.content));
        }
    }

    // `lender` lends, `reader` reads from it. Two nodes are too few for two witnesses, so they trust each other unless
    // `witnesses` says otherwise.
    void start(const cache::PeersConfig& lender_config = {}, const cache::PeersConfig& reader_config = {},
               unsigned witnesses = 0) {
        write_secret();
        lender = std::make_unique<TestDaemon>([&](cache::DaemonConfig& config) {
            config.peers = lender_config;
            config.peers.listen = "127.0.0.1:0";
            config.peers.witnesses = witnesses;
            if (config.peers.token_file.empty()) config.peers.token_file = remote / "secret";
        });
        const std::string endpoint = text_at(lender->get("/v1/status").body.at("peers"), "endpoint");
        reader = std::make_unique<TestDaemon>([&](cache::DaemonConfig& config) {
            config.peers = reader_config;
            config.peers.others = {endpoint};
            config.peers.witnesses = witnesses;
            if (config.peers.token_file.empty()) config.peers.token_file = remote / "secret";
        });
    }

    void write_secret(const std::string& name = "secret", const std::string& text = "the secret of the group\n") const {
        write_file(remote / name, text);
        std::filesystem::permissions(remote / name, std::filesystem::perms(0600));
    }

    // Returns the reader's status of its peer, when the reader has first asked it.
    json::value peer() const {
        json::value others;
        TestDaemon::wait_until([&] {
            others = reader->get("/v1/status").body.at("peers").at("others");
            return !others.as_array().empty();
        });
        return others.as_array()[0];
    }
    void wait_until_peer_holds(std::uint64_t blocks) const {
        TestDaemon::wait_until([&] { return number_at(peer(), "held_blocks") == blocks; });
    }

    void wait_until_peer_has_room() const {
        TestDaemon::wait_until([&] { return number_at(peer(), "room_bytes") > 0; });
    }

    Loader open(const TestDaemon& daemon, const std::string& job = "job") const {
        LoaderOptions options;
        options.dataset = "d";
        options.job = job;
        options.socket = daemon.socket();
        options.memory_budget_bytes = 8 * kMiB;
        options.batch_size = 7;
        auto loader = Loader::open(options);
        if (!loader) throw std::runtime_error(loader.error().message);
        return std::move(*loader);
    }
    // Reads one epoch. Each sample must come once, with its file's bytes.
    void read_epoch(Loader& loader) const {
        std::multiset<std::string> seen;
        for (;;) {
            auto batch = loader.next();
            ASSERT_TRUE(batch.has_value()) << batch.error().message;
            if (!*batch) break;
            for (const Sample& sample : (*batch)->samples()) {
                const std::string key(sample.key);
                const auto file = files.find(key);
                ASSERT_NE(file, files.end()) << key;
                const auto* bytes = reinterpret_cast<const char*>(sample.bytes().data());
                ASSERT_TRUE(file->second == std::string_view(bytes, sample.bytes().size())) << key;
                seen.insert(key);
            }
        }
        EXPECT_EQ(seen.size(), files.size());
        EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), files.size());
    }
    void read_epoch(const TestDaemon& daemon) const {
        Loader loader = open(daemon);
        read_epoch(loader);
    }
    // Reads epochs until the peer has sent `blocks` in one, and returns the reader's counters from before that one. A
    // block that a busy peer does not send in time counts as a failure, and is read from the remote. The reader may
    // cache it, so the next epoch begins with nothing cached there.
    json::value read_epoch_with_blocks_of_peer(Loader& loader, std::uint64_t blocks) const {
        for (;;) {
            json::value before = reader->dataset("d").at("counters");
            read_epoch(loader);
            if (counter(*reader, "peer_hits") == number_at(before, "peer_hits") + blocks || HasFailure()) return before;
            EXPECT_GT(counter(*reader, "peer_failures"), 0u);
            const json::value quota = reader->dataset("d").at("quota");
            EXPECT_EQ(reader->put("/v1/datasets/d/quota", {{"memory_bytes", 0}, {"disk_bytes", 0}}).status, 200u);
            EXPECT_EQ(reader->put("/v1/datasets/d/quota", quota).status, 200u);
        }
    }
    json::value read_epoch_from_peer() const {
        Loader loader = open(*reader);
        return read_epoch_with_blocks_of_peer(loader, files.size());
    }
    std::uint64_t counted_since(const json::value& before, const char* name) const {
        return counter(*reader, name) - number_at(before, name);
    }
    static std::uint64_t counter(const TestDaemon& daemon, const char* name) {
        return number_at(daemon.dataset("d").at("counters"), name);
    }
    static std::uint64_t cached_blocks(const TestDaemon& daemon) {
        return number_at(daemon.dataset("d").at("used"), "blocks");
    }

    TempDirectory remote;
    const std::string root = remote / "tree";
    std::map<std::string, std::string> files;
    std::uint64_t total_bytes = 0;
    std::unique_ptr<TestDaemon> lender;
    std::unique_ptr<TestDaemon> reader;
};

TEST_F(Peers, BlocksCachedByPeerCostNoRemoteBytes) {
    start();
    lender->add("d", root, 8 * kMiB);
    reader->add("d", root, 8 * kMiB);
    read_epoch(*lender);
    wait_until_peer_holds(files.size());
    const json::value before = read_epoch_from_peer();
    EXPECT_EQ(counted_since(before, "bytes_peer"), total_bytes);
    EXPECT_EQ(counted_since(before, "bytes_remote_read"), 0u);
    EXPECT_EQ(counted_since(before, "peer_failures"), 0u);
    EXPECT_EQ(cached_blocks(*reader), 0u) << "a block that a peer holds is not cached twice";
    EXPECT_EQ(counter(*lender, "bytes_remote_read"), total_bytes) << "only for its own job";
}

TEST_F(Peers, BlocksOnDiskAreLentToo) {
    start();
    lender->add("d", root, 0, 32 * kMiB);
    reader->add("d", root);
    read_epoch(*lender);
    TestDaemon::wait_until([&] { return cached_blocks(*lender) == files.size(); });
    wait_until_peer_holds(files.size());
    read_epoch_from_peer();
    // A block that came too late was lent, too.
    const std::uint64_t hits = counter(*reader, "peer_hits");
    EXPECT_GE(counter(*lender, "lent_blocks"), hits);
    EXPECT_LE(counter(*lender, "lent_blocks"), hits + counter(*reader, "peer_failures"));
    const std::uint64_t bytes = counter(*reader, "bytes_peer");
    EXPECT_GE(counter(*lender, "bytes_lent"), bytes);
    EXPECT_LE(counter(*lender, "bytes_lent"), bytes + counter(*reader, "peer_failures") * total_bytes);
    EXPECT_EQ(counter(*lender, "disk_hits"), 0u) << "a lent block is not a hit of a job";
}

TEST_F(Peers, CompressedBlocksAreReadFromPeer) {
    for (auto& [name, content] : files) {
        content = std::string(content.size() + 20'000, name.back()) + content;
        write_file(std::filesystem::path(root) / name, content);
    }
    start();
    lender->add("d", root, 16 * kMiB, 0, {{"compression", "zstd"}});
    reader->add("d", root);
    read_epoch(*lender);
    TestDaemon::wait_until([&] { return cached_blocks(*lender) == files.size(); });
    EXPECT_LT(number_at(lender->dataset("d").at("used"), "memory_bytes"), total_bytes + files.size() * 10'000);
    wait_until_peer_holds(files.size());
    read_epoch_from_peer();
}

TEST_F(Peers, HalfAtPeerAndHalfLocalMakeWholeCache) {
    start();
    lender->add("d", root, total_bytes / 2);
    reader->add("d", root, total_bytes);
    read_epoch(*lender);
    const std::uint64_t lent = cached_blocks(*lender);
    ASSERT_GT(lent, files.size() / 4);
    wait_until_peer_holds(lent);
    Loader loader = open(*reader);
    read_epoch_with_blocks_of_peer(loader, lent);
    EXPECT_EQ(cached_blocks(*reader), files.size() - lent);
    const json::value before = reader->dataset("d").at("counters");
    read_epoch(loader);
    const std::uint64_t failures = counted_since(before, "peer_failures");
    EXPECT_EQ(counted_since(before, "peer_hits") + failures, lent);
    EXPECT_LE(counted_since(before, "bytes_remote_read"), failures * total_bytes)
        << "the second epoch needs the remote only for blocks that came too late";
    EXPECT_EQ(loader.statistics().peer_blocks, counter(*reader, "peer_hits"));
}

TEST_F(Peers, BlocksWithoutLocalRoomGoToPeerWithRoom) {
    start();
    lender->add("d", root, 8 * kMiB);
    reader->add("d", root, total_bytes / 4);
    wait_until_peer_has_room();
    Loader loader = open(*reader);
    read_epoch(loader);
    const std::uint64_t local_blocks = cached_blocks(*reader);
    ASSERT_LT(local_blocks, files.size() / 2);
    TestDaemon::wait_until([&] { return cached_blocks(*lender) == files.size() - local_blocks; });
    EXPECT_EQ(counter(*lender, "bytes_remote_read"), 0u) << "the blocks came from the reader";
    wait_until_peer_holds(files.size() - local_blocks);
    read_epoch(loader);
    EXPECT_EQ(counter(*reader, "bytes_remote_read"), total_bytes) << "the remote is read once, in the first epoch";
    EXPECT_EQ(counter(*reader, "offered_blocks"), files.size() - local_blocks);
    EXPECT_EQ(counter(*reader, "peer_hits"), files.size() - local_blocks);
}

TEST_F(Peers, OfferedBlocksGoToDiskToo) {
    start();
    lender->add("d", root, 0, 32 * kMiB);
    reader->add("d", root);
    wait_until_peer_has_room();
    read_epoch(*reader);
    TestDaemon::wait_until([&] { return cached_blocks(*lender) == files.size(); });
    read_epoch(*lender);
    EXPECT_EQ(counter(*lender, "disk_hits"), files.size());
    EXPECT_EQ(counter(*lender, "crc_failures"), 0u);
}

TEST_F(Peers, LostPeerCostsTimeButNoData) {
    start();
    lender->add("d", root, 8 * kMiB);
    reader->add("d", root);
    read_epoch(*lender);
    wait_until_peer_holds(files.size());
    lender->stop();
    read_epoch(*reader);
    EXPECT_EQ(counter(*reader, "peer_hits") + counter(*reader, "misses"), files.size());
    EXPECT_GT(counter(*reader, "misses"), 0u);
    TestDaemon::wait_until([&] { return !peer().at("answers").as_bool(); });
    const std::string endpoint = text_at(peer(), "endpoint");
    EXPECT_EQ(text_at(peer(), "problem"),
              "peer " + endpoint.substr(endpoint.find("//") + 2) + " does not answer: connection refused");
    lender->start();
}

TEST_F(Peers, BlocksDroppedByPeerComeFromRemote) {
    start();
    lender->add("d", root, 8 * kMiB);
    reader->add("d", root);
    read_epoch(*lender);
    wait_until_peer_holds(files.size());
    lender->put("/v1/datasets/d/quota", {{"memory_bytes", 0}, {"disk_bytes", 0}});
    read_epoch(*reader);
    EXPECT_EQ(counter(*reader, "peer_hits") + counter(*reader, "misses"), files.size());
    wait_until_peer_holds(0);
    const std::uint64_t failures = counter(*reader, "peer_failures");
    read_epoch(*reader);
    EXPECT_EQ(counter(*reader, "peer_failures"), failures) << "the reader knows by then what the peer holds";
}

TEST_F(Peers, OtherVersionOfPeerIsNotUsed) {
    start();
    lender->add("d", root, 8 * kMiB);
    read_epoch(*lender);
    std::string& changed = files.begin()->second;
    changed += "more";
    write_file(std::filesystem::path(root) / files.begin()->first, changed);
    reader->add("d", root);
    TestDaemon::wait_until([&] {
        const json::value others = reader->get("/v1/status").body.at("peers").at("others");
        return !others.as_array().empty() && others.as_array()[0].at("answers").as_bool();
    });
    read_epoch(*reader);
    EXPECT_EQ(counter(*reader, "peer_hits"), 0u);
    EXPECT_EQ(number_at(peer(), "held_blocks"), 0u);
}

TEST_F(Peers, NothingIsLentWithoutToken) {
    write_secret("right", "the right secret\n");
    write_secret("wrong", "another secret\n");
    start({.token_file = remote / "right"}, {.token_file = remote / "wrong"});
    lender->add("d", root, 8 * kMiB);
    reader->add("d", root);
    read_epoch(*lender);
    TestDaemon::wait_until([&] { return text_at(peer(), "problem") != ""; });
    EXPECT_THAT(text_at(peer(), "problem"), HasSubstr("token"));
    read_epoch(*reader);
    EXPECT_EQ(counter(*reader, "peer_hits"), 0u);
    EXPECT_EQ(counter(*lender, "lent_blocks"), 0u);
    const std::string endpoint = text_at(lender->get("/v1/status").body.at("peers"), "endpoint");
    for (const char* path : {"/v1/peers/d/x/blocks", "/v1/peers/d/x/blocks/0", "/v1/status", "/metrics", "/"}) {
        const auto answer = http_request(endpoint, "GET", path);
        ASSERT_TRUE(answer.has_value()) << answer.error().message;
        EXPECT_EQ(answer->status, 401u) << path;
    }
}

TEST_F(Peers, LoopbackNeedsTokenToo) {
    start();
    const std::string endpoint = text_at(lender->get("/v1/status").body.at("peers"), "endpoint");
    for (const char* token : {"", "another secret"}) {
        const auto answer = http_request(endpoint, "GET", "/v1/peers/d/x/blocks", "", {.bearer_token = token});
        ASSERT_TRUE(answer.has_value()) << answer.error().message;
        EXPECT_EQ(answer->status, 401u);
    }
    cache::DaemonConfig config = test_config(remote / "state");
    config.peers.listen = "127.0.0.1:0";
    const auto started = cache::Daemon::start(config);
    ASSERT_FALSE(started.has_value());
    EXPECT_THAT(started.error().message, HasSubstr("token_file is missing"));
    config.peers.token_file = remote / "secret";
    for (const unsigned mode : {0604u, 0620u, 0666u}) {
        std::filesystem::permissions(remote / "secret", std::filesystem::perms(mode));
        const auto refused = cache::Daemon::start(config);
        ASSERT_FALSE(refused.has_value()) << mode;
        EXPECT_THAT(refused.error().message, HasSubstr("can be read or changed by others than its owner"));
    }
}

// A node takes no block from a peer before it has read the block itself: with one other node there are no two
// witnesses.
TEST_F(Peers, BlockNobodyVouchesForIsReadFromTheRemote) {
    start({}, {}, 2);
    lender->add("d", root, 8 * kMiB);
    reader->add("d", root);
    read_epoch(*lender);
    wait_until_peer_holds(files.size());
    Loader loader = open(*reader);
    read_epoch(loader);
    EXPECT_EQ(counter(*reader, "peer_hits"), 0u);
    EXPECT_EQ(counter(*reader, "bytes_remote_read"), total_bytes);
    // The node then knows every block, and reads them from the peer; it hears of its own digests within a second.
    std::uint64_t before = 0;
    TestDaemon::wait_until([&] {
        before = counter(*reader, "bytes_remote_read");
        read_epoch(loader);
        return counter(*reader, "bytes_remote_read") == before;
    });
    EXPECT_GE(counter(*reader, "peer_hits"), files.size());
    EXPECT_EQ(counter(*reader, "peer_failures"), 0u);
}

TEST_F(Peers, OfferedBytesAreCheckedAgainstTheChecksumsOfTheDataset) {
    start();
    lender->add("d", root, 8 * kMiB, 0, {{"checksum", true}});
    const auto manifest = protocol::Manifest::open(lender->state / "state/datasets/d/manifest-1");
    ASSERT_TRUE(manifest.has_value()) << manifest.error().message;
    const std::string endpoint = text_at(lender->get("/v1/status").body.at("peers"), "endpoint");
    const std::string target = "/v1/peers/d/" + cache::fingerprint_of(*manifest) + "/blocks";
    const HttpClientOptions as_peer{.bearer_token = "the secret of the group"};
    TestDaemon::wait_until([&] { return http_request(endpoint, "GET", target, "", as_peer)->status == 200; });
    const auto crc_of = [](const std::string& text) { return crc32c(std::as_bytes(std::span(text))); };
    const auto offer = [&](const std::string& payload, std::uint32_t payload_crc) {
        const auto header = protocol::make_record_header(manifest->header().dataset_id, manifest->block_id(0),
                                                         static_cast<std::uint32_t>(payload.size()), payload_crc, 0);
        const std::string body = std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
        const auto answer = http_request(endpoint, "POST", target + "/0", body, as_peer);
        EXPECT_TRUE(answer.has_value()) << answer.error().message;
        return answer ? answer->status : 0;
    };
    const std::string right = files.at(std::string(manifest->object(manifest->block(0).object).path));
    std::string wrong = right;
    wrong[0] ^= 1;
    EXPECT_EQ(offer(wrong, crc_of(wrong)), 400u);
    EXPECT_EQ(offer(wrong, crc_of(right)), 400u);
    EXPECT_EQ(cached_blocks(*lender), 0u);
    EXPECT_EQ(offer(right, crc_of(right)), 204u);
    TestDaemon::wait_until([&] { return cached_blocks(*lender) == 1; });
}

// A peer that answers with digests that are wrong.
TEST_F(Peers, PeerThatContradictsTheRemoteIsNotReadFrom) {
    write_secret();
    const auto block_count = static_cast<std::uint32_t>(files.size());
    const HttpService liar([&](const HttpRequest& request, const HttpRespond& respond) {
        const cache::HeldState state{.instance = 1, .changes = 1};
        if (request.path.back() == "digests") {
            cache::DigestsAnswer wrong{.state = state, .blocks = {}};
            for (std::uint32_t block = 0; block < block_count; ++block) {
                wrong.blocks.emplace_back(block, cache::BlockDigest{.bytes = {1}});
            }
            return respond({.body = cache::encode_digests(wrong, block_count)});
        }
        EXPECT_EQ(request.path.back(), "blocks") << "a block is asked for";
        const std::vector<std::uint8_t> all((block_count + 7) / 8, 0xff);
        respond({.body = cache::encode_held(state, 0, block_count, all)});
    });
    reader = std::make_unique<TestDaemon>([&](cache::DaemonConfig& config) {
        config.peers.others = {"http://127.0.0.1:" + std::to_string(liar.port)};
        config.peers.witnesses = 2;
        config.peers.token_file = remote / "secret";
    });
    reader->add("d", root, 8 * kMiB);
    read_epoch(*reader);
    TestDaemon::wait_until([&] {
        const std::string problem = text_at(peer(), "problem");
        return problem.contains("sent wrong bytes or digests") && problem.contains("it is not read from for");
    });
    EXPECT_EQ(counter(*reader, "peer_hits"), 0u);
}

TEST_F(Peers, WrongEndpointCostsItsPeerOnly) {
    start();
    lender->add("d", root, 8 * kMiB);
    read_epoch(*lender);
    reader->stop();
    reader->config().peers.others.emplace_back("zzz:1");
    reader->start();
    reader->add("d", root, 8 * kMiB);
    wait_until_peer_holds(files.size());
    const json::value others = reader->get("/v1/status").body.at("peers").at("others");
    ASSERT_EQ(others.as_array().size(), 2u);
    EXPECT_THAT(text_at(others.as_array()[1], "problem"), HasSubstr("has no endpoint"));
    read_epoch_from_peer();
}

TEST_F(Peers, PeerEndpointServesNothingElse) {
    start();
    lender->add("d", root, 8 * kMiB);
    const std::string endpoint = text_at(lender->get("/v1/status").body.at("peers"), "endpoint");
    for (const char* path : {"/v1/status", "/v1/datasets", "/v1/peers/d/x/blocks", "/v1/peers/d/x/blocks/0/0",
                             "/v1/peers/no/x/blocks/0", "/v1/peers/d", "/"}) {
        const auto answer = http_request(endpoint, "GET", path, "", {.bearer_token = "the secret of the group"});
        ASSERT_TRUE(answer.has_value()) << answer.error().message;
        EXPECT_EQ(answer->status, 404u) << path;
    }
    const auto posted =
        http_request(endpoint, "POST", "/v1/peers/d/x/blocks", "", {.bearer_token = "the secret of the group"});
    ASSERT_TRUE(posted.has_value()) << posted.error().message;
    EXPECT_EQ(posted->status, 405u);
}

TEST_F(Peers, BlocksAreReadOverTls) {
    CertificateAuthority authority(remote / "", "authority");
    const CertificateFiles ours =
        authority.issue("lender", {.common_name = "lender", .alternative_names = "IP:127.0.0.1"});
    start({.certificate_file = ours.certificate, .key_file = ours.key}, {.ca_file = authority.file()});
    lender->add("d", root, 8 * kMiB);
    reader->add("d", root);
    read_epoch(*lender);
    wait_until_peer_holds(files.size());
    read_epoch_from_peer();
}

}  // namespace
}  // namespace larder::test
