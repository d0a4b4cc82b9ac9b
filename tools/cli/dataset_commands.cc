#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "base/server/json_text.h"
#include "base/units.h"
#include "cache/protocol/manifest.h"
#include "cache/store/compression.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/allocator.h"
#include "tools/cli/context.h"
#include "tools/cli/remote_flags.h"
#include "tools/cli/table.h"
#include "tools/cli/task_command.h"
#include "tools/cli/unit_options.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

struct AddOptions {
    std::string name;
    std::string url;
    std::string format;
    std::string block;
    std::string owner;
    std::string group;
    std::string mode;
    RemoteChoice remote;
    bool dry_run = false;
    bool checksum = false;
    std::string compression;
    std::string columns;
    std::optional<std::uint64_t> tokens_per_sample;
    std::optional<std::uint64_t> quota_memory_bytes;
    std::optional<std::uint64_t> quota_disk_bytes;
};

std::string percent_cached(const json::object& dataset) {
    return format_part(number_at(dataset, "cached_ratio"), 1);
}

double hits_of(const json::object& counters) {
    return number_at(counters, "memory_hits") + number_at(counters, "disk_hits");
}

std::string dataset_table(const json::array& datasets) {
    Table table({"NAME", "FORMAT", "BLOCK", ">SAMPLES", ">SIZE", ">CACHED", ">MEMORY", ">DISK", ">HITS", ">VERSION"});
    for (const json::value& value : datasets) {
        const json::object& dataset = as_object(value);
        const json::object& used = object_at(dataset, "used");
        const json::object& quota = object_at(dataset, "quota");
        const json::object& counters = object_at(dataset, "counters");
        const auto used_of_quota = [&](const char* key) {
            const std::uint64_t quota_bytes = count_at(quota, key);
            return format_bytes(count_at(used, key), unit_family_of(quota_bytes)) + " / " + format_bytes(quota_bytes);
        };
        const double hits = hits_of(counters);
        table.add({text_at(dataset, "name"), text_at(dataset, "format"), text_at(dataset, "block"),
                   format_count(count_at(dataset, "samples")), format_bytes(count_at(dataset, "total_bytes")),
                   percent_cached(dataset), used_of_quota("memory_bytes"), used_of_quota("disk_bytes"),
                   format_part(hits, hits + number_at(counters, "misses")), text_at(dataset, "version")});
    }
    return table.text();
}

std::string tokens_text(const json::object& dataset) {
    const std::uint64_t tokens = count_at(dataset, "tokens_per_sample");
    return tokens == 0 ? "" : ", samples of " + format_count(tokens) + " tokens";
}

std::string columns_text(const json::object& dataset) {
    const std::string columns = text_at(dataset, "columns");
    return columns.empty() ? "" : ", columns " + columns;
}

// Describes the given settings of a remote: "endpoint http://host:9000, profile training, unsigned".
std::string remote_text(const json::object& dataset) {
    std::string text;
    for (const json::key_value_pair& option : object_at(dataset, "remote")) {
        if (!text.empty()) text += ", ";
        text += option.key() == "requester_pays"    ? "requester pays"
                : option.key() == "follow_symlinks" ? "follows symbolic links"
                                                    : std::string(option.key());
        if (option.value().is_string()) text += " " + std::string(option.value().as_string());
    }
    return text.empty() ? "no options" : text;
}

