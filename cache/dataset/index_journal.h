#pragma once

// The journal keeps the results of an indexing run in a file beside the future manifest. If a signal, a crash or a lost
// network ends the indexing, the next run resumes from the journal. The result of each object is appended at once.
// A result is reused only for the same object (same path, size and tag) and the same request. Journals are optional: if
// there is none, or if the file cannot be written, all objects are indexed again.
//
// The file is created with the first result. The caller removes it once the manifest is in use. `find` and `add` may be
// called from any thread; a file has one IndexJournal at a time.

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

// Returns "…/manifest-3.journal" for "…/manifest-3".
std::string journal_path(std::string_view manifest_path);

class IndexJournal {
public:
    // `what` describes everything that results depend on besides the objects: the place, the format, the block goal. A
    // file with another `what` is removed.
    static Result<std::unique_ptr<IndexJournal>> open(std::string path, std::string_view what);

    std::optional<IndexedObject> find(const JournalKey& key);
    void add(const JournalKey& key, const IndexedObject& object);

    // The number of finds so far that returned a result of `kind`.
    std::uint64_t found(JournalKind kind) const { return kind == JournalKind::index ? indexes_ : checksums_; }
    // The error that ended writing, if any.
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
    Mapping old_;  // the records of earlier runs
    std::vector<Entry> entries_;
    std::atomic<std::uint64_t> indexes_{0};
    std::atomic<std::uint64_t> checksums_{0};

    mutable std::mutex mutex_;  // guards the members below
    FileDescriptor file_;
    std::optional<Error> failure_;
};

// Returns the journal's result for `key`; else calls `work` and adds its result to the journal. `journal` may be null.
// An object without a tag is always indexed again, because a change would go unnoticed.
Result<IndexedObject> find_or_compute(IndexJournal* journal, const JournalKey& key,
                                      const std::function<Result<IndexedObject>()>& work);

// A hash for JournalKey::depends_on.
std::uint64_t hash_numbers(std::initializer_list<std::uint64_t> numbers);

}  // namespace larder::cache
