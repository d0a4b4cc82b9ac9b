#pragma once

// A real daemon inside the test's process, on its own directory, with access to its HTTP API. For test programs that
// link larder_cache_control.

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/server/http.h"
#include "cache/control/daemon.h"
#include "tests/support/temp_directory.h"

namespace larder::test {

inline cache::DaemonConfig test_config(const std::string& state_directory) {
    cache::DaemonConfig config;
    config.state_directory = state_directory;
    config.socket_path = state_directory + "/larderd.sock";
    config.admin_socket_path = state_directory + "/admin.sock";
    config.data_plane_threads = 1;
    config.version_grace_ns = 0;
    config.memory_bytes = std::uint64_t{64} << 20;
    config.disk_bytes = std::uint64_t{256} << 20;
    return config;
}

struct ApiAnswer {
    unsigned status = 0;
    boost::json::value body;
    std::string text;

    std::string error_message() const {
        const auto* error = body.is_object() ? body.as_object().if_contains("error") : nullptr;
        return error == nullptr ? "" : std::string(error->at("message").as_string());
    }
};

inline std::uint64_t number_at(const boost::json::value& value, const char* key) {
    return value.at(key).to_number<std::uint64_t>();
}

inline std::string text_at(const boost::json::value& value, const char* key) {
    const boost::json::value& text = value.at(key);
    return text.is_string() ? std::string(text.as_string()) : boost::json::serialize(text);
}

class TestDaemon {
public:
    explicit TestDaemon(const std::function<void(cache::DaemonConfig&)>& adjust = {})
        : config_(test_config(state / "state")) {
        if (adjust) adjust(config_);
        start();
    }

    void start() {
        auto started = cache::Daemon::start(config_);
        ASSERT_TRUE(started.has_value()) << started.error().message;
        daemon_ = std::move(*started);
    }
    void stop() { daemon_.reset(); }
    cache::Daemon& operator*() { return *daemon_; }
    cache::DaemonConfig& config() { return config_; }
    const std::string& socket() const { return config_.socket_path; }
    const std::string& admin_socket() const { return config_.admin_socket_path; }

    ApiAnswer call(std::string_view method, const std::string& target, std::string_view body = {}) const {
        const auto response = http_request(config_.admin_socket_path, method, target, body);
        if (!response) {
            ADD_FAILURE() << method << " " << target << ": " << response.error().message;
            return {};
        }
        ApiAnswer answer{.status = response->status, .body = nullptr, .text = response->body};
        boost::json::error_code error;
        auto parsed = boost::json::parse(response->body, error);
        if (!error) answer.body = std::move(parsed);
        return answer;
    }
    ApiAnswer get(const std::string& target) const { return call("GET", target); }
    ApiAnswer put(const std::string& target, const boost::json::value& body) const {
        return call("PUT", target, boost::json::serialize(body));
    }
    ApiAnswer post(const std::string& target, const boost::json::value& body = boost::json::object{}) const {
        return call("POST", target, boost::json::serialize(body));
    }

    // Waits for the task named in an answer and returns it once it has ended.
    boost::json::value finished(const ApiAnswer& started) const {
        if (started.status != 202) {
            ADD_FAILURE() << "no task was started: " << started.text;
            return {};
        }
        const std::string target = "/v1/tasks/" + std::to_string(number_at(started.body, "task"));
        for (;;) {
            auto task = get(target).body;
            if (!task.is_object() || task.at("state").as_string() != "running") return task;
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    }

    // Adds a dataset and waits until it is indexed. Without a quota here, an allocator may set one.
    void add(const std::string& name, const std::string& root, std::uint64_t memory_bytes = 0,
             std::uint64_t disk_bytes = 0, boost::json::object more = {}) const {
        more["name"] = name;
        more["url"] = "file://" + root;
        if (memory_bytes + disk_bytes > 0) {
            more["quota"] = boost::json::object{{"memory_bytes", memory_bytes}, {"disk_bytes", disk_bytes}};
        }
        const auto task = finished(post("/v1/datasets", more));
        ASSERT_EQ(text_at(task, "state"), "done") << boost::json::serialize(task);
    }
    boost::json::value dataset(const std::string& name) const { return get("/v1/datasets/" + name).body; }

    // Waits until the condition holds; the test's own timeout limits the wait.
    static void wait_until(const std::function<bool()>& holds) {
        while (!holds()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }

    TempDirectory state;

private:
    cache::DaemonConfig config_;
    std::unique_ptr<cache::Daemon> daemon_;
};

}  // namespace larder::test