std::string dataset_text(const json::object& dataset) {
    const json::object& used = object_at(dataset, "used");
    const json::object& quota = object_at(dataset, "quota");
    const json::object& counters = object_at(dataset, "counters");
    const double hits = hits_of(counters);
    const auto bytes = [](const json::object& object, const char* key) { return format_bytes(count_at(object, key)); };
    const auto count = [](const json::object& object, const char* key) { return format_count(count_at(object, key)); };
    const auto used_of = [&](const char* tier) {
        const std::uint64_t quota_bytes = count_at(quota, tier);
        return format_bytes(count_at(used, tier), unit_family_of(quota_bytes)) + " of " + format_bytes(quota_bytes);
    };
    const std::string offline = text_at(dataset, "offline");
    std::string versions;
    for (const json::value& version : array_at(dataset, "versions")) {
        versions += (versions.empty() ? "" : ", ") +
                    (version.is_object() ? text_at(version.get_object(), "version") : json_text(version));
    }
    const double stored_ratio = number_at(dataset, "stored_ratio");
    const std::string stored =
        stored_ratio > 0 && stored_ratio < 1 ? ", blocks shrink to " + format_part(stored_ratio, 1) : "";
    std::string quarantined = format_counted(count_at(dataset, "quarantined_blocks"), "block") + ", " +
                              format_counted(count_at(counters, "remote_corrupt"), "wrong read") + " of the remote";
    for (const json::value& value : array_at(dataset, "quarantined")) {
        const json::object& block = as_object(value);
        quarantined += "\n  " + text_at(block, "object") + ", " + bytes(block, "bytes") + " from offset " +
                       std::to_string(count_at(block, "offset")) +
                       (flag_at(block, "by_reader") ? ", found by a reader" : "");
    }
    return name_value_text({
        {"name", text_at(dataset, "name")},
        {"url", text_at(dataset, "url") + (offline.empty() ? "" : ", OFFLINE: " + offline)},
        {"remote", remote_text(dataset)},
        {"format", text_at(dataset, "format") + tokens_text(dataset) + columns_text(dataset)},
        {"block", text_at(dataset, "block")},
        {"dataset id", text_at(dataset, "dataset_id")},
        {"version", text_at(dataset, "version") + (versions.empty() ? "" : " (kept: " + versions + ")")},
        {"access", text_at(dataset, "owner") + ":" + text_at(dataset, "group") + " " + text_at(dataset, "mode")},
        {"objects", count(dataset, "objects")},
        {"blocks", count(dataset, "blocks")},
        {"samples", count(dataset, "samples")},
        {"classes", count(dataset, "classes")},
        {"size", bytes(dataset, "total_bytes")},
        {"cached", percent_cached(dataset) + ", " + format_counted(count_at(used, "blocks"), "block") + ", " +
                       bytes(used, "payload_bytes")},
        {"memory", used_of("memory_bytes")},
        {"disk",
         used_of("disk_bytes") + (flag_at(dataset, "disk_full") ? ", DISK FULL: nothing more is admitted" : "")},
        {"segments", count(used, "segments")},
        {"sessions", count(dataset, "sessions")},
        {"hits", format_part(hits, hits + number_at(counters, "misses")) + " (" + count(counters, "memory_hits") +
                     " memory, " + count(counters, "disk_hits") + " disk, " + count(counters, "misses") + " misses)"},
        {"bytes served", bytes(counters, "bytes_memory") + " memory, " + bytes(counters, "bytes_disk") + " disk, " +
                             bytes(counters, "bytes_remote") + " remote"},
        {"not admitted", count(counters, "admissions_refused") + " reads of blocks that the quota has no room for"},
        {"compression", text_at(dataset, "compression") + stored},
        {"checksums", flag_at(dataset, "checksums") ? "of each block" : "none (dataset add --checksum takes them)"},
        {"quarantined", quarantined},
        {"faults", format_counted(count_at(counters, "crc_failures"), "damaged block") + " fetched again, " +
                       format_counted(count_at(counters, "remote_errors"), "remote error")},
    });
}

int show_dataset(const Context& context, const std::string& name) {
    const auto dataset = call(context, "GET", dataset_target(name));
    if (!dataset) return report(context, dataset.error());
    if (context.json) {
        print_json(*dataset);
    } else {
        std::fputs(dataset_text(as_object(*dataset)).c_str(), stdout);
    }
    return kDone;
}

// Says that a new dataset has no quota, unless an allocator will set one at once.
void note_missing_quota(Context context, const std::string& name) {
    const auto status = call(context, "GET", "/v1/status");
    const bool has_allocator =
        status && as_object(*status).contains("allocator") && as_object(*status).at("allocator").is_object();
    if (!has_allocator) {
        std::printf(
            "note: the dataset has no quota, so nothing is cached yet: larder quota set %s --memory SIZE --disk SIZE\n",
            name.c_str());
        return;
    }
    const json::object& allocator = object_at(as_object(*status), "allocator");
    if (flag_at(allocator, "connected")) return;
    context.allocator.endpoint = text_at(allocator, "endpoint");
    context.allocator.waits_for_leader = false;
    // A daemon without a plan is not connected. The allocator may run all the same: it waits after its start until
    // leases that it does not know have expired.
    const bool answers = call_allocator(context, "GET", "/v1/status").has_value();
    const std::string reason =
        answers ? "has no plan for this node yet: " + text_at(allocator, "problem") : std::string("does not answer");
    std::printf(
        "note: the dataset has no quota, so nothing is cached yet: the allocator at %s, which sets quotas, %s; larder "
        "quota set %s --memory SIZE --disk SIZE sets one by hand\n",
        context.allocator.endpoint.c_str(), reason.c_str(), name.c_str());
}

