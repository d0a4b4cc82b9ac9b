#pragma once

// The page that both daemons serve to browsers: files that the build embeds (cmake/Page.cmake; the sources are in
// page/). It has no data. Its script reads the daemon's API as the `larder` command does. Pure; any thread.

#include <span>
#include <string_view>

#include "base/server/http_message.h"

namespace larder {

struct EmbeddedFile {
    std::string_view name;  // "page.js"
    std::span<const unsigned char> bytes;
};

// Returns index.html and, unless the build has no page, the files that it loads.
std::span<const EmbeddedFile> embedded_page();

// Returns the file at the path of the request ("/" is index.html), or 404. The headers let it load nothing from other
// hosts, and run no script but its own file.
HttpResponse page_response(const HttpRequest& request);

}  // namespace larder
