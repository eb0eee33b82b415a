// Goal: the writer makes exactly the documented bytes, also when it goes on with files that another has
// left.
// Method: the golden Megatron and llm.c files; writers that stop and go on after every document and inside
// of one.
#include "data/tokenize/token_writer.h"
#include "test/data/token_fixtures.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;

namespace {

void write_golden(FileSystem& fs, const std::string& prefix, Format format) {
  TokenWriter writer(fs, {.prefix = prefix, .format = format, .vocab_size = 1000});
  const std::vector<int32_t> ids{1, 2, 3, 4, 5, 6, 7, 8, 9};
  writer.add(std::span(ids).first(3));
  writer.end_document();
  writer.add(std::span(ids).subspan(3));
  writer.end_document();
  writer.complete();
}

}  // namespace

TEST_CASE("the writer produces the bytes of the formats", "[tokenize]") {
  TemporaryFolder folder("test", "/dev/shm");  // syncs often
  write_golden(real_file_system(), folder / "a", Format::megatron);
  // One sequence per document, so pointers and lengths differ from the golden pair with its two-sequence
  // document.
  CHECK(read_bytes(folder / "a.bin") == golden_bin());
  CHECK(read_bytes(folder / "a.idx") ==
        unhex("4d4d49444944580000 0100000000000000 08 0200000000000000 0300000000000000"
              "03000000 06000000 0000000000000000 0600000000000000"
              "0000000000000000 0100000000000000 0200000000000000"));
  for (const auto& [vocab, ids, golden] :
       {std::tuple{int64_t(50257), std::vector<int32_t>{50256, 1, 2, 3}, unhex("88d83401 01000000 04000000")},
        std::tuple{int64_t(128256), std::vector<int32_t>{128000, 1, 2, 3},
                   unhex("a1d93401 07000000 04000000")}}) {
    TokenWriter writer(
        real_file_system(),
        {.prefix = folder / ("l" + std::to_string(vocab)), .format = Format::llmc, .vocab_size = vocab});
    writer.add(ids);
    writer.end_document();
    writer.complete();
    std::string expected = golden;
    expected.resize(1024, '\0');
    for (const int32_t id : ids) vocab > 65536 ? append(expected, id) : append(expected, uint16_t(id));
    CHECK(read_bytes(folder / ("l" + std::to_string(vocab) + ".bin")) == expected);
  }
}

TEST_CASE("tokens are as wide as the vocabulary needs", "[tokenize]") {
  TemporaryFolder folder("test", "/dev/shm");  // syncs often
  for (const auto& [format, vocab, width] :
       {std::tuple{Format::megatron, int64_t(65499), 2}, std::tuple{Format::megatron, int64_t(65500), 4},
        std::tuple{Format::llmc, int64_t(65536), 2}, std::tuple{Format::llmc, int64_t(65537), 4}}) {
    TokenWriter writer(
        real_file_system(),
        {.prefix = folder / ("w" + std::to_string(vocab)), .format = format, .vocab_size = vocab});
    std::vector<int32_t> ids{int32_t(vocab - 1), 0, 1};
    writer.add(ids);
    writer.end_document();
    writer.complete();
    const auto source = open_source({.path = folder / ("w" + std::to_string(vocab))});
    CHECK(source->format_name() == std::string(format == Format::megatron ? "megatron" : "llmc"));
    CHECK(source->token_bytes() == width);
    std::vector<int32_t> back(3);
    source->read(0, back);
    CHECK(back == ids);
  }
}

TEST_CASE("a writer goes on from any state of one before", "[tokenize]") {
  TemporaryFolder folder("test", "/dev/shm");  // syncs often
  auto& fs = real_file_system();
  std::vector<int32_t> ids(1000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i);
  const auto put = [&](TokenWriter& writer, int piece) {  // a third of a document
    writer.add(std::span(ids).subspan(size_t(piece) * 7, size_t(piece) + 1));
    writer.count_text(5);
    if (piece % 3 == 2) writer.end_document();
  };
  for (const Format format : {Format::megatron, Format::llmc}) {
    const auto options = [&](const std::string& name) {
      return WriterOptions{
          .prefix = folder / (name + std::to_string(int(format))), .format = format, .vocab_size = 1000};
    };
    TokenWriter whole(fs, options("whole"));
    for (int piece = 0; piece < 30; ++piece) put(whole, piece);
    whole.complete();
    for (int stop = 0; stop <= 30; ++stop) {
      CAPTURE(stop, int(format));
      const WriterOptions again = options("s" + std::to_string(stop) + "-");
      WriterState state;
      {
        TokenWriter writer(fs, again);
        for (int piece = 0; piece < stop; ++piece) put(writer, piece);
        writer.sync();
        state = writer.state();
        for (int piece = stop; piece < std::min(stop + 4, 30); ++piece)
          put(writer, piece);  // lost, but written
        writer.sync();
      }
      TokenWriter writer(fs, again, state);
      CHECK(writer.state() == state);
      for (int piece = stop; piece < 30; ++piece) put(writer, piece);
      CHECK(writer.state() == whole.state());
      writer.complete();
      for (const std::string& ending : TokenWriter::endings(format))
        CHECK(read_bytes(again.prefix + ending) == read_bytes(options("whole").prefix + ending));
    }
    WriterState too_far = whole.state();
    too_far.tokens += 1;
    CHECK_THAT(data_error([&] { TokenWriter(fs, options("whole"), too_far); }), Contains("it was changed"));
  }
}