std::string survey_text(const json::object& survey, bool format_was_given) {
    std::string files;
    for (const json::value& value : array_at(survey, "suffixes")) {
        const json::object& suffix = as_object(value);
        const std::string name = text_at(suffix, "suffix");
        files += (files.empty() ? "" : ", ") + format_count(count_at(suffix, "objects")) + " " +
                 (name.empty() ? "without a suffix" : name) + " (" + format_bytes(count_at(suffix, "bytes")) + ")";
    }
    std::string odd;
    for (const json::value& value : array_at(survey, "odd")) {
        odd += (odd.empty() ? "" : ", ") + std::string(value.as_string());
    }
    const std::uint64_t odd_more = count_at(survey, "odd_objects") - array_at(survey, "odd").size();
    if (odd_more > 0) odd += " and " + format_count(odd_more) + " more";
    std::vector<std::pair<std::string, std::string>> values{
        {"url", text_at(survey, "url")},
        {"format",
         text_at(survey, "format") + (format_was_given ? ", as given by --format" : ", detected from the files")},
        {"files", format_count(count_at(survey, "objects")) + ", " + format_bytes(count_at(survey, "bytes"))},
        {"kinds", or_dash(files)},
        {"directories", format_count(count_at(survey, "top_directories"))},
        {"empty files", format_count(count_at(survey, "empty_objects"))},
        {"odd files", odd.empty() ? "none" : odd}};
    return name_value_text(values);
}

// Prints what `add` would find, without adding anything.
int survey_dataset(const Context& context, const AddOptions& options, const json::object& body) {
    const auto accepted = call(context, "POST", "/v1/datasets", body);
    if (!accepted) return report(context, accepted.error());
    const auto ended = follow_task(context, *accepted, "looking at " + options.url);
    if (!ended) return report(context, ended.error());
    if (ended->error) return report_task(context, *ended->error);
    if (context.json) {
        print_json(ended->task);
        return kDone;
    }
    const json::object& survey = object_at(as_object(ended->task), "result");
    std::fputs(survey_text(survey, !options.format.empty()).c_str(), stdout);
    print_notes(survey);
    std::puts("nothing was added: run the same command without --dry-run to add the dataset");
    return kDone;
}

int add_dataset(const Context& context, const AddOptions& options) {
    if (auto checked = options.remote.check(); !checked) return report(context, checked.error());
    json::object body{{"name", options.name}, {"url", url_of(options.url)}};
    for (const auto& [key, value] :
         {std::pair{"format", &options.format}, std::pair{"compression", &options.compression},
          std::pair{"block", &options.block}, std::pair{"columns", &options.columns},
          std::pair{"owner", &options.owner}, std::pair{"group", &options.group}, std::pair{"mode", &options.mode}}) {
        if (!value->empty()) body[key] = *value;
    }
    if (const json::object remote = options.remote.json(); !remote.empty()) body["remote"] = remote;
    if (options.checksum) body["checksum"] = true;
    if (options.tokens_per_sample) body["tokens_per_sample"] = *options.tokens_per_sample;
    if (options.quota_memory_bytes || options.quota_disk_bytes) {
        body["quota"] = json::object{{"memory_bytes", options.quota_memory_bytes.value_or(0)},
                                     {"disk_bytes", options.quota_disk_bytes.value_or(0)}};
    }
    if (options.dry_run) {
        body["dry_run"] = true;
        return survey_dataset(context, options, body);
    }
    const int code =
        run_task(context, "POST", "/v1/datasets", body, "indexing " + options.name, "added " + options.name);
    const bool cached = options.quota_memory_bytes.value_or(0) + options.quota_disk_bytes.value_or(0) > 0;
    if (code == kDone && !cached && !context.json) note_missing_quota(context, options.name);
    return code;
}

int list_datasets(const Context& context) {
    const auto answer = call(context, "GET", "/v1/datasets");
    if (!answer) return report(context, answer.error());
    const json::array& datasets = array_at(as_object(*answer), "datasets");
    if (context.json) {
        print_json(*answer);
    } else if (datasets.empty()) {
        std::puts("no datasets yet: larder dataset add NAME URL");
    } else {
        std::fputs(dataset_table(datasets).c_str(), stdout);
    }
    for (const json::value& value : datasets) {
        const json::object& dataset = as_object(value);
        const std::string offline = text_at(dataset, "offline");
        if (offline.empty()) continue;
        std::fprintf(stderr, "not served: %s: %s\n", text_at(dataset, "name").c_str(), offline.c_str());
    }
    for (const json::value& value : array_at(as_object(*answer), "damaged")) {
        const json::object& damaged = as_object(value);
        std::fprintf(stderr, "damaged: %s: %s\n", text_at(damaged, "name").c_str(), text_at(damaged, "reason").c_str());
    }
    return kDone;
}

