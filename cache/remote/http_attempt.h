#pragma once

// One try of an HttpGet: a libcurl handle set up for it, its answer's headers held against what was asked before a byte
// of the body is taken, its body put where it belongs, and a verdict at the end. Belongs to the transfers' thread.

#include <curl/curl.h>

#include <cstdint>
#include <string>

#include "cache/remote/http_get.h"

namespace larder::cache {

struct HttpSettings {
    std::int64_t connect_timeout_ms = 5'000;
    std::int64_t stall_timeout_s = 10;  // without 4 KiB/s on the average for so long, it is given up
    // A try takes no longer than this and a second for each 64 KiB it asks for, however steadily they drip.
    std::int64_t request_timeout_s = 300;
    std::string ca_file;  // PEM; empty: the system's authorities
};

// What a try came to.
struct Verdict {
    enum class Kind : std::uint8_t {
        ok,
        missing,
        changed,
        refused,     // asking again gives the same
        failed,      // asking again may help
        overloaded,  // so says the server: ask again, and less
    };
    Kind kind = Kind::failed;
    int system_errno = 0;
    std::string message;
    std::int64_t retry_after_ns = 0;
};

class HttpAttempt {
public:
    // The handle's connections live in the multi handle it is added to.
    HttpAttempt();
    ~HttpAttempt();
    HttpAttempt(const HttpAttempt&) = delete;
    HttpAttempt& operator=(const HttpAttempt&) = delete;

    // Sets up for the next try of `get`; an error where it cannot even be asked (no credentials).
    Result<void> begin(HttpGet& get, const HttpSettings& settings, std::int64_t now_ns);
    // libcurl is done with it. Fills in of the get what a probe or a text asks for.
    Verdict finish(CURLcode code);
    void clear();

    CURL* easy() const { return easy_; }
    HttpGet& get() const { return *get_; }
    std::int64_t began_ns() const { return began_ns_; }
    std::uint64_t received_bytes() const { return received_bytes_; }  // of bodies, wanted or not
    std::int64_t first_byte_ns() const;                               // from the beginning to the answer's first byte

    HttpAttempt* next = nullptr;  // of the idle ones

private:
    static std::size_t take(char* data, std::size_t size, std::size_t count, void* attempt);
    std::size_t take_body(std::span<const std::byte> bytes);
    // What the headers say against what was asked; true: the body is wanted.
    bool check_headers();
    bool check_range(const char* content_range);
    // Another size: another object, unless its tag says that it is the same.
    bool another(std::string what);
    void probed(bool ranged);
    bool fault(std::string what);
    Verdict verdict_of_status(int status) const;
    Verdict verdict_of_code(CURLcode code) const;
    int status() const;
    const char* header(const char* name) const;
    std::string asked() const;

    CURL* easy_;
    curl_slist* headers_ = nullptr;
    HttpGet* get_ = nullptr;
    std::int64_t began_ns_ = 0;
    std::size_t filled_ = 0;
    std::uint64_t received_bytes_ = 0;
    bool checked_ = false;
    bool wanted_ = false;
    bool changed_ = false;
    bool same_tag_ = false;
    bool enough_ = false;     // ended by us: all that was wanted is here
    std::string fault_;       // why it was ended by us
    std::string error_body_;  // the beginning of one
    char error_[CURL_ERROR_SIZE] = {};
};

}  // namespace larder::cache
