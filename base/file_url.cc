#include "base/file_url.h"

#include <charconv>

namespace larder {

namespace {

std::unexpected<Error> file_url_error(ErrorCode code, std::string_view url, std::string_view why) {
    return fail(code, "remote \"" + std::string(url) + "\": " + std::string(why));
}

}  // namespace

Result<std::string> path_of_file_url(std::string_view url) {
    const std::size_t colon = url.find("://");
    if (colon == std::string_view::npos || colon == 0)
        return file_url_error(ErrorCode::invalid_argument, url, "this is not a URL; write file:///absolute/path");
    const std::string_view scheme = url.substr(0, colon);
    if (scheme != "file") {
        return file_url_error(ErrorCode::unsupported, url,
                              "the scheme \"" + std::string(scheme) + "\" is not supported; use file://");
    }
    std::string_view rest = url.substr(colon + 3);
    if (rest.starts_with("localhost/")) rest.remove_prefix(std::string_view("localhost").size());
    if (!rest.starts_with('/'))
        return file_url_error(ErrorCode::invalid_argument, url,
                              "the path must be absolute, as in file:///absolute/path");

    std::string path;
    for (std::size_t i = 0; i < rest.size(); ++i) {
        if (rest[i] != '%') {
            path += rest[i];
            continue;
        }
        const std::string_view digits = rest.substr(i + 1, 2);
        unsigned byte = 0;
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
        if (error != std::errc{} || digits.size() != 2 || end != digits.data() + 2)
            return file_url_error(ErrorCode::invalid_argument, url,
                                  "a percent sign in the path must be written as %25");
        path += static_cast<char>(byte);
        i += 2;
    }
    if (path.find('\0') != std::string::npos)
        return file_url_error(ErrorCode::invalid_argument, url, "the path has a NUL in it");
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

std::string file_url_of_path(std::string_view path) {
    std::string url = "file://";
    for (const char character : path) {
        switch (character) {
            case '%': url += "%25"; break;
            case '?': url += "%3F"; break;
            case '#': url += "%23"; break;
            default: url += character;
        }
    }
    return url;
}

}  // namespace larder