int remove_dataset(const Context& context, const std::string& name) {
    const auto answer = call(context, "DELETE", dataset_target(name));
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
    } else {
        std::printf("removed %s and its cached blocks; the remote is unchanged\n", name.c_str());
    }
    return kDone;
}

std::vector<std::string> format_names() {
    std::vector<std::string> names;
    names.reserve(std::size(protocol::kFormats));
    for (const protocol::Format format : protocol::kFormats) names.emplace_back(protocol::name(format));
    return names;
}

void add_add_command(CLI::App& dataset, Context& context) {
    auto options = std::make_shared<AddOptions>();
    CLI::App* add = dataset.add_subcommand("add", "Index a remote dataset and add it under a name");
    add->add_option("NAME", options->name, "The name that jobs use for the dataset")->required();
    add->add_option("URL", options->url,
                    "A local path, file:///path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, "
                    "https://host/dir/{000..146}.tar, or the URL of a "
                    ".txt that names objects")
        ->required();
    add_remote_options(*add, options->remote, "the daemon's");
    add->add_option("--format", options->format,
                    "raw: one file is one sample; webdataset: tar shards; mds: MosaicML Streaming; litdata; tfrecord; "
                    "megatron: .bin with .idx; parquet; array_record. Default: detected from the files")
        ->check(CLI::IsMember(format_names()));
    add->add_option("--block", options->block,
                    "The unit fetched and cached: sample, object, or a size such as 8MiB. Default: sample")
        ->check([](const std::string& text) {
            if (text == "sample" || text == "object" || parse_bytes(text)) return std::string();
            return "\"" + text + "\" is not a block: expected sample, object, or a size such as 8MiB";
        });
    add->add_option("--compression", options->compression,
                    "Compression in the cache, for data that shrinks by more than 10 %: none, auto, zstd or "
                    "zstd:LEVEL; auto: compress if the dataset does not fit its quota otherwise. Default: none")
        ->check([](const std::string& text) {
            const auto compression = cache::parse_compression(text);
            return compression ? std::string() : compression.error().message;
        });
    add->add_flag("--dry-run", options->dry_run,
                  "Add nothing; print the format, the number of files of each kind, and which files are odd");
    add->add_flag(
        "--checksum", options->checksum,
        "Read everything once and keep the checksum of each block, to detect bytes that go bad at the remote");
    add->add_option(
        "--tokens-per-sample", options->tokens_per_sample,
        "For datasets of tokens (megatron, litdata): length of a sample, in tokens. Default: a sample is a document");
    add->add_option("--columns", options->columns,
                    "For Parquet: the columns to fetch and cache, such as image,label. Default: all");
    add->add_option("--owner", options->owner, "User who owns the dataset. Default: you");
    add->add_option("--group", options->group, "Group that owns the dataset. Default: yours");
    add->add_option("--mode", options->mode, "Mode of the dataset, as of a file, such as 0640: says who may read it");
    add_bytes_option(*add, "--quota-memory", options->quota_memory_bytes, "The dataset's quota of the node's memory");
    add_bytes_option(*add, "--quota-disk", options->quota_disk_bytes, "The dataset's quota of the node's disk");
    add->callback(
        [&context, options] { context.command = [&context, options] { return add_dataset(context, *options); }; });
}

// Adds a subcommand whose only argument is the name of a dataset.
CLI::App* add_named(CLI::App& dataset, Context& context, const char* command, const char* help,
                    std::function<int(const Context&, const std::string&)> run) {
    auto name = std::make_shared<std::string>();
    CLI::App* app = dataset.add_subcommand(command, help);
    app->add_option("NAME", *name, "The dataset")->required();
    app->callback([&context, name, run = std::move(run)] {
        context.command = [&context, name, run] { return run(context, *name); };
    });
    return app;
}

void add_named_task(CLI::App& dataset, Context& context, const std::string& command, const char* help,
                    const std::string& doing, const std::string& past) {
    add_named(dataset, context, command.c_str(), help, [=](const Context& current, const std::string& name) {
        return run_task(current, "POST", dataset_target(name, "/" + command), nullptr, doing + " " + name,
                        past + " " + name);
    });
}

