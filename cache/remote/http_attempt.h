#pragma once

// One try of an HttpGet. An attempt sets up a libcurl handle, compares the headers of the answer with the request
// before it takes a byte of the body, copies the body to its destination, and returns a verdict at the end. Used on the
// transfers' thread only.

#include <curl/curl.h>

#include <cstdint>
#include <string>

#include "cache/remote/http_get.h"

namespace larder::cache {

struct HttpSettings {
    std::int64_t connect_timeout_ms = 5'000;
    std::int64_t stall_timeout_s = 10;  // a try fails if its average is below 4 KiB/s for this long
    // The time limit of a try, plus 1 s for each 64 KiB requested. Ends answers that arrive slowly but do not stall.
    std::int64_t request_timeout_s = 300;
    std::string ca_file;  // PEM; empty: the system's certificate authorities
};

// The result of a try.
struct Verdict {
    enum class Kind : std::uint8_t {
        ok,
        missing,
        changed,
        refused,     // a retry gives the same result
        failed,      // a retry may help
        overloaded,  // the server reports overload: retry, with fewer requests in flight
    };
    Kind kind = Kind::failed;
    int system_errno = 0;
    std::string message;
    std::int64_t retry_after_ns = 0;
};

class HttpAttempt {
public:
    // Connections belong to the multi handle that `easy` is added to.
    HttpAttempt();
    ~HttpAttempt();
    HttpAttempt(const HttpAttempt&) = delete;
    HttpAttempt& operator=(const HttpAttempt&) = delete;

    // Prepares the next try of `get`. Fails if the request cannot be sent (no credentials).
    Result<void> begin(HttpGet& get, const HttpSettings& settings, std::int64_t now_ns);
    // Call when libcurl has ended the transfer. Sets the status of the get, and the results of a probe.
    Verdict finish(CURLcode code);
    void clear();

    CURL* easy() const { return easy_; }
    HttpGet& get() const { return *get_; }
    std::int64_t began_ns() const { return began_ns_; }
    std::uint64_t received_bytes() const { return received_bytes_; }  // body bytes, including unwanted ones
    std::int64_t first_byte_ns() const;                               // from the request to the answer's first byte

    HttpAttempt* next = nullptr;  // link in the list of idle attempts

private:
    static std::size_t receive(char* data, std::size_t size, std::size_t count, void* attempt);
    std::size_t receive_body(std::span<const std::byte> bytes);
    // Compares the headers with the request. Returns true if the body is wanted.
    bool check_headers();
    bool check_range(const char* content_range);
    // The size differs: the object has changed, unless its tag is the expected one (then the answer is faulty).
    bool report_other_size(std::string what);
    void set_probe_result(bool serves_ranges);
    bool set_fault(std::string what);
    Verdict verdict_of_status(int status) const;
    Verdict verdict_of_code(CURLcode code) const;
    int status() const;
    const char* header(const char* name) const;
    std::string url() const;

    CURL* easy_;
    curl_slist* headers_ = nullptr;
    HttpGet* get_ = nullptr;
    std::int64_t began_ns_ = 0;
    std::size_t filled_ = 0;
    std::uint64_t received_bytes_ = 0;
    bool headers_are_checked_ = false;
    bool body_is_wanted_ = false;
    bool object_has_changed_ = false;
    bool tag_is_same_ = false;
    bool headers_suffice_ = false;  // the headers are all that was needed; the attempt ends the transfer
    std::string fault_;             // why the attempt ended the transfer
    std::string error_body_;        // beginning of an error's body
    char error_[CURL_ERROR_SIZE] = {};
};

}  // namespace larder::cache
