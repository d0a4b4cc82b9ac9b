// A node daemon and an allocator over the network, with TLS and a token that may be replaced while both run.

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <gtest/gtest.h>

#include <thread>

#include "allocator/service/service.h"
#include "base/file.h"
#include "base/server/http_client.h"
#include "tests/support/certificates.h"
#include "tests/support/test_daemon.h"

namespace larder::test {
namespace {

TEST(AllocatorOverTheNetwork, NodeReportsOverTlsAfterItsTokenIsReplaced) {
    const TempDirectory directory;
    CertificateAuthority authority(directory.path().string(), "authority");
    const auto files = authority.issue("allocator", {.common_name = "allocator", .alternative_names = "IP:127.0.0.1"});
    ASSERT_TRUE(replace_file(directory / "tokens", "node far-away a-token-0123456789\n", 0600));
    ASSERT_TRUE(replace_file(directory / "node.token", "wrong-token-0123456789\n", 0600));
    allocator::AllocatorConfig config{.socket = directory / "allocator.sock",
                                      .listen = "127.0.0.1:0",
                                      .tls = {.certificate_file = files.certificate, .key_file = files.key},
                                      .token_file = directory / "tokens",
                                      .cluster = {.remote_bytes_per_second = 1e9}};
    boost::asio::io_context context{1};
    const SteadyClock clock;
    const auto service = allocator::AllocatorService::start(context, config, clock);
    ASSERT_TRUE(service) << service.error().message;
    std::jthread thread([&] { context.run(); });
    {
        const TestDaemon node([&](cache::DaemonConfig& node_config) {
            node_config.allocator.endpoint = "https://127.0.0.1:" + std::to_string((*service)->tcp_port());
            node_config.allocator.node = "far-away";
            node_config.allocator.credentials.token_file = directory / "node.token";
            node_config.allocator.credentials.ca_file = authority.file();
        });
        const auto is_known = [&] {
            const auto nodes = http_request(config.socket, "GET", "/v1/nodes");
            return nodes && nodes->body.find("\"far-away\"") != std::string::npos;
        };
        EXPECT_FALSE(is_known());
        ASSERT_TRUE(replace_file(directory / "node.token", "a-token-0123456789\n", 0600));
        TestDaemon::wait_until(is_known);
    }
    boost::asio::post(context, [&] { (*service)->stop(); });
}

}  // namespace
}  // namespace larder::test