// Formats the sizes of a warm-up's plan or result in one family of units.
class WarmSizes {
public:
    explicit WarmSizes(const json::object& plan) {
        const json::object& quota = object_at(plan, "quota");
        memory_bytes_ = count_at(quota, "memory_bytes");
        disk_bytes_ = count_at(quota, "disk_bytes");
        family_ = common_unit_family(std::array{count_at(plan, "bytes"), memory_bytes_, disk_bytes_});
    }

    std::string size(std::uint64_t bytes) const { return format_bytes(bytes, family_); }
    // "400 blocks, 40.96 MiB"
    std::string amount(std::uint64_t blocks, std::uint64_t bytes) const {
        return format_counted(blocks, "block") + ", " + size(bytes);
    }
    std::uint64_t quota_bytes() const { return memory_bytes_ + disk_bytes_; }
    std::string quota() const {
        return "its quota, " + size(memory_bytes_) + " of memory and " + size(disk_bytes_) + " of disk,";
    }

private:
    std::uint64_t memory_bytes_;
    std::uint64_t disk_bytes_;
    UnitFamily family_;
};

std::string larger_quota(const std::string& name) {
    return "larder quota set " + name + " --memory SIZE --disk SIZE";
}

// Describes what a warm-up is going to do. `compression` is the dataset's: the plan cannot know how far blocks shrink.
std::string warm_plan_text(const std::string& name, const json::object& plan, const std::string& compression) {
    const std::uint64_t blocks = count_at(plan, "blocks");
    const std::uint64_t cached = count_at(plan, "cached_blocks");
    const std::uint64_t promised = count_at(plan, "promised_blocks");
    const WarmSizes sizes(plan);
    std::string text = name + " has " + sizes.amount(blocks, count_at(plan, "bytes"));
    if (cached > 0) text += "; cached already: " + sizes.amount(cached, count_at(plan, "cached_bytes"));
    if (const std::uint64_t peers = count_at(plan, "peer_blocks"); peers > 0) {
        text += "; cached by peers, so not fetched: " + format_counted(peers, "block");
    }
    if (cached == blocks) return text;
    const bool all_fit = cached + promised + count_at(plan, "peer_blocks") >= blocks;
    const bool may_shrink = !all_fit && compression != "none";
    if (promised == 0 && sizes.quota_bytes() == 0) return text + "; nothing to fetch: it has no quota";
    if (promised == 0) {
        text += std::string("; nothing to fetch") + (all_fit ? "" : ": ");
    } else {
        text += std::string("; to fetch: ") + (all_fit ? "" : "at least ") +
                sizes.amount(promised, count_at(plan, "promised_bytes")) + (all_fit ? "" : ", as ");
    }
    if (!all_fit) text += sizes.quota() + " has no room for more";
    if (may_shrink) text += " unless blocks shrink (compression " + compression + ")";
    return text;
}

// Describes what is cached after a warm-up, with a line for each reason why blocks were left out.
std::string warm_result_text(const std::string& name, const json::object& task) {
    const json::object& result = object_at(task, "result");
    const json::object& missing = object_at(result, "not_cached");
    const WarmSizes sizes(result);
    const double seconds = number_at(task, "seconds");
    const std::uint64_t fetched = count_at(result, "fetched_bytes");
    const auto cached = static_cast<double>(count_at(result, "cached_bytes"));
    const std::uint64_t at_peers = count_at(missing, "at_peers");
    std::string text =
        "warmed " + name + " in " + format_seconds(seconds) + ": " + format_count(count_at(result, "cached_blocks")) +
        " of " + format_count(count_at(result, "blocks")) + " blocks are cached" +
        (at_peers > 0 ? " here and " + format_count(at_peers) + " by peers" : std::string()) + ", " +
        sizes.size(count_at(result, "cached_bytes")) + " of " + sizes.size(count_at(result, "bytes")) + " (" +
        format_part(cached, static_cast<double>(count_at(result, "bytes"))) + "); read " + sizes.size(fetched);
    if (seconds > 0) text += ", " + format_bytes_per_second(static_cast<double>(fetched) / seconds);
    text += "\n";
    const std::string problem = text_at(result, "disk_problem");
    const auto add_reason = [&](const char* key, const std::string& reason) {
        const std::uint64_t blocks = count_at(missing, key);
        if (blocks > 0) text += "not cached: " + format_counted(blocks, "block") + ": " + reason + "\n";
    };
    const std::uint64_t old_blocks = count_at(result, "old_version_blocks");
    if (!flag_at(result, "quota_assigned") && result.contains("quota_assigned")) {
        add_reason("quota", "the allocator has not set the dataset's quota, see larder status");
    } else if (sizes.quota_bytes() == 0) {
        add_reason("quota", "the dataset has no quota: " + larger_quota(name));
    } else {
        add_reason("quota", sizes.quota() + " has no room for them" +
                                (old_blocks > 0 ? " while it also holds " + format_counted(old_blocks, "block") +
                                                      " of older versions: warm again when those have been dropped, "
                                                      "version_grace after the last job that reads them"
                                                : ": " + larger_quota(name)));
    }
    add_reason("disk_full", "the cache disk is full: " + problem);
    add_reason("disk_failed", "the cache disk fails: " + problem);
    add_reason("failed", "the remote did not deliver them, see below");
    add_reason("not_asked", "not requested, because the remote had failed too often in a row");
    add_reason("busy", "they arrived while too many writes were waiting: warm again");
    add_reason("at_peers", "peers have them, and jobs here read them from there");
    for (const json::value& note : array_at(result, "notes")) {
        if (note.is_string()) text += "note: " + std::string(note.get_string()) + "\n";
    }
    return text;
}

