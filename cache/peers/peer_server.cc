#include "cache/peers/peer_server.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/json.hpp>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/hash.h"
#include "base/server/http_route.h"
#include "base/server/json_http.h"
#include "cache/peers/digests_answer.h"
#include "cache/peers/held_answer.h"
#include "cache/protocol/decompressor.h"
#include "cache/protocol/record.h"
#include "cache/protocol/wire.h"

namespace larder::cache {
namespace asio = boost::asio;
namespace json = boost::json;

using protocol::kRecordHeaderBytes;

namespace {

constexpr const char* kBytes = "application/octet-stream";

// Takes the same time for all `given` of the right length, so that timing does not reveal the secret.
bool same_secret(std::string_view given, std::string_view secret) {
    if (given.size() != secret.size()) return false;
    unsigned differences = 0;
    for (std::size_t i = 0; i < secret.size(); ++i) differences |= static_cast<unsigned>(given[i] ^ secret[i]);
    return differences == 0;
}

HttpResponse not_held() {
    return http_error(404, "not_found", "this block is not cached here");
}

// The record of the lent block, decompressed. Nothing if decompression fails.
std::optional<std::string> record_of(const PeerDataset& dataset, std::uint32_t block, const LentBlock& lent,
                                     protocol::Decompressor& decompressor) {
    std::span<const std::byte> payload = lent.payload;
    std::uint32_t payload_crc = lent.payload_crc;
    std::unique_ptr<std::byte[]> raw;
    if (lent.raw_bytes != 0) {
        auto decompressed = decompressor.run(lent.payload, lent.raw_bytes);
        if (!decompressed) return std::nullopt;
        raw = std::move(*decompressed);
        payload = {raw.get(), lent.raw_bytes};
        payload_crc = crc32c(payload);
    }
    const protocol::RecordHeader header =
        protocol::make_record_header(dataset.dataset_id, dataset.manifest->block_id(block),
                                     static_cast<std::uint32_t>(payload.size()), payload_crc, 0);
    std::string record;
    record.reserve(sizeof header + payload.size());
    record.append(reinterpret_cast<const char*>(&header), sizeof header);
    record.append(reinterpret_cast<const char*>(payload.data()), payload.size());
    return record;
}

}  // namespace

// A request, and the dataset and the block that its path names.
struct PeerServer::Asked {
    const HttpRequest& http;
    PeerDataset dataset{};
    std::uint32_t block = 0;
};

struct PeerServer::State : std::enable_shared_from_this<State> {
    State(PeerServerOptions with_options, const PeerDatasets& with_datasets)
        : options(std::move(with_options)), datasets(with_datasets) {
        LARDER_ASSERT(::getentropy(&instance, sizeof instance) == 0);
    }

    // Any thread. False if the server has stopped; `work` is not run then.
    bool post(std::function<void()> work) {
        const std::lock_guard lock(mutex);
        if (!stopped) asio::post(context, std::move(work));
        return !stopped;
    }

    // Runs everything posted before and refuses later work.
    void stop() {
        {
            const std::lock_guard lock(mutex);
            stopped = true;
        }
        asio::post(context, [this] {
            http->stop();
            context.stop();
        });
        thread.join();
        http.reset();
        work_guard.reset();
        context.restart();
        context.poll();
    }

    std::optional<HttpResponse> admit(const HttpRequest& request) const {
        if (same_secret(request.bearer_token, options.token)) return std::nullopt;
        return http_error(401, "permission_denied", "the request needs the token that the cluster's peers share");
    }

    void handle(const HttpRequest& request, const HttpRespond& respond) {
        std::string allowed;
        for (const Route& route : routes()) {
            std::vector<std::string> names;
            if (!match_route(route.path, request.path, names)) continue;
            if (route.method != request.method) {
                allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
                continue;
            }
            if (auto known = check_query_keys(route.query, request); !known) return respond(http_error(known.error()));
            Asked asked{.http = request};
            if (auto refusal = look_up(names, asked)) return respond(std::move(*refusal));
            return (this->*route.answer)(asked, respond);
        }
        if (!allowed.empty()) return respond(method_not_allowed(allowed));
        respond(no_such_path());
    }

