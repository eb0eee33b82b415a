// Runs a cleaning: threads examine the records of blocks, one thread decides about them in order.
#pragma once
#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/clean/cleaning_output.h"
#include "data/corpus/corpus_reader.h"
#include "data/corpus/json_line.h"
#include "data/ordered_work.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl::data {

/// Memory of a cleaning next to what its decisions need: text under way, and what was found out about it.
/// Records above a MiB need their size three times more for each thread.
inline uint64_t cleaning_memory(int threads) { return (uint64_t(80) + 24 * uint64_t(threads)) << 20; }

/// The records of a block, with what a worker has found out about each.
template <class Facts>
struct ExaminedBlock {
  struct Record {
    size_t begin = 0, end = 0;  ///< the line, in block.bytes of JSON lines, else in `lines`
    uint64_t number = 0, offset = 0, text_bytes = 0;
    bool is_replaced = false;
    Facts facts;
  };
  Block block;
  std::string lines;
  std::vector<Record> records;
  std::vector<LeftOut> left_out;
  uint64_t empty_documents = 0;
};

/// Examines the documents of one block.
template <class Facts>
ExaminedBlock<Facts> examine_block(Block&& taken, const CorpusOptions& corpus,
                                   const std::function<Facts(std::string_view text)>& examine) {
  ExaminedBlock<Facts> result;
  result.block = std::move(taken);
  result.left_out = std::move(result.block.left_out);
  BlockDocuments documents(result.block, corpus);
  for (Document document; documents.next(document);) {
    typename ExaminedBlock<Facts>::Record record{.number = document.number,
                                                 .offset = document.offset,
                                                 .text_bytes = document.text.size(),
                                                 .facts = examine(document.text)};
    if (result.block.kind == Block::Kind::json_lines) {
      record.begin = size_t(document.line.data() - result.block.bytes.data());
      record.end = record.begin + document.line.size();
    } else {
      record.is_replaced = !is_utf8(document.text);
      record.begin = result.lines.size();
      result.lines += "{\"text\":" + json_string(std::string(document.text)) + "}";
      record.end = result.lines.size();
    }
    result.records.push_back(std::move(record));
  }
  result.empty_documents = documents.empty_documents();
  result.left_out.insert(result.left_out.end(), documents.left_out().begin(), documents.left_out().end());
  return result;
}

/// Reads the corpus, examines each record in one of several threads, lets `decide` keep it (nullopt) or
/// remove it, in the order of the corpus, and writes both down. On an error nothing is written under
/// options.out.
///
///   make_examiner   called once for each thread
///   decide          called in the calling thread
///
/// Errors: those of the reader (of several bad records that of the first) and of OutputFolder; Error(kIo).
template <class Facts>
CleaningResult clean_corpus(
    const CleaningOptions& options, std::vector<std::string> reasons, const char* doing,
    const std::function<std::function<Facts(std::string_view text)>()>& make_examiner,
    const std::function<std::optional<Removal>(const Facts& facts, const CleanedRecord& record)>& decide) {
  constexpr uint64_t kTextOfThread = uint64_t(4) << 20, kLeastText = uint64_t(16) << 20;
  const double start_s = real_clock().monotonic_s();
  const int threads = thread_count(options.threads);
  const uint64_t most_text = std::max(kLeastText, kTextOfThread * uint64_t(threads));
  FileSystem& fs = options.file_system != nullptr ? *options.file_system : real_file_system();
  const CorpusOptions& corpus = options.corpus;
  BlockReader reader(fs, corpus);
  CleaningOutput output(options, std::move(reasons));
  uint64_t text_under_way = 0, text_bytes = 0;
  std::deque<uint64_t> sizes;  // of the blocks under way
  OrderedWork<Block, ExaminedBlock<Facts>> work(threads, [&] {
    return [&corpus, examine = make_examiner()](Block& block) {
      return examine_block<Facts>(std::move(block), corpus, examine);
    };
  });
  const auto write_oldest = [&] {
    const ExaminedBlock<Facts> done = work.take();
    text_under_way -= sizes.front();
    sizes.pop_front();
    const bool is_json = done.block.kind == Block::Kind::json_lines;
    const std::string_view lines = is_json ? done.block.bytes : done.lines;
    const char* const unit = is_json ? "line" : done.block.kind == Block::Kind::rows ? "row" : "document";
    for (const LeftOut& record : done.left_out) output.leave_out(record);
    for (const auto& found : done.records) {
      const CleanedRecord record{.file = uint32_t(done.block.begin.file),
                                 .unit = unit,
                                 .number = found.number,
                                 .offset = found.offset,
                                 .line = lines.substr(found.begin, found.end - found.begin),
                                 .text_bytes = found.text_bytes,
                                 .is_replaced = found.is_replaced};
      if (const std::optional<Removal> why = decide(found.facts, record))
        output.remove(record, *why);
      else
        output.keep(record);
      text_bytes += found.text_bytes;
    }
    output.count_empty(done.empty_documents);
    if (options.progress)
      options.progress({doing, done.block.stored_bytes, reader.stored_bytes(), text_bytes});
  };
  std::exception_ptr read_error;
  const auto read = [&](Block& block) {
    try {
      return reader.next(block);
    } catch (const Error&) {  // a block before it may have an error that comes first
      read_error = std::current_exception();
      return false;
    }
  };
  for (Block block; read(block);) {
    while (!work.is_empty() && (work.is_full() || text_under_way + block.bytes.size() > most_text))
      write_oldest();
    sizes.push_back(block.bytes.size());
    text_under_way += block.bytes.size();
    work.submit(std::move(block));
  }
  while (!work.is_empty()) write_oldest();
  if (read_error) std::rethrow_exception(read_error);
  CleaningResult result = output.publish();
  result.seconds = real_clock().monotonic_s() - start_s;
  return result;
}

}  // namespace trainctl::data