int warm_dataset(const Context& context, const std::string& name) {
    const auto accepted = call(context, "POST", dataset_target(name, "/warm"));
    if (!accepted) return report(context, accepted.error());
    const auto dataset = call(context, "GET", dataset_target(name));
    const std::string compression = dataset ? text_at(as_object(*dataset), "compression") : "none";
    bool is_plan_due = !context.json;
    const auto print_plan = [&](const json::object& task, ProgressLine& progress) {
        const json::object& plan = object_at(task, "plan");
        if (!is_plan_due || plan.empty()) return;
        is_plan_due = false;
        progress.finish();
        std::printf("%s\n", warm_plan_text(name, plan, compression).c_str());
        std::fflush(stdout);
    };
    const auto ended = follow_task(context, *accepted, "warming " + name, print_plan);
    if (!ended) return report(context, ended.error());
    if (ended->error) return report_task(context, *ended->error);
    const json::object& task = as_object(ended->task);
    if (context.json) {
        print_json(ended->task);
    } else {
        std::fputs(warm_result_text(name, task).c_str(), stdout);
    }
    return flag_at(object_at(task, "result"), "kept") ? kDone : kFailed;
}

void add_verify_command(CLI::App& dataset, Context& context) {
    struct Options {
        std::string name;
        bool remote = false;
    };
    auto options = std::make_shared<Options>();
    CLI::App* verify = dataset.add_subcommand("verify", "Read all cached blocks again, check them, and drop bad ones");
    verify->add_option("NAME", options->name, "The dataset")->required();
    verify->add_flag(
        "--remote", options->remote,
        "Also read the remote: every block of a dataset added with --checksum, else only the cached blocks");
    verify->callback([&context, options] {
        context.command = [&context, options] {
            return run_task(
                context, "POST", dataset_target(options->name, "/verify"), json::object{{"remote", options->remote}},
                "verifying " + options->name, "verified " + options->name, [](const json::object& result) {
                    const std::uint64_t wrong = count_at(result, "blocks_bad") + count_at(result, "blocks_failed") +
                                                count_at(result, "blocks_corrupt");
                    return static_cast<int>(wrong > 0 ? kFailed : kDone);
                });
        };
    });
}

}  // namespace

void add_dataset_commands(CLI::App& app, Context& context) {
    CLI::App* dataset = app.add_subcommand("dataset", "Add, inspect, warm and remove datasets");
    dataset->require_subcommand(1);
    add_add_command(*dataset, context);
    dataset->add_subcommand("ls", "List the datasets")->alias("list")->callback([&context] {
        context.command = [&context] { return list_datasets(context); };
    });
    add_named(*dataset, context, "info", "Show everything about one dataset", show_dataset);
    add_named_task(*dataset, context, "index", "Index a dataset again: changes at the remote become a new version",
                   "indexing", "indexed");
    add_verify_command(*dataset, context);
    add_named(*dataset, context, "warm", "Fill a dataset's quota from the remote before a job reads it", warm_dataset);
    add_named(*dataset, context, "rm", "Remove a dataset and its cached blocks; the remote is unchanged",
              remove_dataset)
        ->alias("remove");
    add_pack_command(*dataset, context);
    add_ls_samples_command(*dataset, context);
}

}  // namespace larder::cli
