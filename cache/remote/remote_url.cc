#include "cache/remote/remote_url.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

#include "base/file_url.h"
#include "base/server/percent_encoding.h"

namespace larder::cache {
namespace {

constexpr std::size_t kNamesMax = 1'000'000;
constexpr std::string_view kFile = "file://";

// The stores with buckets: their objects are listed, and reached with credentials.
struct BucketScheme {
    RemoteScheme scheme;
    std::string_view prefix;
    std::string_view bucket;  // the store's word
};
constexpr std::array kBucketSchemes = {BucketScheme{RemoteScheme::s3, "s3://", "bucket"},
                                       BucketScheme{RemoteScheme::gcs, "gs://", "bucket"},
                                       BucketScheme{RemoteScheme::azure, "az://", "container"}};

// Returns nullptr if the URL names no bucket.
const BucketScheme* bucket_scheme(std::string_view url) {
    const auto found =
        std::ranges::find_if(kBucketSchemes, [&](const BucketScheme& known) { return url.starts_with(known.prefix); });
    return found == kBucketSchemes.end() ? nullptr : &*found;
}

std::unexpected<Error> bad_url(std::string_view url, const std::string& why) {
    return fail(ErrorCode::invalid_argument, "URL \"" + std::string(url) + "\" " + why);
}

std::string without_slashes_at_end(std::string_view text) {
    while (text.ends_with('/')) text.remove_suffix(1);
    return std::string(text);
}

// A parsed number: "007" has value 7 and width 3.
struct Number {
    std::uint64_t value = 0;
    std::size_t width = 0;
};

bool parse_number(std::string_view text, Number& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number.value);
    number.width = text.size();
    return error == std::errc{} && end == text.data() + text.size();
}

// Returns the alternatives of one pair of braces.
Result<std::vector<std::string>> expand_choices(std::string_view inside, std::string_view pattern) {
    std::vector<std::string> choices;
    const std::size_t dots = inside.find("..");
    if (dots != std::string_view::npos) {
        Number from;
        Number to;
        if (!parse_number(inside.substr(0, dots), from) || !parse_number(inside.substr(dots + 2), to) ||
            from.value > to.value) {
            return bad_url(pattern, "has braces that are not a range such as {000..146}");
        }
        if (to.value - from.value >= kNamesMax) return bad_url(pattern, "names more than a million objects");
        for (std::uint64_t value = from.value; value <= to.value; ++value) {
            std::string digits = std::to_string(value);
            if (digits.size() < from.width) digits.insert(0, from.width - digits.size(), '0');
            choices.push_back(std::move(digits));
        }
        return choices;
    }
    for (std::size_t at = 0; at <= inside.size();) {
        const std::size_t comma = std::min(inside.find(',', at), inside.size());
        choices.emplace_back(inside.substr(at, comma - at));
        at = comma + 1;
    }
    if (choices.size() < 2) return bad_url(pattern, "has braces that are neither {000..146} nor {a,b}");
    return choices;
}

Result<RemoteUrl> parse_file(std::string_view url) {
    const auto decoded = url.starts_with(kFile) ? path_of_file_url(url) : Result<std::string>(std::string(url));
    if (!decoded || !decoded->starts_with('/') || decoded->find('\0') != std::string::npos) {
        return bad_url(url,
                       "is not file:///path, an absolute path, s3://bucket/prefix, gs://bucket/prefix, "
                       "az://container/prefix or http(s)://host/path" +
                           (decoded ? "" : "; " + decoded.error().message));
    }
    RemoteUrl parsed{.scheme = RemoteScheme::file};
    parsed.root = std::filesystem::path(*decoded).lexically_normal().string();
    while (parsed.root.size() > 1 && parsed.root.back() == '/') parsed.root.pop_back();
    return parsed;
}

bool is_bucket_name(std::string_view name) {
    const auto allowed = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
               c == '_';
    };
    return !name.empty() && name.size() <= 255 && std::ranges::all_of(name, allowed);
}

Result<RemoteUrl> parse_bucket(std::string_view url, const BucketScheme& known) {
    const std::string_view rest = url.substr(known.prefix.size());
    const std::size_t slash = std::min(rest.find('/'), rest.size());
    RemoteUrl parsed{.scheme = known.scheme};
    parsed.base = rest.substr(0, slash);
    if (!is_bucket_name(parsed.base)) {
        const std::string word(known.bucket);
        return bad_url(url, "names no " + word + ": " + std::string(known.prefix) + word + "/prefix");
    }
    parsed.root = without_slashes_at_end(rest.substr(std::min(slash + 1, rest.size())));
    if (parsed.root.ends_with(".tar")) {
        const std::size_t last = parsed.root.rfind('/');
        parsed.only_shard = last == std::string::npos ? parsed.root : parsed.root.substr(last + 1);
        parsed.root = last == std::string::npos ? "" : parsed.root.substr(0, last);
    }
    return parsed;
}

