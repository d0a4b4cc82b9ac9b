#include "cache/dataset/index_megatron.h"

#include <mutex>

#include "cache/dataset/index_in_parallel.h"
#include "cache/protocol/format_info.h"
#include "cache/protocol/megatron.h"

namespace larder::cache {
namespace {

// The token type that all files of the dataset must share. `check_same` may be called from any thread.
class TokenType {
public:
    Result<void> check_same(ElementType element, const std::string& path) {
        const std::scoped_lock lock(mutex_);
        if (element_ == ElementType::none) {
            element_ = element;
            path_ = path;
        }
        if (element_ == element) return {};
        return fail(ErrorCode::unsupported, path + " has tokens of type " + std::string(name(element)) + ", " + path_ +
                                                " of type " + std::string(name(element_)) +
                                                "; all files of a dataset must have the same type");
    }
    ElementType element() const { return element_; }

private:
    std::mutex mutex_;
    ElementType element_ = ElementType::none;
    std::string path_;
};

// An index that reports each read of it. A document may have any number of empty sequences, which only reads show.
class ReportedIndex : public protocol::ByteSource {
public:
    ReportedIndex(ObjectReader& idx, const IndexedObject& object, const ObjectProgress& progress)
        : idx_(idx), object_(object), progress_(progress) {}
    std::uint64_t size_bytes() const override { return idx_.size_bytes(); }
    Result<std::span<const std::byte>> read(std::uint64_t offset, std::size_t bytes) override {
        const std::uint64_t done_bytes = object_.blocks.empty() ? 0 : object_.blocks.back().offset;
        if (auto on = progress_(done_bytes, index_bytes(object_)); !on) return std::unexpected(on.error());
        return idx_.read(offset, bytes);
    }

private:
    ObjectReader& idx_;
    const IndexedObject& object_;
    const ObjectProgress& progress_;
};

// Cuts consecutive documents into windows. A window may span several documents.
class Windows {
public:
    Windows(BlockGrouper& grouper, const IndexedObject& object, std::uint64_t window_bytes,
            const ObjectProgress& progress)
        : grouper_(grouper), object_(object), window_bytes_(window_bytes), progress_(progress) {}

