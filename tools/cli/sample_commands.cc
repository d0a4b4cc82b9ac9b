#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "cache/protocol/manifest.h"
#include "loader/client_session.h"
#include "loader/larder.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/context.h"
#include "tools/cli/table.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

// A job's name belongs to one user.
std::string job_of_user() {
    return "larder-cat-" + std::to_string(::getuid());
}

Result<protocol::Manifest> open_manifest(const Context& context, const std::string& dataset) {
    auto session =
        detail::ClientSession::open({.socket = jobs_socket(context), .dataset = dataset, .job = job_of_user()});
    if (!session) return std::unexpected(session.error());
    return (*session)->take_manifest();
}

// Finds a sample by its index or, if each object is one sample, by the object's path.
Result<std::uint64_t> find_sample(const protocol::Manifest& manifest, const std::string& dataset,
                                  const std::string& named) {
    std::uint64_t index = 0;
    const auto [end, error] = std::from_chars(named.data(), named.data() + named.size(), index);
    const bool is_number = error == std::errc{} && end == named.data() + named.size();
    const auto object = manifest.find_object(named);
    if (object && manifest.object_count() == manifest.sample_count()) return *object;
    const std::string see = "; `larder dataset ls-samples " + dataset + "` lists the samples";
    if (object) {
        return fail(ErrorCode::invalid_argument,
                    named + " holds several samples of dataset \"" + dataset + "\": give the index of one" + see);
    }
    if (!is_number) {
        return fail(ErrorCode::not_found,
                    "dataset \"" + dataset + "\" has no object " + named + ", and it is no index" + see);
    }
    if (index >= manifest.sample_count()) {
        return fail(ErrorCode::not_found, "dataset \"" + dataset + "\" has the samples 0 to " +
                                              std::to_string(manifest.sample_count() - 1) + ", no " + named + see);
    }
    return index;
}

std::string_view label_name(const std::vector<std::string>& classes, std::uint32_t label) {
    return label < classes.size() ? std::string_view(classes[label]) : std::string_view();
}

void put_label(json::object& object, const std::vector<std::string>& classes, std::uint32_t label) {
    object["label"] = label == kNoLabel ? json::value() : json::value(label);
    if (const std::string_view name = label_name(classes, label); !name.empty()) object["class"] = name;
}

// --- cat

struct CatOptions {
    std::string dataset;
    std::string sample;
    std::string field;
};

json::object sample_json(const Sample& sample, const std::vector<std::string>& classes) {
    json::array fields;
    for (const Field& field : sample.fields) {
        json::object named{{"name", field.name}, {"bytes", field.bytes.size()}};
        if (!field.encoding.empty()) named["encoding"] = field.encoding;
        fields.push_back(std::move(named));
    }
    json::object object{{"index", sample.index}, {"key", sample.key}, {"fields", std::move(fields)}};
    put_label(object, classes, sample.label);
    return object;
}

Result<std::span<const std::byte>> find_field(const Sample& sample, const std::string& named) {
    if (named.empty()) return sample.bytes();
    std::string names;
    for (const Field& field : sample.fields) {
        if (field.name == named) return field.bytes;
        names += (names.empty() ? "\"" : ", \"") + std::string(field.name) + "\"";
    }
    return fail(ErrorCode::not_found,
                "sample " + std::to_string(sample.index) + " has no field \"" + named + "\": it has " + names);
}

int cat(const Context& context, const CatOptions& options) {
    const auto manifest = open_manifest(context, options.dataset);
    if (!manifest) return report(context, manifest.error());
    if (manifest->has_rows()) {
        return report(context,
                      Error{.code = ErrorCode::unsupported,
                            .message = "dataset \"" + options.dataset +
                                       "\" has rows of tables, which have no bytes of their own: read them with "
                                       "the Python package, such as larder.Dataset(\"" +
                                       options.dataset + "\", decode=larder.decode)[0]"});
    }
    const auto index = find_sample(*manifest, options.dataset, options.sample);
    if (!index) return report(context, index.error());
    ConnectOptions connect;
    connect.dataset = options.dataset;
    connect.job = job_of_user();
    connect.socket = jobs_socket(context);
    connect.reconnect_timeout_ms = 0;
    auto dataset = Dataset::open(connect);
    if (!dataset) return report(context, dataset.error());
    const std::uint64_t wanted[] = {*index};
    const auto batch = dataset->fetch(wanted);
    if (!batch) return report(context, batch.error());
    const Sample& sample = (*batch)[0];
    const auto bytes = find_field(sample, options.field);
    if (!bytes) return report(context, bytes.error());
    if (context.json) {
        print_json(sample_json(sample, dataset->class_names()));
        return kDone;
    }
    if (std::fwrite(bytes->data(), 1, bytes->size(), stdout) != bytes->size() || std::fflush(stdout) != 0) {
        return report(context, errno_error(errno, "write to standard output"));
    }
    return kDone;
}

