#pragma once

// An HttpServer on its own thread, for one test: on a Unix socket in a fresh directory, and on a loopback port chosen
// by the kernel, with TLS if a context is given. Ends with the test.

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/server/http.h"
#include "tests/support/temp_directory.h"

namespace larder::test {

class HttpService {
public:
    explicit HttpService(HttpHandler handler, HttpServerOptions options = {},
                         const std::shared_ptr<TlsContext>& tls = nullptr)
        : server_(std::make_unique<HttpServer>(context_, std::move(handler), std::move(options))) {
        const auto listening = server_->listen_unix(socket, 0600);
        EXPECT_TRUE(listening) << listening.error().message;
        const auto tcp = server_->listen_tcp("127.0.0.1:0", tls);
        EXPECT_TRUE(tcp) << tcp.error().message;
        port = tcp.value_or(0);
        thread_ = std::jthread([this] { context_.run(); });
    }
    ~HttpService() {
        on_thread([this] { server_.reset(); });
        guard_.reset();
    }

    // Runs `work` on the server's thread and waits until it is done.
    template <typename Work>
    std::invoke_result_t<Work> on_thread(Work work) {
        std::packaged_task<std::invoke_result_t<Work>()> task(std::move(work));
        auto done = task.get_future();
        boost::asio::post(context_, [&task] { task(); });
        return done.get();
    }
    HttpServer& server() { return *server_; }

    TempDirectory directory;
    std::string socket = directory / "http.sock";
    std::uint16_t port = 0;

private:
    boost::asio::io_context context_{1};
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_ = make_work_guard(context_);
    std::unique_ptr<HttpServer> server_;
    std::jthread thread_;
};

}  // namespace larder::test