    Result<void> add(const protocol::MegatronDocument& document) {
        if (document.bytes == 0) return {};
        // A window does not span a gap between documents.
        if (document.offset != end_) {
            left_over_bytes_ += end_ - begin_;
            begin_ = document.offset;
        }
        end_ = document.offset + document.bytes;
        for (; end_ - begin_ >= window_bytes_; begin_ += window_bytes_) {
            if (auto added = grouper_.add(begin_, window_bytes_); !added) return added;
            if (object_.samples.size() % kSamplesPerProgress != 0) continue;
            if (auto on = progress_(begin_, index_bytes(object_)); !on) return on;
        }
        return {};
    }
    std::uint64_t left_over_bytes() const { return left_over_bytes_ + end_ - begin_; }

private:
    BlockGrouper& grouper_;
    const IndexedObject& object_;
    std::uint64_t window_bytes_;
    const ObjectProgress& progress_;
    std::uint64_t begin_ = 0;  // offset of the next window
    std::uint64_t end_ = 0;    // end of the documents so far
    std::uint64_t left_over_bytes_ = 0;
};

struct Pair {
    std::string bin_path;
    std::string idx_path;
    std::unique_ptr<ObjectReader> bin;
    std::unique_ptr<ObjectReader> idx;
};

Result<Pair> open_pair(ObjectSource& source, const std::string& stem) {
    Pair pair{.bin_path = stem + ".bin", .idx_path = stem + ".idx", .bin = nullptr, .idx = nullptr};
    auto bin = source.open(pair.bin_path);
    if (!bin) return std::unexpected(bin.error());
    auto idx = source.open(pair.idx_path);
    if (!idx) return std::unexpected(idx.error().within("the index of " + pair.bin_path));
    pair.bin = std::move(*bin);
    pair.idx = std::move(*idx);
    return pair;
}

// The result depends on the .idx, so a changed .idx invalidates it. Without a tag of the .idx a change would go
// unnoticed, so the key then has no tag.
JournalKey key_of(const Pair& pair) {
    return {.path = pair.bin_path,
            .size_bytes = pair.bin->size_bytes(),
            .tag = pair.idx->tag() == 0 ? 0 : pair.bin->tag(),
            .depends_on = hash_numbers({pair.idx->size_bytes(), static_cast<std::uint64_t>(pair.idx->tag())})};
}

Result<IndexedObject> index_pair(const Pair& pair, const BlockGoal& goal, std::uint32_t tokens_per_sample,
                                 const ObjectProgress& progress) {
    const std::string& bin_path = pair.bin_path;
    const std::string& idx_path = pair.idx_path;
    IndexedObject object{.path = bin_path, .size_bytes = pair.bin->size_bytes(), .tag = pair.bin->tag()};
    ReportedIndex idx(*pair.idx, object, progress);
    auto index = protocol::MegatronIndex::open(idx, object.size_bytes);
    if (!index) return std::unexpected(index.error().within(idx_path));
    object.shared = std::string(1, static_cast<char>(index->element()));
    BlockGrouper grouper(goal, object);
    Windows windows(grouper, object, std::uint64_t{tokens_per_sample} * size_bytes(index->element()), progress);
    for (;;) {
        const auto document = index->next();
        if (!document) return std::unexpected(document.error().within(idx_path));
        if (!*document) break;
        auto added =
            tokens_per_sample > 0 ? windows.add(**document) : grouper.add((*document)->offset, (*document)->bytes);
        if (!added) return std::unexpected(added.error().within(bin_path));
    }
    if (tokens_per_sample > 0) object.left_over_bytes = windows.left_over_bytes();
    return object;
}

}  // namespace

Result<void> index_megatron(ObjectSource& source, const BlockGoal& goal, std::uint32_t tokens_per_sample,
                            DatasetContent& content, std::vector<std::string>& notes,
                            const IndexProgressCallback& progress, std::stop_token stop, IndexJournal* journal) {
    const auto listing = source.list({}, stop);
    if (!listing) return std::unexpected(listing.error());
    std::vector<std::string> stems;
    std::uint64_t others = 0;
    for (const ObjectListing::Object& object : listing->objects) {
        const std::string_view path = listing->path(object);
        if (path.ends_with(".bin")) {
            stems.emplace_back(path.substr(0, path.size() - 4));
        } else {
            others += !path.ends_with(".idx");
        }
    }
    TokenType type;
    auto objects = index_in_parallel(
        stems.size(),
        [&](std::size_t i, const ObjectProgress& step) -> Result<IndexedObject> {
            const auto pair = open_pair(source, stems[i]);
            if (!pair) return std::unexpected(pair.error());
            auto object = find_or_compute(journal, key_of(*pair),
                                          [&] { return index_pair(*pair, goal, tokens_per_sample, step); });
            if (!object) return object;
            const auto element = static_cast<ElementType>(object->shared.empty() ? 0 : object->shared.front());
            if (auto same = type.check_same(element, pair->idx_path); !same) return std::unexpected(same.error());
            return object;
        },
        progress, std::move(stop));
    if (!objects) return std::unexpected(objects.error());
    notes = listing->notes;
    if (others > 0) notes.push_back("left out " + std::to_string(others) + " file(s) that are neither .bin nor .idx");
    const std::string element(name(type.element()));
    content.format_info = protocol::encode(
        {.columns = {{.name = "tokens", .encoding = "tokens:" + element, .size_bytes = 0, .element = type.element()}},
         .bare = true,
         .tokens_per_sample = tokens_per_sample,
         .structure = {}});
    return append_all(content, std::move(*objects), notes, source.description());
}

}  // namespace larder::cache
