// Goal: tokenize loses no text; whatever fails, no half-written file stays; inspect and verify find what is
// there and what is wrong.
// Method: text there and back through files.
#include <map>

#include "data/inspect.h"
#include "data/tokenize/encode_block.h"
#include "data/tokenize/tokenize.h"
#include "data/tokenizer.h"
#include "runtime/base/file_system.h"
#include "test/data/token_fixtures.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;

namespace {

std::string decoded(const std::string& path, const TokenizerChoice& tokenizer = TokenizerChoice::bytes()) {
  const auto source = open_source({.path = path});
  std::vector<int32_t> ids(source->token_count());
  source->read(0, ids);
  return open_tokenizer(tokenizer)->decode(ids);
}

std::string lines(int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text += "line " + std::to_string(i) + " of a text\n";
  return text;
}

}  // namespace

TEST_CASE("text files become tokens with a sidecar, and verify agrees", "[tokenize]") {
  TemporaryFolder folder;
  write_bytes(folder / "a.txt", "first text\n");
  write_bytes(folder / "b.txt", "");
  write_bytes(folder / "c.txt", "second\xff");
  for (const Format format : {Format::megatron, Format::llmc}) {
    const auto result = tokenize({.inputs = {folder / "a.txt", folder / "b.txt", folder / "c.txt"}, .out = folder / "new/train", .to = format,
                                  .force = true});
    REQUIRE(result.parts.size() == 1);
    CHECK(result.empty_documents == 1);
    CHECK(decoded(folder / "new/train") == "first text\nsecond\xff");
    const auto sidecar = read_sidecar(folder / "new/train.bin");
    REQUIRE(sidecar);
    CHECK(sidecar->tokenizer.is_bytes());
    CHECK(sidecar->vocab_size == 257);
    CHECK(sidecar->end_of_text == 256);
    CHECK(sidecar->documents == 2);
    CHECK(sidecar->tokens == 11 + 7 + 2);
    CHECK(sidecar->text_bytes == 18);
    const auto verified = verify({.path = folder / "new/train"}, 0);
    CHECK(verified.vocab_size == 257);
    CHECK(verified.largest_id == 256);
    const auto seen = inspect({.path = folder / "new/train"}, {});
    CHECK(seen.first_documents.at(0).substr(0, 10) == "first text");
    CHECK(seen.warnings.empty());
  }
}

TEST_CASE("JSON lines are documents; their mistakes are located", "[tokenize]") {
  TemporaryFolder folder;
  const std::string path = folder / "a.jsonl";
  const auto run = [&](const std::string& text, const std::string& key = "text") {
    write_bytes(path, text);
    return tokenize({.inputs = {path},
                     .out = folder / "t",
                     .text_key = key,
                     .force = true,
                     .kept_after_s = kKeepsNothing});
  };
  const auto result = run("{\"text\":\"one\\n\",\"id\":1}\n\n{\"text\":\"\"}\r\n{\"text\":\"two\"}");
  CHECK(result.parts[0].sidecar.documents == 2);
  CHECK(result.empty_documents == 1);
  CHECK(decoded(folder / "t") == "one\ntwo");
  CHECK(run("{\"body\":\"b\"}\n", "body").parts[0].sidecar.documents == 1);
  CHECK_THAT(data_error([&] { run("{\"text\":\"a\"}\n{\"body\":\"b\",\"n\":1}\n"); }),
             Contains("a.jsonl, line 2: no string under \"text\" (keys: body, n)"));
  CHECK_THAT(data_error([&] { run("{\"text\":\"a\"}\n{\"text\":\n"); }), Contains("a.jsonl, line 2: no JSON object"));
  CHECK_THAT(data_error([&] { run("{\"text\":\"\xff\"}\n"); }), Contains("line 1"));
  CHECK_THAT(data_error([&] { run("{\"text\":\"\"}\n"); }), Contains("would hold no documents"));
  CHECK_THAT(data_error([&] { run(""); }), Contains("holds no text"));
  CHECK_THAT(data_error([&] { tokenize({.inputs = {folder / "no.txt"}, .out = folder / "u"}); }), Contains("no.txt"));
  CHECK_THAT(data_error([&] { tokenize({.inputs = {folder / "a.jsonl.xz"}, .out = folder / "u"}); }), Contains("compressed or binary"));
  CHECK_THAT(data_error([&] { tokenize({.inputs = {path}, .out = folder.path() + "/"}); }), Contains("names a folder"));
  // None of the failures touched what the last success wrote, nor left anything else.
  CHECK(decoded(folder / "t") == "b");
  CHECK(real_file_system().list(folder.path()) == std::vector<std::string>{"a.jsonl", "t.bin", "t.idx", "t.json"});
}

