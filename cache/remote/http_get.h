#pragma once

// One HTTP request and its outcome: a GET of an object or of a range, or a POST of a block to a peer. The caller owns
// the HttpGet and the memory it names. Both must stay valid until `done` has run, on the transfers' thread
// (cache/remote/http_transfers.h).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/remote.h"

using CURL = void;
struct curl_slist;

namespace larder::cache {

class HttpAttempt;  // one try (http_transfers.cc)
struct HttpEndpointState;
struct HttpGet;

// The part that all requests of one dataset share: the endpoint, the signing, and the meaning of errors. Used on the
// transfers' thread.
class HttpOrigin {
public:
    virtual ~HttpOrigin() = default;
    // "https://host:port". Requests to one endpoint share its limits.
    virtual const std::string& endpoint() const = 0;
    // Adds headers to the list and signs the request, whose URL is set. `headers` is the list so far; returns the whole
    // list. Secrets that belong into the URL are set here, because `get.url` appears in messages.
    virtual Result<curl_slist*> prepare(CURL* easy, const HttpGet& get, curl_slist* headers) const = 0;
    // The header of an answer that names the object's version. If it is missing, Last-Modified does.
    virtual const char* version_header() const { return "etag"; }
    // False for requests with credentials: these are for one host only.
    virtual bool follows_redirects() const = 0;
    // Explains an answer other than 2xx to the user. `body` is the beginning of its body.
    virtual std::string explain(int status, std::string_view body) const = 0;
    // True if the answer says that the whole bucket is missing, not only the object.
    virtual bool lacks_bucket(int /*status*/, std::string_view /*body*/) const { return false; }
    // True if a retry may succeed although the status usually means a lasting error.
    virtual bool may_succeed_later(int /*status*/, std::string_view /*body*/) const { return false; }
};

enum class HttpRequestKind : std::uint8_t {
    range,  // fills `into` from `offset`, completely or not at all
    whole,  // fills `into` with the whole object, without a range request
    probe,  // reads the first byte, to find size, tag and whether the server supports ranges
    text,   // reads a small body into `body`
    send,   // POSTs `into`; for peers, never for a remote
};

enum class HttpOutcome : std::uint8_t { ok, missing, changed, failed, cancelled };

struct HttpGet {
    void (*done)(HttpGet& get) noexcept = nullptr;
    const HttpOrigin* origin = nullptr;
    void* owner = nullptr;    // the key for HttpTransfers::cancel
    void* context = nullptr;  // for the caller's use
    std::string url;          // percent-encoded
    HttpRequestKind ask = HttpRequestKind::range;
    std::uint64_t offset = 0;
    std::span<std::byte> into;
    std::uint64_t object_bytes = 0;      // expected, and of a text the most; 0: unknown. Set by a probe
    std::int64_t tag = 0;                // expected; 0: unknown. Set by a probe
    bool wants_times = false;            // `times` are to be filled in
    std::int64_t retry_for_ns = 0;       // at most the transfers' retry_for_ns; 0: equal to it
    std::shared_ptr<RemotePayer> payer;  // pays for bytes received beyond the answer; null: nobody

    HttpOutcome outcome = HttpOutcome::failed;
    int status = 0;               // HTTP status of the last answer; 0: no answer
    int system_errno = 0;         // of the last try; set if the outcome is `failed`
    std::string message;          // why the last try failed, with the URL; empty if the outcome is ok
    bool serves_ranges = false;   // result of a probe
    std::vector<std::byte> body;  // result of `text`
    unsigned attempts = 0;
    std::uint64_t extra_bytes = 0;  // body bytes received beyond the answer
    RemoteTimes times;              // if wanted

    // The state across tries, for the transfers' use. The get waits for its turn at the endpoint, or has one or two
    // tries in flight, or waits until its next try is due.
    struct Tries {
        HttpEndpointState* endpoint = nullptr;
        HttpAttempt* running = nullptr;
        HttpAttempt* hedge = nullptr;
        std::int64_t submitted_ns = 0;
        std::int64_t failing_since_ns = 0;  // first failure, moved on by the time spent waiting for a turn; 0: none
        std::int64_t waiting_since_ns = 0;
        std::int64_t due_ns = 0;          // when the next try queues for its turn; 0: none is planned
        std::int64_t retry_after_ns = 0;  // the Retry-After of the last answer, which `due_ns` follows; 0: none
        unsigned failures = 0;
        unsigned changes = 0;
        bool hedged = false;
        std::uint64_t deposit_bytes = 0;  // paid in advance for the second request; refunded when that request ends
    };
    Tries tries;
    HttpGet* next = nullptr;  // link in a list: of the transfers until `done`, of the caller before and after
};

// The range that a request asks for, such as "0-99"; empty: the whole object.
std::string range_of(const HttpGet& get);

// The tag of an object's version (see cache/remote/object_source.h): from the version that the store names, else
// Last-Modified; 0 if both are missing. A version is an ETag, or another text without its quotes.
std::int64_t tag_of_version(std::string_view version);
std::int64_t tag_of_headers(const char* version, const char* last_modified);

}  // namespace larder::cache
