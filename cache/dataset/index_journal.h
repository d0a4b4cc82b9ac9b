#pragma once

// What an indexing has found so far, in a file beside the manifest it is going to be: an add or index that is stopped,
// by a signal, a crash or a lost network, goes on from there when it is asked for again. Each object's result is kept
// as soon as it is there, and counts only for the object it was made from: same size, same tag, asked for in the same
// way. A journal is a convenience: without one, or with one that cannot be written, everything is indexed anew.
//
// The file is made with the first result and stays until somebody removes it, once the manifest is in use. Any thread;
// one journal a file.

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cache/dataset/index_journal_record.h"

namespace larder::cache {

// "…/manifest-3.journal" of "…/manifest-3".
std::string journal_path(std::string_view manifest_path);

class IndexJournal {
public:
    // `what` names all that results depend on besides the objects: where they lie, the format, the goal. A file of
    // another is removed.
    static Result<std::unique_ptr<IndexJournal>> open(std::string path, std::string_view what);

    std::optional<IndexedObject> find(const JournalKey& key);
    void add(const JournalKey& key, const IndexedObject& object);

    // How many objects were found in it, with either kind of result.
    std::uint64_t found(JournalKind kind) const { return kind == JournalKind::index ? indexes_ : checksums_; }
    // Why it is not written any more.
    std::optional<Error> failure() const;

private:
    struct Entry {
        std::uint64_t hash = 0;
        std::uint64_t offset = 0;
    };

    IndexJournal(std::string path, std::uint64_t what) : path_(std::move(path)), what_(what) {}
    Result<void> load();
    Result<void> make_file();

    std::string path_;
    std::uint64_t what_;
    Mapping old_;  // of before it was opened
    std::vector<Entry> entries_;
    std::atomic<std::uint64_t> indexes_{0};
    std::atomic<std::uint64_t> checksums_{0};

    mutable std::mutex mutex_;  // over what follows
    FileDescriptor file_;
    std::optional<Error> failure_;
};

// The result of before, or that of `work`, which is then kept. `journal` may be null; an object without a tag is
// always worked on, as nothing would say that it changed.
Result<IndexedObject> journaled(IndexJournal* journal, const JournalKey& key,
                                const std::function<Result<IndexedObject>()>& work);

// For JournalKey::depends_on.
std::uint64_t hash_numbers(std::initializer_list<std::uint64_t> numbers);

}  // namespace larder::cache
