// Goal: task files are read as llm.c and Hugging Face's datasets write them, and what is wrong with one is
// said with its example.
// Method: small files of both forms, and each with one mistake.
#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "runtime/train/tasks/task_file.h"
#include "test/support/child.h"
#include "test/support/task_files.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;
using Catch::Contains;

namespace {

struct TaskRig {
  TemporaryFolder dir;
  std::unique_ptr<data::Tokenizer> bytes = data::open_tokenizer(data::TokenizerChoice::of("bytes"));

  TaskFile read(const std::string& content, int64_t limit = 0, int64_t vocab_size = 257,
                bool tokenizer = true) {
    const std::string path = dir / "task";
    write_file(path, content);
    return read_task_file(real_file_system(), path, tokenizer ? bytes.get() : nullptr, vocab_size, limit);
  }
  std::string refusal(const std::string& content, int64_t vocab_size = 257, bool tokenizer = true) {
    try {
      read(content, 0, vocab_size, tokenizer);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

/// One example: context 1 2, endings (3) and (4 5), the second is right.
const std::vector<uint16_t> kTaskWords = {65535, 26, 0, 1, 2, 2, 1, 2, 1, 3, 2, 4, 5};

}  // namespace

TEST_CASE("a task file of llm.c is read", "[tasks]") {
  TaskRig rig;
  const TaskFile file = rig.read(task_bytes({20240522, 1, 1, 26}, kTaskWords));
  CHECK(file.available == 1);
  CHECK_FALSE(file.is_text);
  REQUIRE(file.examples.size() == 1);
  CHECK(file.examples[0].context == std::vector<int32_t>{1, 2});
  CHECK(file.examples[0].endings == std::vector<std::vector<int32_t>>{{3}, {4, 5}});
  CHECK(file.examples[0].label == 1);
  std::vector<uint16_t> twice = kTaskWords;
  twice.insert(twice.end(), kTaskWords.begin(), kTaskWords.end());
  CHECK(rig.read(task_bytes({20240522, 1, 2, 26}, twice), 1).examples.size() == 1);
}

TEST_CASE("JSON lines are tokenized, endings with a space before them", "[tasks]") {
  TaskRig rig;
  const TaskFile file = rig.read(
      "{\"ctx\": \"ab\", \"endings\": [\"c\", \" d\"], \"label\": \"1\"}\n\n"
      "{\"question\": \"\", \"choices\": [\"x\", \"y\", \"z\"], \"answer\": 2}");
  CHECK(file.is_text);
  CHECK(file.available == 2);
  REQUIRE(file.examples.size() == 2);
  CHECK(rig.bytes->decode(file.examples[0].context) == "ab");
  CHECK(rig.bytes->decode(file.examples[0].endings[0]) == " c");
  CHECK(rig.bytes->decode(file.examples[0].endings[1]) == " d");
  CHECK(file.examples[0].label == 1);
  CHECK(file.examples[1].context.empty());
  CHECK(file.examples[1].label == 2);
}

TEST_CASE("what is wrong with a task file is said", "[tasks]") {
  TaskRig rig;
  const auto with = [&](size_t word, uint16_t value) {
    std::vector<uint16_t> words = kTaskWords;
    words[word] = value;
    return rig.refusal(task_bytes({20240522, 1, 1, 26}, words));
  };
  CHECK_THAT(with(0, 7), Contains("example 1: it begins with 7, not 65535"));
  CHECK_THAT(with(1, 24), Contains("example 1: the example is cut"));
  CHECK_THAT(with(1, 300), Contains("300 bytes are said, 26 are left"));
  CHECK_THAT(with(3, 2), Contains("label 2 is none of its 2 endings, which count from 0"));
  CHECK_THAT(with(9, 300),
             Contains("token 300, but the model has 257; the file was made with another tokenizer"));
  CHECK_THAT(rig.refusal(task_bytes({20240522, 2, 1, 26}, kTaskWords)), Contains("version 2"));
  CHECK_THAT(rig.refusal(task_bytes({20240522, 1, 2, 26}, kTaskWords)),
             Contains("example 2: the example is cut"));
  CHECK_THAT(rig.refusal(std::string("\x8a\xd8\x34\x01", 4)), Contains("4 bytes are no header of 1024"));
  CHECK_THAT(rig.refusal("ctx,endings\n"),
             Contains("example 1: no JSON object; task files are llm.c's .bin"));
  CHECK_THAT(rig.refusal("\n"), Contains("it has no example"));
  CHECK_THAT(rig.refusal(R"({"endings": ["a", "b"], "label": 0})"), Contains("no text under `context`"));
  CHECK_THAT(rig.refusal(R"({"ctx": "", "endings": ["a"], "label": 0})"), Contains("1 endings"));
  CHECK_THAT(rig.refusal(R"({"ctx": "", "endings": ["a", 1], "label": 0})"),
             Contains("an ending that is no text: 1"));
  CHECK_THAT(rig.refusal(R"({"ctx": "", "endings": ["a", "b"], "label": "x"})"),
             Contains("no number under `label`"));
  CHECK_THAT(rig.refusal(R"({"ctx": "é", "endings": ["a", "b"], "label": 0})", 100),
             Contains("token 195, but the model has 100"));
  CHECK_THAT(rig.refusal(R"({"ctx": "", "endings": ["a", "b"], "label": 0})", 257, false),
             Contains("give --tokenizer FILE"));
  CHECK_THROWS_WITH(read_task_file(real_file_system(), rig.dir / "none", nullptr, 9, 0),
                    Contains("there is no task file"));
}