// --- ls-samples

struct ListOptions {
    std::string dataset;
    std::uint64_t from = 0;
    std::uint64_t count = 100;
};

struct ListedSample {
    std::uint64_t index = 0;
    std::string_view object;
    std::uint64_t offset = 0;            // in the object
    std::optional<std::uint64_t> bytes;  // unknown inside a compressed block
    std::uint32_t label = kNoLabel;
};

ListedSample listed_sample(const protocol::Manifest& manifest, std::uint64_t index) {
    const protocol::Block block = manifest.block(manifest.block_of_sample(index));
    const protocol::Object object = manifest.object(block.object);
    ListedSample listed{
        .index = index, .object = object.path, .offset = block.offset, .bytes = {}, .label = object.label};
    if (manifest.samples_by_ordinal()) return listed;
    const protocol::SampleExtent extent = manifest.sample(index);
    listed.bytes = extent.length;
    if (block.raw_bytes == 0) listed.offset += extent.offset;
    return listed;
}

int list_samples(const Context& context, const ListOptions& options) {
    const auto manifest = open_manifest(context, options.dataset);
    if (!manifest) return report(context, manifest.error());
    const std::vector<std::string> classes = manifest->class_names();
    const std::uint64_t count = manifest->sample_count();
    const std::uint64_t begin = std::min(options.from, count);
    const std::uint64_t end = begin + std::min(options.count, count - begin);
    json::array samples;
    Table table({">SAMPLE", ">SIZE", "CLASS", "OBJECT", ">OFFSET"});
    for (std::uint64_t index = begin; index < end; ++index) {
        const ListedSample listed = listed_sample(*manifest, index);
        if (context.json) {
            json::object object{{"index", listed.index},
                                {"object", listed.object},
                                {"offset", listed.offset},
                                {"bytes", listed.bytes ? json::value(*listed.bytes) : json::value()}};
            put_label(object, classes, listed.label);
            samples.push_back(std::move(object));
        } else {
            table.add({std::to_string(index), listed.bytes ? format_bytes_short(*listed.bytes) : "-",
                       or_dash(std::string(label_name(classes, listed.label))), std::string(listed.object),
                       std::to_string(listed.offset)});
        }
    }
    if (context.json) {
        print_json(json::object{{"dataset", options.dataset},
                                {"version", manifest->header().version},
                                {"sample_count", count},
                                {"samples", std::move(samples)}});
        return kDone;
    }
    std::fputs(table.text().c_str(), stdout);
    if (end < count) {
        std::fprintf(stderr, "%s of %s; the next: --from %s\n", format_count(end - begin).c_str(),
                     format_counted(count, "sample").c_str(), std::to_string(end).c_str());
    }
    return kDone;
}

}  // namespace

void add_cat_command(CLI::App& app, Context& context) {
    auto options = std::make_shared<CatOptions>();
    CLI::App* command = app.add_subcommand(
        "cat", "Print the bytes of a sample, read through the cache; with --json what it holds instead of its bytes");
    command->add_option("DATASET", options->dataset, "The dataset")->required();
    command
        ->add_option("SAMPLE", options->sample,
                     "The sample's index or, if each file is one sample, its path in the dataset")
        ->required();
    command->add_option("--field", options->field, "The field to print. Default: the first");
    command->callback(
        [&context, options] { context.command = [&context, options] { return cat(context, *options); }; });
}

void add_ls_samples_command(CLI::App& dataset, Context& context) {
    auto options = std::make_shared<ListOptions>();
    CLI::App* command = dataset.add_subcommand("ls-samples", "List samples: index, size, class, and where they lie");
    command->add_option("NAME", options->dataset, "The dataset")->required();
    command->add_option("--from", options->from, "Index of the first sample to list. Default: 0")
        ->check(CLI::NonNegativeNumber);
    command->add_option("--count", options->count, "Most samples to list. Default: 100")->check(CLI::PositiveNumber);
    command->callback(
        [&context, options] { context.command = [&context, options] { return list_samples(context, *options); }; });
}

}  // namespace larder::cli