    // Finds what a path names: nothing, or a dataset and its fingerprint, or a block of it too. Returns the refusal if
    // it is not here.
    std::optional<HttpResponse> look_up(const std::vector<std::string>& names, Asked& asked) const {
        if (names.empty()) return std::nullopt;
        auto dataset = datasets.find(names[0], names[1]);
        if (!dataset) return http_error(404, "not_found", "the dataset is unknown here, or has another version");
        asked.dataset = std::move(*dataset);
        if (names.size() == 2) return std::nullopt;
        const std::string& index = names[2];
        const char* end = index.data() + index.size();
        const auto [parsed, error] = std::from_chars(index.data(), end, asked.block);
        if (error == std::errc() && parsed == end && asked.block < asked.dataset.manifest->block_count()) {
            return std::nullopt;
        }
        return http_error(404, "not_found", "the dataset has no such block");
    }

    void get_index(const Asked&, const HttpRespond& respond) {
        json::array list;
        for (const Route& route : routes()) {
            list.push_back(json::object{{"method", route.method}, {"path", route.path}});
        }
        respond(json_response({{"routes", std::move(list)}}));
    }

    void get_held_blocks(const Asked& asked, const HttpRespond& respond) {
        const PeerDataset& dataset = asked.dataset;
        const auto since = asked.http.query.find("since");
        const std::string since_state = since == asked.http.query.end() ? "" : since->second;
        dataset.shard->post([self = shared_from_this(), dataset, since_state, respond](Shard& shard) {
            self->post([self, dataset, since_state, respond, held = shard.held(dataset.dataset_id)] {
                respond(held.blocks == nullptr ? not_held() : self->held_answer(dataset, held, since_state));
            });
        });
    }

    HttpResponse held_answer(const PeerDataset& dataset, const Shard::Held& held,
                             const std::string& since_state) const {
        const HeldBlocks& blocks = *held.blocks;
        // `changes` is read before the bits, so that the next answer reports any change made meanwhile.
        const HeldState state{.instance = instance, .changes = blocks.changes()};
        const protocol::Manifest& manifest = *dataset.manifest;
        HttpResponse response{.content_type = kBytes, .body = {}, .headers = {}, .stream = nullptr};
        if (state.text() == since_state) {
            response.body = encode_held(state, held.room_bytes, manifest.block_count(), {});
            return response;
        }
        std::vector<std::uint8_t> bits((std::size_t{manifest.block_count()} + 7) / 8);
        for (std::uint32_t block = 0; block < manifest.block_count(); ++block) {
            const bool lends =
                blocks.holds(manifest.block_id(block)) && manifest.block_bytes(block) <= kLentBlockBytesMax;
            if (lends) bits[block / 8] |= static_cast<std::uint8_t>(1u << (block % 8));
        }
        response.body = encode_held(state, held.room_bytes, manifest.block_count(), bits);
        return response;
    }

    void get_digests(const Asked& asked, const HttpRespond& respond) {
        const PeerDataset& dataset = asked.dataset;
        const auto since = asked.http.query.find("since");
        const std::string since_state = since == asked.http.query.end() ? "" : since->second;
        dataset.shard->post([self = shared_from_this(), dataset, since_state, respond](Shard& shard) {
            self->post([self, dataset, since_state, respond, digests = shard.held(dataset.dataset_id).digests] {
                respond(digests == nullptr ? http_error(404, "not_found", "this node takes no digests")
                                           : self->digests_answer(dataset, *digests, since_state));
            });
        });
    }