TEST_CASE("a text that the tokenizer cannot take is named by its place, and left out with --skip-bad",
          "[tokenize]") {
  struct Picky final : Tokenizer {
    std::string name() const override { return "picky"; }
    int64_t vocab_size() const override { return 257; }
    int32_t end_of_text() const override { return 256; }
    std::string end_of_text_name() const override { return ""; }
    bool encodes_in_parts() const override { return true; }
    std::string decode(std::span<const int32_t>) const override { return ""; }
    std::vector<int32_t> encode(std::string_view text) const override {
      if (text.find("bad") != text.npos) throw Error(ErrorCode::kData, "limit of the pattern");
      return {text.begin(), text.end()};
    }
  };
  const Picky tokenizer;
  const auto encoder = tokenizer.encoder();
  CorpusOptions options;
  Block block{.path = std::make_shared<const std::string>("a.jsonl"),
              .bytes = "{\"text\":\"one\"}\n{\"text\":\"" + std::string(kEncodedAtOnce, 'x') +
                       " bad\"}\n{\"text\":\"two\"}\n"};
  CHECK_THAT(data_error([&] { encode_block(tokenizer, *encoder, block, options); }),
             Contains("a.jsonl, line 2: limit of the pattern"));
  options.skip_bad = true;
  const EncodedBlock encoded = encode_block(tokenizer, *encoder, block, options);
  CHECK(encoded.ids == std::vector<int32_t>{'o', 'n', 'e', 256, 't', 'w', 'o', 256});
  CHECK(encoded.texts.size() == 2);
  REQUIRE(encoded.left_out.size() == 1);
  CHECK(encoded.left_out[0].why == "limit of the pattern");
}

TEST_CASE("bytes that are no text are named once a file, and tokenized as they are", "[tokenize]") {
  TemporaryFolder folder;
  std::string utf16 = "\xff\xfe", bare;
  for (const char c : std::string("English text in UTF-16, of some length.")) {
    utf16 += {c, '\0'};
    bare += {c, '\0'};
  }
  const std::string many = lines(200);
  const std::vector<std::tuple<std::string, std::string, std::string>> files{
      {"good.txt", "Größe 你好\n", ""},
      {"latin1.txt", many + "Gr\xf6\xdf" "e\n" + many, "is not UTF-8 (bytes that belong to no character: 2, the first is byte " +
                                                          std::to_string(many.size() + 2)},
      {"utf16.txt", utf16, "is UTF-16 (it begins with its byte order mark)"},
      {"bare.txt", bare, "is UTF-16 or UTF-32 (bytes that are 0: 39, the first is byte 1)"},
      {"binary.txt", std::string("\x7f" "ELF\x02\x01\x01\0\0\xff\xfe", 11) + many, "is binary (bytes that are 0: 2, the first is byte 7)"}};
  TokenizeOptions options{.out = folder / "t", .separator = "line 3 of a text", .threads = 2, .force = true, .block_bytes = 100};
  std::string all;
  for (const auto& [name, text, warning] : files) {
    write_bytes(folder / name, text);
    options.inputs.push_back(folder / name);
    all += text;
  }
  std::vector<std::string> notes;
  options.note = [&](const std::string& note) { notes.push_back(note); };
  const auto result = tokenize(options);
  for (size_t at; (at = all.find("line 3 of a text\n")) != all.npos;) all.erase(at, 17);
  CHECK(decoded(folder / "t") == all);
  CHECK(result.faulty_files == 4);
  REQUIRE(result.warnings.size() == 4);
  CHECK(notes.empty());  // the result has them
  for (size_t i = 1; i < files.size(); ++i) {
    const auto& [name, text, warning] = files[i];
    CHECK(result.warnings[i - 1].path == folder / name);
    CHECK_THAT(result.warnings[i - 1].text, Contains(warning));
  }
}

