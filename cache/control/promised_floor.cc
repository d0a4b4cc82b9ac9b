#include "cache/control/promised_floor.h"

#include <charconv>
#include <cmath>

#include "base/file.h"

namespace larder::cache {
namespace {

std::string path_in(const std::string& state_directory) {
    return state_directory + "/promised-floor";
}

}  // namespace

std::optional<double> PromisedFloor::apply(std::uint64_t lease, double expired_bytes_per_second) {
    applied_ = lease;
    const double floor = std::min(configured_, expired_bytes_per_second);
    if (posted_ == floor && !failed_) {
        report_if_saved();
        return std::nullopt;
    }
    posted_ = floor;
    failed_ = false;
    ++unsaved_;
    return floor;
}

void PromisedFloor::saved(const Result<void>& result) {
    --unsaved_;
    failed_ = !result;
    report_if_saved();
}

Result<std::optional<double>> load_promised_floor(const std::string& state_directory) {
    const auto text = read_file(path_in(state_directory));
    if (!text && text.error().code == ErrorCode::not_found) return std::nullopt;
    if (!text) return std::unexpected(text.error());
    double floor = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), floor);
    if (error != std::errc{} || *end != '\n' || !std::isfinite(floor) || floor < 0)
        return fail(ErrorCode::corrupt, path_in(state_directory) + " is not a rate in bytes per second: remove it");
    return floor;
}

Result<void> save_promised_floor(const std::string& state_directory, double bytes_per_second) {
    char text[32];
    const auto written = std::to_chars(std::begin(text), std::end(text), bytes_per_second);
    return replace_file(path_in(state_directory), std::string(text, written.ptr) + "\n", 0640);
}

}  // namespace larder::cache