Result<RemoteUrl> parse_http(std::string_view url) {
    RemoteUrl parsed{.scheme = RemoteScheme::http};
    const std::size_t host = url.find("://") + 3;
    const std::size_t slash = std::min(url.find('/', host), url.size());
    parsed.base = url.substr(0, slash);
    if (slash == host) return bad_url(url, "names no host");
    if (parsed.base.find('@') != std::string::npos) {
        return fail(
            ErrorCode::invalid_argument,
            "the URL has a user or password in it, which would be kept where others can read it: leave out what "
            "is before the @");
    }
    if (url.find_first_of("?#") != std::string_view::npos) {
        return bad_url(url.substr(0, url.find_first_of("?#")), "has a query or a fragment; objects are named by paths");
    }
    std::string path = without_slashes_at_end(url.substr(slash));
    const std::size_t brace = path.find('{');
    if (brace != std::string::npos) {
        const std::size_t last = path.rfind('/', brace);
        auto names = expand_braces(std::string_view(path).substr(last + 1));
        if (!names) return std::unexpected(names.error());
        for (std::string& name : *names) parsed.names.push_back(percent_decode_leniently(name));
        path.resize(last);
    } else if (path.ends_with(".txt") || path.ends_with(".tar")) {
        const std::size_t last = path.rfind('/');
        const std::string name = percent_decode_leniently(std::string_view(path).substr(last + 1));
        if (path.ends_with(".txt")) {
            parsed.list = name;
        } else {
            parsed.only_shard = name;
            parsed.names = {name};
        }
        path.resize(last);
    }
    parsed.root = percent_decode_leniently(path);
    return parsed;
}

}  // namespace

Result<std::vector<std::string>> expand_braces(std::string_view pattern) {
    const std::size_t open = pattern.find('{');
    if (open == std::string_view::npos) return std::vector<std::string>{std::string(pattern)};
    const std::size_t close = pattern.find('}', open);
    if (close == std::string_view::npos) return bad_url(pattern, "has a { without its }");
    auto choices = expand_choices(pattern.substr(open + 1, close - open - 1), pattern);
    if (!choices) return choices;
    auto rests = expand_braces(pattern.substr(close + 1));
    if (!rests) return rests;
    if (choices->size() * rests->size() > kNamesMax) return bad_url(pattern, "names more than a million objects");
    std::vector<std::string> names;
    names.reserve(choices->size() * rests->size());
    for (const std::string& choice : *choices) {
        for (const std::string& rest : *rests) {
            names.push_back(std::string(pattern.substr(0, open)).append(choice).append(rest));
        }
    }
    return names;
}

std::string RemoteUrl::text() const {
    switch (scheme) {
        case RemoteScheme::file: return file_url_of_path(root);
        case RemoteScheme::http: break;
        case RemoteScheme::s3:
        case RemoteScheme::gcs:
        case RemoteScheme::azure: {
            const auto known = std::ranges::find(kBucketSchemes, scheme, &BucketScheme::scheme);
            return std::string(known->prefix) + base + (root.empty() ? "" : "/" + root);
        }
    }
    std::string url = base;
    url += percent_encode_path(root);
    return url;
}

Result<RemoteUrl> parse_remote_url(std::string_view url) {
    if (const BucketScheme* known = bucket_scheme(url)) return parse_bucket(url, *known);
    if (url.starts_with("http://") || url.starts_with("https://")) return parse_http(url);
    return parse_file(url);
}

Result<void> check_endpoint(std::string_view endpoint) {
    const auto bad_endpoint = [](const std::string& why) {
        return fail(ErrorCode::invalid_argument, "the endpoint " + why);
    };
    constexpr const char* kForm = "http://host:port or https://host:port";
    if (endpoint.find('@') != std::string_view::npos) {
        return bad_endpoint(
            "has a user or password in it, which would be kept where others can read it: keys belong in the daemon's "
            "environment or credentials file");
    }
    if (endpoint.find_first_of("?#") != std::string_view::npos) return bad_endpoint("has a query or a fragment");
    const std::size_t colon = endpoint.find("://");
    // An endpoint without a scheme is quoted: it has no place for a secret that was not found above.
    if (colon == std::string_view::npos) return bad_endpoint("\"" + std::string(endpoint) + "\" is not " + kForm);
    const std::string_view scheme = endpoint.substr(0, colon);
    if (scheme != "http" && scheme != "https") {
        return bad_endpoint("begins with " + std::string(scheme) + "://, and is not " + kForm);
    }
    const std::size_t host = colon + 3;
    if (endpoint.size() == host || endpoint[host] == '/')
        return bad_endpoint(std::string("names no host: give ") + kForm);
    const std::string_view place = endpoint.substr(host, endpoint.find('/', host) - host);
    if (place.ends_with(':')) return bad_endpoint(std::string("has no port after its colon: give ") + kForm);
    return {};
}

Result<void> check_remote_options(const RemoteOptions& options, std::string_view url) {
    const BucketScheme* known = bucket_scheme(url);
    if (options.follow_symlinks && (known != nullptr || url.starts_with("http"))) {
        return fail(ErrorCode::invalid_argument, "remote: follow_symlinks is for directories and file:// URLs");
    }
    const RemoteOptions of_each_store{.endpoint = options.endpoint,
                                      .profile = options.profile,
                                      .unsigned_access = options.unsigned_access,
                                      .follow_symlinks = options.follow_symlinks};
    if (options != of_each_store && (known == nullptr || known->scheme != RemoteScheme::s3)) {
        return fail(ErrorCode::invalid_argument, "remote: region, addressing and requester_pays are for s3://");
    }
    if (known == nullptr && options != RemoteOptions{.follow_symlinks = options.follow_symlinks}) {
        return fail(ErrorCode::invalid_argument,
                    "remote: endpoint, profile and unsigned are for s3://, gs:// and az://");
    }
    return options.endpoint.empty() ? Result<void>{} : check_endpoint(options.endpoint);
}

Result<std::string> normalise_url(std::string_view url) {
    const auto parsed = parse_remote_url(url);
    if (!parsed) return std::unexpected(parsed.error());
    if (parsed->scheme == RemoteScheme::file) return parsed->text();
    return without_slashes_at_end(url);
}

}  // namespace larder::cache
