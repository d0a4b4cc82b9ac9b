#include "cache/control/catalog.h"

#include <boost/json.hpp>
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>

#include "base/assert.h"
#include "base/file.h"
#include "base/server/json_reader.h"
#include "base/server/json_text.h"
#include "cache/control/remote_json.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/index_journal.h"

namespace larder::cache {
namespace json = boost::json;
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kManifestPrefix = "manifest-";
constexpr std::string_view kRecordName = "dataset.json";
constexpr auto kJournalKept = std::chrono::hours(7 * 24);

// True for names of files that the catalog writes. It removes no other files.
bool is_own_file(const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    std::error_code error;
    return (name.starts_with(kManifestPrefix) || name.starts_with(kRecordName)) && entry.is_regular_file(error);
}

bool is_journal(const fs::path& path) {
    return path.filename().string().starts_with(kManifestPrefix) && path.extension() == ".journal";
}

// An interrupted indexing that nobody resumed within a week will not be resumed.
bool is_recent(const fs::path& path) {
    std::error_code error;
    const auto written = fs::last_write_time(path, error);
    return !error && fs::file_time_type::clock::now() - written < kJournalKept;
}

bool holds_own_files_only(const std::string& directory) {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
        if (!is_own_file(entry)) return false;
    }
    return !error;
}

std::unexpected<Error> fail_file_operation(const std::error_code& error, const std::string& what) {
    return fail_errno(error.value(), what);
}

Result<std::uint64_t> parse_dataset_id(std::string_view text) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (text.size() != 16 || error != std::errc{} || end != text.data() + text.size()) {
        return fail(ErrorCode::invalid_argument, "is not 16 hexadecimal digits");
    }
    return value;
}

std::string to_json(const DatasetRecord& record) {
    const DatasetDefinition& definition = record.definition;
    json::array versions;
    for (const std::uint64_t version : record.versions) versions.emplace_back(version);
    const json::object quota{{"memory_bytes", record.quota.memory_bytes}, {"disk_bytes", record.quota.disk_bytes}};
    json::object object{
        {"name", definition.name},
        {"url", definition.url},
        {"format", protocol::name(*definition.format)},
        {"block", block_goal_text(definition.block)},
        {"dataset_id", format_dataset_id(record.dataset_id)},
        {"owner", record.access.owner},
        {"group", record.access.group},
        {"mode", format_mode(record.access.mode)},
        {"quota", quota},
        {"quota_held", record.quota_held},
        {"versions", std::move(versions)},
    };
    if (definition.remote != RemoteOptions{}) object["remote"] = remote_json(definition.remote);
    if (definition.compression != Compression{}) object["compression"] = format_compression(definition.compression);
    if (definition.checksum) object["checksum"] = true;
    if (definition.tokens_per_sample > 0) object["tokens_per_sample"] = definition.tokens_per_sample;
    if (!definition.columns.empty()) object["columns"] = format_columns(definition.columns);
    return json_text(object) + "\n";
}

std::uint32_t read_id(JsonReader& reader, std::string_view key) {
    const std::uint64_t value = reader.unsigned_integer(key);
    if (value > 0xffffffffu) reader.reject(key, "is not a user or group number");
    return static_cast<std::uint32_t>(value);
}

