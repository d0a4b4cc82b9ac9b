#pragma once

// The allocator's service on its own thread, over real sockets, TLS and files, for one test.

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "allocator/service/service.h"
#include "base/clock.h"
#include "base/server/http_client.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_directory.h"

namespace larder::allocator {

inline constexpr const char* kViewerToken = "viewer-token-0123456789";
inline constexpr const char* kJobToken = "job-token-0123456789";
inline constexpr const char* kNodeToken = "node-token-0123456789";
inline constexpr const char* kOperatorToken = "operator-token-0123456789";

class ServiceTest : public testing::Test {
protected:
    ServiceTest() {
        config.socket = directory / "allocator.sock";
        config.cluster.remote_bytes_per_second = 1e9;
        config.token_file = directory / "tokens";
        write_tokens(std::string("viewer eye ") + kViewerToken + "\njob vision " + kJobToken + "\nnode node-1 " +
                     kNodeToken + "\noperator alice " + kOperatorToken + "\n");
    }
    ~ServiceTest() override { stop(); }

    void write_tokens(const std::string& text) {
        std::ofstream(config.token_file) << text;
        ASSERT_EQ(::chmod(config.token_file.c_str(), 0600), 0);
    }
    void use_tls() {
        const auto files =
            authority.issue("allocator", {.common_name = "allocator", .alternative_names = "IP:127.0.0.1"});
        config.tls = {.certificate_file = files.certificate, .key_file = files.key, .client_ca_file = authority.file()};
        config.listen = "127.0.0.1:0";
    }
    void start(std::optional<EtcdFence> term = std::nullopt) {
        context = std::make_unique<boost::asio::io_context>(1);
        auto started = AllocatorService::start(*context, config, clock, {}, std::move(term));
        ASSERT_TRUE(started) << started.error().message;
        service = std::move(*started);
        thread = std::jthread([this] { context->run(); });
    }
    void stop() {
        if (!service) return;
        on_thread([this] { service->stop(); });
        thread.join();
        service.reset();
        context.reset();
    }
    template <typename Work>
    std::invoke_result_t<Work> on_thread(Work work) {
        std::packaged_task<std::invoke_result_t<Work>()> task(std::move(work));
        auto done = task.get_future();
        boost::asio::post(*context, [&task] { task(); });
        return done.get();
    }

    std::string endpoint() const {
        const bool tls = !config.tls.certificate_file.empty();
        return (tls ? "https://127.0.0.1:" : "http://127.0.0.1:") + std::to_string(service->tcp_port());
    }
    HttpClientOptions with_token(const std::string& token) const {
        return {.bearer_token = token, .ca_file = config.tls.certificate_file.empty() ? "" : authority.file()};
    }
    HttpResponse ask(const std::string& method, const std::string& target, const std::string& body,
                     const HttpClientOptions& options) const {
        auto answer = http_request(endpoint(), method, target, body, options);
        EXPECT_TRUE(answer) << answer.error().message;
        return answer.value_or(HttpResponse{.status = 0});
    }
    HttpResponse local(const std::string& method, const std::string& target, const std::string& body = "") const {
        auto answer = http_request(config.socket, method, target, body);
        EXPECT_TRUE(answer) << answer.error().message;
        return answer.value_or(HttpResponse{.status = 0});
    }

    test::TempDirectory directory;
    test::CertificateAuthority authority{directory.path().string(), "authority"};
    AllocatorConfig config;
    ManualClock clock{1'000'000'000'000};
    std::unique_ptr<boost::asio::io_context> context;
    std::unique_ptr<AllocatorService> service;
    std::jthread thread;
};

inline std::string report_json(const std::string& node, std::uint64_t instance = 1, std::uint64_t lease_applied = 0) {
    return R"({"node":")" + node + R"(","instance":)" + std::to_string(instance) + R"(,"lease_applied":)" +
           std::to_string(lease_applied) +
           R"(,"gpus":0,"memory_bytes":1000000,"disk_bytes":0,"datasets":[{"name":"images","size_bytes":4000000,)"
           R"("quota_memory_bytes":0,"quota_disk_bytes":0,"cached_memory_bytes":0,"cached_disk_bytes":0}],"jobs":[)"
           R"({"name":"vision","dataset":"images","ranks":1,"bytes":0,"busy_s":0,"demand_bytes_per_second":1000000,)"
           R"("unread_bytes":0,"unread_cached_bytes":0}]})";
}

}  // namespace larder::allocator
