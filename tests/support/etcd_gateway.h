#pragma once

// A gateway before a member of etcd, in which a test makes transactions fail.

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "base/server/http_client.h"
#include "tests/support/http_service.h"

namespace larder::test {

class EtcdGateway {
public:
    enum class Does : std::uint8_t {
        passes,
        loses_answer,  // once etcd has carried out the transaction
        is_full,       // and says so in place of etcd
    };
    explicit EtcdGateway(const std::string& endpoint) : etcd_(endpoint) {}

    std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(service_.port); }
    // Says what becomes of the next transactions, in order. Further ones pass.
    void then(std::deque<Does> next) {
        const std::lock_guard lock(mutex_);
        next_ = std::move(next);
    }

private:
    void handle(const HttpRequest& request, const HttpRespond& respond) {
        std::string path;
        for (const std::string& segment : request.path) path += "/" + segment;
        Does does = Does::passes;
        if (path == "/v3/kv/txn") {
            const std::lock_guard lock(mutex_);
            if (!next_.empty()) {
                does = next_.front();
                next_.pop_front();
            }
        }
        if (does == Does::is_full) {
            return respond(
                {429, "application/json", R"({"message":"etcdserver: mvcc: database space exceeded"})", {}, {}});
        }
        const auto answer = etcd_.request("POST", path, request.body);
        if (does == Does::loses_answer || !answer) {
            return respond({503, "application/json", R"({"message":"the answer is lost"})", {}, {}});
        }
        respond({answer->status, "application/json", answer->body, {}, {}});
    }

    HttpClient etcd_;
    std::mutex mutex_;
    std::deque<Does> next_;
    HttpService service_{[this](const HttpRequest& request, const HttpRespond& respond) { handle(request, respond); },
                         {.body_bytes_max = 4u << 20}};
};

}  // namespace larder::test