TEST_CASE("a split loses nothing and keeps its share", "[tokenize]") {
  TemporaryFolder folder;
  const std::string text = lines(2000);
  write_bytes(folder / "a.txt", text);
  tokenize({.inputs = {folder / "a.txt"}, .out = folder / "t", .train_share = 99, .val_share = 1});
  const std::string train = decoded(folder / "t"), val = decoded(folder / "t-val");
  CHECK(train + val == text);
  CHECK(train.back() == '\n');
  CHECK(double(val.size()) / double(text.size()) == Approx(0.01).margin(0.002));

  // Of as many files as there are shares, whole ones are held out.
  std::vector<std::string> files;
  for (int i = 0; i < 8; ++i) {
    files.push_back(folder / fmt::format("{}.txt", i));
    write_bytes(files.back(), fmt::format("{}\n", i));
  }
  const auto whole = tokenize({.inputs = files, .out = folder / "w", .train_share = 3, .val_share = 1});
  CHECK(decoded(folder / "w") == "0\n1\n2\n4\n5\n6\n");
  CHECK(decoded(folder / "w-val") == "3\n7\n");
  CHECK(whole.parts[1].sidecar.documents == 2);

  std::string json;
  for (int i = 0; i < 1000; ++i) json += "{\"text\":\"" + std::to_string(i) + ",\"}\n";
  write_bytes(folder / "a.jsonl", json);
  const auto result = tokenize({.inputs = {folder / "a.jsonl"}, .out = folder / "j", .train_share = 97, .val_share = 3});
  CHECK(result.parts[0].sidecar.documents == 970);
  CHECK(result.parts[1].sidecar.documents == 30);
  write_bytes(folder / "a.jsonl", "{\"text\":\"a\"}\n");
  CHECK_THAT(data_error([&] {
               tokenize({.inputs = {folder / "a.jsonl"}, .out = folder / "k", .train_share = 99, .val_share = 1});
             }),
             Contains("k-val would hold no documents with a split of 99:1"));
}

TEST_CASE("a tokenizer trained on the way is found again from the sidecar, also after a move", "[tokenize]") {
  TemporaryFolder folder;
  const std::string text = lines(3000);
  write_bytes(folder / "a.txt", text);
  real_file_system().make_directory(folder / "set");
  const auto result = tokenize({.inputs = {folder / "a.txt"}, .out = folder / "set/t", .train_vocab = 350});
  CHECK(result.tokenizer == TokenizerChoice::file(folder / "set/tokenizer.model"));
  CHECK(decoded(folder / "set/t", result.tokenizer) == text);
  real_file_system().rename(folder / "set", folder / "moved");
  const auto seen = inspect({.path = folder / "moved/t"}, {});
  CHECK(seen.warnings.empty());
  REQUIRE(seen.first_documents.size() == 1);
  CHECK_THAT(seen.first_documents[0], Contains("line 0 of a text\nline 1"));
  CHECK(seen.sidecar->tokenizer == TokenizerChoice::file("tokenizer.model"));
  real_file_system().remove_file(folder / "moved/tokenizer.model");
  const auto without = inspect({.path = folder / "moved/t"}, {});
  CHECK(without.first_documents.empty());
  REQUIRE(without.warnings.size() == 1);
  CHECK_THAT(without.warnings[0], Contains("is not there"));
}

TEST_CASE("the trained tokenizer does not get the name of a file of tokens", "[tokenize]") {
  TemporaryFolder folder;
  write_bytes(folder / "a.txt", lines(3000));
  for (const char* name : {"t.json", "t-val.json", "sub/../t.json"})
    for (const bool force : {false, true}) {
      const TokenizeOptions options{.inputs = {folder / "a.txt"},
                                    .out = folder / "t",
                                    .train_vocab = 350,
                                    .train_kind = TrainedKind::bpe,
                                    .tokenizer_out = folder / name,
                                    .train_share = 9,
                                    .val_share = 1,
                                    .force = force};
      INFO(name);
      CHECK_THAT(usage_error([&] { tokenize(options); }), Contains("choose another name for the tokenizer"));
      CHECK(real_file_system().list(folder.path()) == std::vector<std::string>{"a.txt"});
    }
}