    HttpResponse digests_answer(const PeerDataset& dataset, const ReadDigests& digests,
                                const std::string& since_state) const {
        // A state of another instance, or one that is malformed, counts as none.
        std::uint64_t since = 0;
        const std::string prefix = std::to_string(instance) + "-";
        if (since_state.starts_with(prefix)) {
            std::from_chars(since_state.data() + prefix.size(), since_state.data() + since_state.size(), since);
        }
        auto changes = digests.after(since, *dataset.manifest, kDigestsPerAnswerMax);
        const DigestsAnswer answer{.state = {.instance = instance, .changes = changes.change},
                                   .blocks = std::move(changes.blocks)};
        return {.content_type = kBytes,
                .body = encode_digests(answer, dataset.manifest->block_count()),
                .headers = {},
                .stream = nullptr};
    }

    void get_block(const Asked& asked, const HttpRespond& respond) {
        const PeerDataset& dataset = asked.dataset;
        const std::uint32_t block = asked.block;
        const std::uint64_t bytes = dataset.manifest->block_bytes(block);
        if (bytes > kLentBlockBytesMax) return respond(not_held());
        if (lent_bytes.fetch_add(bytes) + bytes > options.lent_bytes_max) {
            lent_bytes -= bytes;
            return respond(http_error(503, "busy", "too many bytes are in flight to peers already"));
        }
        // Subtracts the bytes however the request ends, even if Shard::lend never calls back.
        const auto in_flight_bytes =
            std::shared_ptr<void>(nullptr, [self = shared_from_this(), bytes](void*) { self->lent_bytes -= bytes; });
        dataset.shard->post([self = shared_from_this(), dataset, block, respond, in_flight_bytes](Shard& shard) {
            shard.lend(dataset.dataset_id, dataset.manifest, block,
                       [self, &shard, dataset, block, respond, in_flight_bytes](const LentBlock& lent) {
                           // Copy the block for the socket on this server's thread, not on the shard's.
                           const bool posted = self->post([self, dataset, block, respond, in_flight_bytes, lent] {
                               self->send(dataset, block, lent, respond);
                           });
                           if (!posted && lent.token != 0) shard.return_block(dataset.dataset_id, lent.token);
                       });
        });
    }

    void post_block(const Asked& asked, const HttpRespond& respond) {
        const PeerDataset& dataset = asked.dataset;
        const std::uint32_t block = asked.block;
        const std::string_view record = asked.http.body;
        const auto refuse = [&] { respond(http_error(404, "not_found", "this node does not take this block")); };
        const auto bytes = std::as_bytes(std::span(record));
        const std::uint32_t payload_bytes = dataset.manifest->block_bytes(block);
        if (bytes.size() != kRecordHeaderBytes + std::size_t{payload_bytes}) return refuse();
        const auto header = protocol::read_record_header(bytes.first(kRecordHeaderBytes));
        const auto payload = bytes.subspan(kRecordHeaderBytes);
        const bool is_valid =
            header && header->raw_bytes == 0 && header->payload_crc == crc32c(payload) &&
            (!dataset.manifest->has_checksums() || dataset.manifest->block_checksum(block) == header->payload_crc);
        if (!is_valid) return respond(http_error(400, "invalid_argument", "the body is not the bytes of this block"));
        const std::size_t room = protocol::record_bytes(payload_bytes, protocol::kPageBytes);
        auto offered = std::make_shared<OfferedBlock>();
        offered->manifest = dataset.manifest;
        offered->block = block;
        offered->payload_crc = header->payload_crc;
        if (options.needs_digests) offered->digest = digest_of(payload);
        offered->pages = static_cast<std::uint32_t>(room / protocol::kPageBytes);
        offered->record = {static_cast<std::byte*>(std::aligned_alloc(protocol::kPageBytes, room)), std::free};
        if (offered->record == nullptr) return refuse();
        std::memcpy(offered->record.get(), bytes.data(), bytes.size());
        dataset.shard->post([id = dataset.dataset_id, offered, respond](Shard& shard) {
            const bool admitted = shard.take_offered(id, std::move(*offered));
            respond(admitted ? HttpResponse{.status = 204, .body = {}, .headers = {}, .stream = nullptr}
                             : http_error(404, "not_found", "this node does not take this block"));
        });
    }