Result<DatasetRecord> from_json(std::string_view text, const std::string& path) {
    const auto object = parse_json_object(text, path);
    if (!object) return std::unexpected(object.error());
    JsonReader reader(*object, path);
    DatasetRecord record;
    DatasetDefinition& definition = record.definition;
    definition.name = reader.string("name");
    definition.url = reader.string("url");
    if (const auto format = parse_format(reader.string("format"))) {
        definition.format = *format;
    } else {
        reader.reject("format", "is not a format that this version knows");
    }
    if (const auto block = parse_block_goal(reader.string("block"))) {
        definition.block = *block;
    } else {
        reader.reject("block", "is wrong: " + block.error().message);
    }
    if (const json::object* remote = reader.optional_object("remote")) {
        auto options = read_remote(*remote, path + ": remote");
        if (!options) return std::unexpected(options.error());
        definition.remote = std::move(*options);
    }
    if (const auto compression_text = reader.optional_string("compression")) {
        const auto compression = parse_compression(*compression_text);
        if (!compression) reader.reject("compression", "is wrong: " + compression.error().message);
        definition.compression = compression.value_or(Compression{});
    }
    definition.checksum = reader.optional_boolean("checksum").value_or(false);
    const std::uint64_t tokens = reader.optional_unsigned_integer("tokens_per_sample").value_or(0);
    if (tokens > kTokensPerSampleMax) reader.reject("tokens_per_sample", "is too large");
    definition.tokens_per_sample = static_cast<std::uint32_t>(tokens);
    if (const auto columns_text = reader.optional_string("columns")) {
        auto columns = parse_columns(*columns_text);
        if (!columns) reader.reject("columns", "is wrong: " + columns.error().message);
        definition.columns = std::move(columns).value_or(std::vector<std::string>{});
    }
    if (const auto id = parse_dataset_id(reader.string("dataset_id"))) {
        record.dataset_id = *id;
    } else {
        reader.reject("dataset_id", id.error().message);
    }
    record.access.owner = read_id(reader, "owner");
    record.access.group = read_id(reader, "group");
    if (const auto mode = parse_mode(reader.string("mode"))) {
        record.access.mode = *mode;
    } else {
        reader.reject("mode", "is not an octal mode");
    }
    JsonReader quota(reader.object("quota"), path + ": quota");
    record.quota.memory_bytes = quota.unsigned_integer("memory_bytes");
    record.quota.disk_bytes = quota.unsigned_integer("disk_bytes");
    // Old records lack this key; in them every nonzero quota was set by hand.
    record.quota_held =
        reader.optional_boolean("quota_held").value_or(record.quota.memory_bytes + record.quota.disk_bytes > 0);
    for (const json::value& version : reader.array("versions")) {
        if (version.is_int64() && version.as_int64() > 0) {
            record.versions.push_back(static_cast<std::uint64_t>(version.as_int64()));
        } else {
            reader.reject("versions", "is not a list of numbers above 0");
        }
    }
    if (record.versions.empty() || !std::ranges::is_sorted(record.versions)) {
        reader.reject("versions", "is empty or not in order");
    }
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    if (auto finished = quota.finish(); !finished) return std::unexpected(finished.error());
    return record;
}

}  // namespace

Result<void> check_dataset_name(std::string_view name) {
    const auto allowed = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
               c == '-';
    };
    const bool is_valid = !name.empty() && name.size() <= kDatasetNameBytesMax && name.front() != '.' &&
                          name.front() != '-' && std::ranges::all_of(name, allowed);
    if (is_valid) return {};
    return fail(
        ErrorCode::invalid_argument,
        "\"" + std::string(name.substr(0, kDatasetNameBytesMax)) +
            "\" is not a dataset name: give 1 to 128 letters, digits, '.', '_' or '-', not beginning with '.' or '-'");
}

std::string block_goal_text(const BlockGoal& goal) {
    switch (goal.target) {
        case protocol::BlockTarget::sample: return "sample";
        case protocol::BlockTarget::object: return "object";
        case protocol::BlockTarget::bytes: break;
    }
    if (goal.bytes % (1u << 20) == 0) return std::to_string(goal.bytes >> 20) + " MiB";
    if (goal.bytes % (1u << 10) == 0) return std::to_string(goal.bytes >> 10) + " KiB";
    return std::to_string(goal.bytes) + " B";
}

std::string format_dataset_id(std::uint64_t dataset_id) {
    std::string text(16, '0');
    for (std::size_t i = 16; i-- > 0; dataset_id >>= 4) text[i] = "0123456789abcdef"[dataset_id & 15];
    return text;
}

std::uint64_t random_dataset_id() {
    std::uint64_t value = 0;
    LARDER_ASSERT(::getrandom(&value, sizeof value, 0) == sizeof value);
    return value;
}

std::string Catalog::manifest_path(const std::string& name, std::uint64_t version) const {
    return directory_ + "/" + name + "/" + std::string(kManifestPrefix) + std::to_string(version);
}

Result<Catalog::Loaded> Catalog::load() {
    std::error_code error;
    fs::create_directories(directory_, error);
    if (error) return fail_file_operation(error, "make directory " + directory_);
    Loaded loaded;
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory_, error)) {
        names.push_back(entry.path().filename().string());
    }
    if (error) return fail_file_operation(error, "list " + directory_);
    std::ranges::sort(names);
    for (const std::string& name : names) {
        const std::string path = directory_ + "/" + name + "/dataset.json";
        if (!fs::exists(path, error)) {
            if (error && error != std::errc::not_a_directory) {
                loaded.damaged.push_back({name, errno_error(error.value(), "look for " + path)});
                continue;
            }
            if (!check_dataset_name(name) || !holds_own_files_only(directory_ + "/" + name)) continue;
            const auto removed = abandon(name);
            if (!removed) {
                loaded.problems.push_back(removed.error());
            } else if (*removed) {
                loaded.removed.push_back(directory_ + "/" + name);
            } else {
                loaded.stopped.push_back(name);
            }
            continue;
        }
        auto record = load_record(name);
        if (!record) {
            loaded.damaged.push_back({name, record.error()});
            continue;
        }
        if (auto removed = remove_left_overs(*record, loaded.removed); !removed) {
            loaded.problems.push_back(removed.error());
        }
        loaded.records.push_back(std::move(*record));
    }
    return loaded;
}

