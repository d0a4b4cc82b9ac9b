#include "cache/remote/store_error.h"

#include <pugixml.hpp>

namespace larder::cache {

StoreError parse_store_error(std::string_view body) {
    pugi::xml_document document;
    if (!document.load_buffer(body.data(), body.size())) return {};
    const pugi::xml_node error = document.child("Error");
    const std::string_view message = error.child_value("Message");
    return {.code = error.child_value("Code"),
            .message = std::string(message.substr(0, message.find_first_of("\r\n"))),
            .region = error.child_value("Region")};
}

std::string explain_store_error(const StoreError& error, const std::string& hint) {
    std::string text = error.code;
    if (!hint.empty()) text += (text.empty() ? "" : ": ") + hint;
    if (error.message.empty()) return text;
    return text + (hint.empty() ? ": " + error.message : " (the server says: " + error.message + ")");
}

std::string explain_plain_request_to_tls(int status, std::string_view body) {
    if (status != 400 || body.find("HTTPS port") == std::string_view::npos) return "";
    return "the server speaks TLS on this port: write https://";
}

}  // namespace larder::cache