TEST_CASE("an existing token set or tokenizer is replaced only by force", "[tokenize]") {
  TemporaryFolder folder;
  write_bytes(folder / "a.txt", lines(3000));
  write_bytes(folder / "b.txt", lines(4000));
  const TokenizeOptions first{.inputs = {folder / "a.txt"}, .out = folder / "t", .train_vocab = 350, .train_share = 9, .val_share = 1};
  tokenize(first);
  const auto state = [&] {
    std::map<std::string, std::string> files;
    for (const std::string& name : real_file_system().list(folder.path())) files[name] = read_bytes(folder / name);
    return files;
  };
  const auto before = state();
  REQUIRE(before.count("t-val.idx") == 1);
  const auto refused = [&](TokenizeOptions options) {
    options.inputs = {folder / "b.txt"};
    try {
      tokenize(options);
    } catch (const Error& e) {
      CHECK(e.code() == ErrorCode::kUsage);
      CHECK_THAT(e.what(), Contains("--force"));
      return std::string(e.what());
    }
    return std::string("not refused");
  };
  const std::string all = refused(first);
  CHECK_THAT(all, Contains("t (") && Contains("t-val (") && Contains("tokens of tokenizer tokenizer.model") &&
                      Contains("tokenizer.model (a tokenizer) exist already; choose another --out or --tokenizer-out"));
  CHECK_THAT(refused({.out = folder / "t"}), Contains(" exists already; choose another --out, or replace it"));
  CHECK_THAT(refused({.out = folder / "new", .train_vocab = 300}), Contains("tokenizer.model (a tokenizer) exists already"));
  CHECK_THAT(refused({.out = folder / "t", .to = Format::llmc}), Contains("t ("));
  CHECK(state() == before);

  // A forced one that fails keeps what was there; one that succeeds replaces all of it.
  std::string words = lines(3000);
  std::replace(words.begin(), words.end(), '\n', ' ');
  write_bytes(folder / "one.jsonl", R"({"text": ")" + words + R"("})");  // gives the other part nothing
  TokenizeOptions forced = first;
  forced.force = true;
  forced.kept_after_s = kKeepsNothing;
  forced.inputs = {folder / "one.jsonl"};
  forced.train_vocab = 340;
  CHECK_THAT(data_error([&] { tokenize(forced); }), Contains("t-val would hold no documents"));
  real_file_system().remove_file(folder / "one.jsonl");
  CHECK(state() == before);
  forced.inputs = {folder / "b.txt"};
  tokenize(forced);
  const auto model = TokenizerChoice::file(folder / "tokenizer.model");
  CHECK(decoded(folder / "t", model) + decoded(folder / "t-val", model) == lines(4000));
}

TEST_CASE("verify finds every foreign id and every change", "[tokenize]") {
  TemporaryFolder folder;
  write_bytes(folder / "a.txt", lines(20000));
  tokenize({.inputs = {folder / "a.txt"}, .out = folder / "t"});
  std::string bin = read_bytes(folder / "t.bin");
  CHECK_THAT(data_error([&] { verify({.path = folder / "t"}, 200); }), Contains("token id 256 is outside the vocabulary of 200"));
  bin[2 * 200'000 + 1] = 2;
  write_bytes(folder / "t.bin", bin);
  CHECK_THAT(data_error([&] { verify({.path = folder / "t"}, 0); }), Contains("has changed since"));
  CHECK_FALSE(inspect({.path = folder / "t"}, {}).warnings.empty());
  real_file_system().remove_file(folder / "t.json");
  CHECK_THAT(data_error([&] { verify({.path = folder / "t"}, 257); }), Contains("t.bin, token 200000 (byte 400000): token id 632"));
  CHECK(verify({.path = folder / "t"}, 0).vocab_size == 0);
  const std::string hash = verify({.path = folder / "t"}, 0).hash;
  bin[2 * 200'000 + 1] = 0;
  write_bytes(folder / "t.bin", bin);
  CHECK(verify({.path = folder / "t"}, 0).hash != hash);
}
