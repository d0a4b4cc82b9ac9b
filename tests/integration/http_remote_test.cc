// Remotes over HTTP against a real nginx, and through a proxy that injects faults.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cache/remote/http_transfers.h"
#include "cache/remote/remote_place.h"
#include "tests/support/sample_data.h"
#include "tests/support/server_program.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using protocol::BlockStatus;

constexpr std::size_t kObjects = 24;
constexpr std::size_t kPieceBytes = 40'000;

// One read, and how it ended.
struct Piece : RemoteRead {
    std::vector<std::byte> memory;
    std::string name;
    bool is_over = false;
    int times_done = 0;
    BlockStatus status = BlockStatus::remote_failed;
    int system_errno = 0;
};

class HttpRemoteTest : public testing::Test {
protected:
    HttpRemoteTest() {
        std::mt19937_64 draw(1);
        for (std::size_t i = 0; i < kObjects; ++i) {
            std::string contents(100'000 + i * 977, '\0');
            for (char& c : contents) c = static_cast<char>(draw());
            const std::string name = "sub dir/" + std::to_string(i) + "+.bin";
            std::filesystem::create_directories(directory_.path() / "sub dir");
            test::write_file(directory_ / name, contents);
            contents_.push_back(std::move(contents));
            names_.push_back(name);
            list_ += name + "\n";
        }
        test::write_file(directory_ / "all.txt", list_);
    }

    void open(const std::string& port, const HttpTransfersOptions& options = {}) {
        auto transfers = HttpTransfers::start(options);
        ASSERT_TRUE(transfers) << transfers.error().message;
        transfers_ = std::move(*transfers);
        auto made = make_device(DeviceKind::automatic, clock_);
        ASSERT_TRUE(made) << made.error().message;
        device_ = std::move(made->device);
        auto place = RemotePlace::open("http://127.0.0.1:" + port + "/all.txt", {}, transfers_.get());
        ASSERT_TRUE(place) << place.error().message;
        place_ = *place;
        auto listing = place_->objects()->list({}, {});
        ASSERT_TRUE(listing) << listing.error().message;
        listing_ = std::move(*listing);
        ASSERT_EQ(listing_.objects.size(), kObjects);
        auto remote = place_->remote(*device_);
        ASSERT_TRUE(remote) << remote.error().message;
        remote_ = std::move(*remote);
    }

    const ObjectListing::Object& object(std::size_t i) const {
        return *std::ranges::find_if(listing_.objects,
                                     [&](const auto& listed) { return listing_.path(listed) == names_[i]; });
    }

    // Starts a read of `bytes` at `offset` of object `i`.
    std::unique_ptr<Piece> start(std::size_t i, std::uint64_t offset, std::size_t bytes) {
        auto piece = std::make_unique<Piece>();
        piece->memory.resize(bytes);
        piece->name = names_[i];
        piece->done = [](RemoteRead& read, BlockStatus status, int system_errno) noexcept {
            auto& ended = static_cast<Piece&>(read);
            ended.is_over = true;
            ++ended.times_done;
            ended.status = status;
            ended.system_errno = system_errno;
        };
        piece->path = piece->name;
        piece->object_bytes = object(i).size_bytes;
        piece->object_mtime_ns = object(i).tag;
        piece->offset = offset;
        piece->into = piece->memory;
        remote_->read(*piece);
        return piece;
    }

    void wait(const std::vector<std::unique_ptr<Piece>>& pieces) {
        while (!std::ranges::all_of(pieces, [](const auto& piece) { return piece->is_over; })) {
            device_->wait(clock_.now_ns() + 100'000'000);
        }
    }

    // Reads all pieces of all objects, at once.
    void read_all() {
        std::vector<std::unique_ptr<Piece>> pieces;
        for (std::size_t i = 0; i < kObjects; ++i) {
            for (std::size_t at = 0; at < contents_[i].size(); at += kPieceBytes) {
                pieces.push_back(start(i, at, std::min(kPieceBytes, contents_[i].size() - at)));
            }
            pieces.push_back(start(i, 0, contents_[i].size()));
        }
        wait(pieces);
        // A piece that completes twice would have done so by then.
        for (int i = 0; i < 3; ++i) device_->wait(clock_.now_ns() + 1'000'000);
        for (const auto& piece : pieces) {
            ASSERT_EQ(piece->times_done, 1) << piece->name;
            ASSERT_EQ(piece->status, BlockStatus::ok) << piece->name << " errno " << piece->system_errno;
            const auto i = static_cast<std::size_t>(std::ranges::find(names_, piece->name) - names_.begin());
            const std::string_view expected =
                std::string_view(contents_[i]).substr(piece->offset, piece->memory.size());
            ASSERT_EQ(std::string_view(reinterpret_cast<const char*>(piece->memory.data()), piece->memory.size()),
                      expected);
        }
    }

    test::TempDirectory directory_;
    std::vector<std::string> contents_;
    std::vector<std::string> names_;
    std::string list_;
    SteadyClock clock_;
    std::unique_ptr<HttpTransfers> transfers_;
    std::unique_ptr<Device> device_;
    std::shared_ptr<const RemotePlace> place_;
    ObjectListing listing_;
    std::unique_ptr<Remote> remote_;
};

TEST_F(HttpRemoteTest, ReadsRangesAndWholeObjects) {
    test::ServerProgram nginx({"nginx.py", directory_.path()});
    ASSERT_NO_FATAL_FAILURE(open(nginx["http"]));
    read_all();
    EXPECT_EQ(transfers_->statistics().retries, 0u);
}

TEST_F(HttpRemoteTest, FaultsCostTimeButNoData) {
    test::ServerProgram nginx({"nginx.py", directory_.path()});
    test::ServerProgram proxy({"fault_proxy.py", "--upstream", "127.0.0.1:" + nginx["http"], "--transient", "0.3",
                               "--probability", "range_total=0", "--stall-s", "0.2", "--seed", "7"});
    // The listing believes the first answer that tells an object's size, so no answer of the listing may be wrong.
    ASSERT_NO_FATAL_FAILURE(open(proxy["port"]));
    proxy.ask(R"({"do": "transient", "probability": 0.3})");
    read_all();
    EXPECT_GT(transfers_->statistics().retries, 10u);
    remote_.reset();
    EXPECT_EQ(proxy.stop(), 0) << "exit status 3: something tried to write";
}

TEST_F(HttpRemoteTest, ChangedAndMissingObjectsAreReported) {
    test::ServerProgram nginx({"nginx.py", directory_.path()});
    ASSERT_NO_FATAL_FAILURE(open(nginx["http"]));
    std::string other = contents_[3];
    other[0] ^= 1;
    test::write_file(directory_ / names_[3], other + "x");
    std::filesystem::remove(directory_ / names_[4]);
    std::vector<std::unique_ptr<Piece>> pieces;
    pieces.push_back(start(3, 0, 1000));
    pieces.push_back(start(4, 0, 1000));
    pieces.push_back(start(5, 0, 1000));
    wait(pieces);
    EXPECT_EQ(pieces[0]->status, BlockStatus::object_changed);
    EXPECT_EQ(pieces[1]->status, BlockStatus::object_missing);
    EXPECT_EQ(pieces[2]->status, BlockStatus::ok);
}

TEST_F(HttpRemoteTest, PersistentFailureIsGivenUpWithItsErrno) {
    auto nginx = std::make_unique<test::ServerProgram>(std::vector<std::string>{"nginx.py", directory_.path()});
    ASSERT_NO_FATAL_FAILURE(open((*nginx)["http"], {.retry_for_ns = 300'000'000}));
    nginx.reset();
    std::vector<std::unique_ptr<Piece>> pieces;
    pieces.push_back(start(0, 0, 1000));
    wait(pieces);
    EXPECT_EQ(pieces[0]->status, BlockStatus::remote_failed);
    EXPECT_EQ(pieces[0]->system_errno, ECONNREFUSED);
}

TEST_F(HttpRemoteTest, HedgedReadCompletesOnce) {
    test::ServerProgram nginx({"nginx.py", directory_.path()});
    test::ServerProgram proxy({"fault_proxy.py", "--upstream", "127.0.0.1:" + nginx["http"], "--probability",
                               "stall_before=0.02", "--stall-s", "2"});
    ASSERT_NO_FATAL_FAILURE(open(proxy["port"], {.hedge = true}));
    for (int round = 0; round < 4; ++round) ASSERT_NO_FATAL_FAILURE(read_all());
    EXPECT_GT(transfers_->statistics().hedges, 0u);
}

TEST_F(HttpRemoteTest, EndsWithReadsInFlight) {
    test::ServerProgram nginx({"nginx.py", directory_.path()});
    ASSERT_NO_FATAL_FAILURE(open(nginx["http"]));
    std::vector<std::unique_ptr<Piece>> pieces;
    for (std::size_t i = 0; i < kObjects; ++i) pieces.push_back(start(i, 0, contents_[i].size()));
    device_->stop();
    remote_.reset();  // nothing writes to the pieces' memory from here on
}

}  // namespace
}  // namespace larder::cache