Result<DatasetRecord> Catalog::load_record(const std::string& name) const {
    const std::string path = directory_ + "/" + name + "/dataset.json";
    const auto text = read_file(path);
    if (!text) return std::unexpected(text.error());
    auto record = from_json(*text, path);
    if (!record) return record;
    if (record->definition.name != name) {
        return fail(ErrorCode::corrupt,
                    path + " is the record of dataset \"" + record->definition.name + "\", not of this directory");
    }
    std::error_code error;
    if (!fs::exists(manifest_path(name, record->versions.back()), error)) {
        return fail(ErrorCode::corrupt, path + " names version " + std::to_string(record->versions.back()) + ", but " +
                                            manifest_path(name, record->versions.back()) + " is missing");
    }
    std::erase_if(record->versions,
                  [&](std::uint64_t version) { return !fs::exists(manifest_path(name, version), error); });
    return record;
}

Result<void> Catalog::remove_left_overs(const DatasetRecord& record, std::vector<std::string>& removed) {
    std::error_code error;
    const fs::path directory = directory_ + "/" + record.definition.name;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
        const std::string path = entry.path().string();
        const bool known = path == directory.string() + "/dataset.json" ||
                           std::ranges::any_of(record.versions, [&](std::uint64_t version) {
                               return path == manifest_path(record.definition.name, version);
                           });
        const bool is_resumable_journal =
            path == journal_path(manifest_path(record.definition.name, record.versions.back() + 1)) &&
            is_recent(entry.path());
        if (known || is_resumable_journal || !is_own_file(entry)) continue;
        std::error_code failed;
        fs::remove(path, failed);
        if (failed) return fail_file_operation(failed, "remove " + path);
        removed.push_back(path);
    }
    if (error) return fail_file_operation(error, "list " + directory.string());
    return {};
}

Result<void> Catalog::create(const std::string& name) {
    std::error_code error;
    fs::create_directories(directory_ + "/" + name, error);
    if (error) return fail_file_operation(error, "make directory " + directory_ + "/" + name);
    return sync_directory(directory_);
}

Result<void> Catalog::save(const DatasetRecord& record) {
    auto saved = replace_file(directory_ + "/" + record.definition.name + "/dataset.json", to_json(record), 0640);
    if (!saved) return saved;
    for (const std::uint64_t version : record.versions) {
        std::error_code ignored;  // the next start removes a journal that could not be removed here
        fs::remove(journal_path(manifest_path(record.definition.name, version)), ignored);
    }
    return {};
}

Result<bool> Catalog::abandon(const std::string& name) {
    const std::string directory = directory_ + "/" + name;
    std::error_code error;
    bool journal_left = false;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
        if (is_journal(entry.path()) && is_recent(entry.path())) {
            journal_left = true;
        } else if (is_own_file(entry)) {
            std::error_code failed;
            fs::remove(entry.path(), failed);
            if (failed) return fail_file_operation(failed, "remove " + entry.path().string());
        }
    }
    if (error && error != std::errc::no_such_file_or_directory) return fail_file_operation(error, "list " + directory);
    if (journal_left) return false;
    if (auto removed = remove(name); !removed) return std::unexpected(removed.error());
    return true;
}

Result<void> Catalog::remove(const std::string& name) {
    // Remove the record first: without it the next start removes the rest, whatever happens.
    const std::string directory = directory_ + "/" + name;
    std::error_code error;
    fs::remove(directory + "/dataset.json", error);
    if (error) return fail_file_operation(error, "remove " + directory + "/dataset.json");
    fs::remove_all(directory, error);
    if (error) return fail_file_operation(error, "remove " + directory);
    // After the sync a power failure cannot restore the directory.
    return sync_directory(directory_);
}

Result<void> Catalog::remove_manifest(const std::string& name, std::uint64_t version) {
    const std::string path = manifest_path(name, version);
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return fail_errno(errno, "remove " + path);
    return {};
}

}  // namespace larder::cache