    void send(const PeerDataset& dataset, std::uint32_t block, const LentBlock& lent, const HttpRespond& respond) {
        if (lent.token == 0) return respond(not_held());
        auto record = record_of(dataset, block, lent, decompressor);
        dataset.shard->post(
            [id = dataset.dataset_id, token = lent.token](Shard& shard) { shard.return_block(id, token); });
        if (!record) return respond(not_held());
        respond({.content_type = kBytes, .body = std::move(*record), .headers = {}, .stream = nullptr});
    }

    const PeerServerOptions options;
    const PeerDatasets& datasets;
    std::uint64_t instance = 0;
    std::atomic<std::uint64_t> lent_bytes{0};
    protocol::Decompressor decompressor;
    asio::io_context context{1};
    asio::executor_work_guard<asio::io_context::executor_type> work_guard{context.get_executor()};
    std::unique_ptr<HttpServer> http;
    std::uint16_t port = 0;
    std::thread thread;
    std::mutex mutex;
    bool stopped = false;
};

std::span<const PeerServer::Route> PeerServer::routes() {
    static constexpr std::array kRoutes{
        Route{"GET", "/v1", "", &State::get_index},
        // The blocks that this node holds (held_answer.h).
        Route{"GET", "/v1/peers/{dataset}/{fingerprint}/blocks", "since", &State::get_held_blocks},
        // The digests of the blocks that this node has read from the remote (digests_answer.h).
        Route{"GET", "/v1/peers/{dataset}/{fingerprint}/digests", "since", &State::get_digests},
        // One block as a record (record.h), decompressed.
        Route{"GET", "/v1/peers/{dataset}/{fingerprint}/blocks/{block}", "", &State::get_block},
        // Admits the record in the body to the cache.
        Route{"POST", "/v1/peers/{dataset}/{fingerprint}/blocks/{block}", "", &State::post_block},
    };
    return kRoutes;
}

PeerServer::PeerServer(std::shared_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<PeerServer>> PeerServer::start(const PeerServerOptions& options, const PeerDatasets& datasets) {
    LARDER_ASSERT(!options.token.empty());
    std::unique_ptr<PeerServer> server(new PeerServer(std::make_shared<State>(options, datasets)));
    State& state = *server->state_;
    state.http = std::make_unique<HttpServer>(
        state.context,
        [&state](const HttpRequest& request, const HttpRespond& respond) { state.handle(request, respond); },
        HttpServerOptions{.body_bytes_max = kLentBlockBytesMax + kRecordHeaderBytes,
                          .connections_max = options.connections_max,
                          .connections_per_peer_max = options.connections_per_peer_max,
                          .admit = [&state](HttpRequest& request) { return state.admit(request); }});
    std::shared_ptr<TlsContext> tls;
    if (!options.certificate_file.empty()) {
        auto made = make_tls_server(
            {.certificate_file = options.certificate_file, .key_file = options.key_file, .client_ca_file = {}});
        if (!made) return std::unexpected(made.error().within("peers"));
        tls = std::move(*made);
    }
    const auto port = state.http->listen_tcp(options.listen, tls);
    if (!port) return std::unexpected(port.error().within("peers"));
    state.port = *port;
    state.thread = std::thread([&state] { state.context.run(); });
    pthread_setname_np(state.thread.native_handle(), "larder-peers");
    return server;
}

PeerServer::~PeerServer() {
    if (state_->thread.joinable()) state_->stop();
}

std::uint16_t PeerServer::port() const {
    return state_->port;
}

}  // namespace larder::cache
