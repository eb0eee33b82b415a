// Goal: TensorBoard and Prometheus read what a run writes for them. Method: records with the bytes that
// protoc's messages have (TensorFlow's event.proto), decoded again by a reader of the test's own for lines
// with all numbers; a run that goes back to a checkpoint begins a new file with the step it goes on with; a
// folder that is gone costs the curves, not the run; the Prometheus page line by line against the text format
// 0.0.4.
#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "runtime/base/file_system.h"
#include "runtime/run/views/event_file.h"
#include "runtime/run/views/prometheus.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::event_file;

namespace {

std::string hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", uint8_t(c));
  return out;
}
double seconds_of(uint64_t bits) { return std::bit_cast<double>(bits); }

/// What a reader of the format finds in a file: "version", "start 5", "scalar 5 loss/train 2.5".
class Reader {
 public:
  explicit Reader(std::string bytes) : bytes_(std::move(bytes)) {}
  std::vector<std::string> read() {
    while (at_ < bytes_.size()) record();
    return std::move(found_);
  }

 private:
  template <typename Number>
  static Number fixed(std::string_view from, size_t at) {
    REQUIRE(at + sizeof(Number) <= from.size());
    Number n;
    std::memcpy(&n, from.data() + at, sizeof n);
    return n;
  }
  static uint32_t masked(std::string_view bytes) {
    const uint32_t crc = crc32c(bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
  }
  void record() {
    const auto size = fixed<uint64_t>(bytes_, at_);
    REQUIRE(fixed<uint32_t>(bytes_, at_ + 8) == masked(std::string_view(bytes_).substr(at_, 8)));
    const std::string_view event = std::string_view(bytes_).substr(at_ + 12, size);
    REQUIRE(fixed<uint32_t>(bytes_, at_ + 12 + size) == masked(event));
    at_ += 16 + size;
    step_ = 0;
    fields(event, [&](int field, uint64_t number, std::string_view text) { of_event(field, number, text); });
  }
  /// Calls each(field, number or its bits, text).
  template <typename Each>
  static void fields(std::string_view message, Each each) {
    const auto varint = [&] {
      uint64_t value = 0;
      for (int shift = 0;; shift += 7) {
        REQUIRE(!message.empty());
        const auto byte = uint8_t(message.front());
        message.remove_prefix(1);
        value |= uint64_t(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
      }
    };
    while (!message.empty()) {
      const uint64_t key = varint();
      uint64_t number = 0;
      std::string_view text;
      switch (key & 7) {
        case 0: number = varint(); break;
        case 1: number = fixed<uint64_t>(message, 0), message.remove_prefix(8); break;
        case 5: number = fixed<uint32_t>(message, 0), message.remove_prefix(4); break;
        case 2: {
          const size_t size = varint();
          REQUIRE(size <= message.size());
          text = message.substr(0, size);
          message.remove_prefix(size);
          break;
        }
        default: FAIL("wire type " << (key & 7));
      }
      each(int(key >> 3), number, text);
    }
  }
  void of_event(int field, uint64_t number, std::string_view text) {
    if (field == 1) CHECK(seconds_of(number) > 1e9);
    if (field == 2) step_ = int64_t(number);
    if (field == 3) found_.push_back("version " + std::string(text));
    if (field == 7) fields(text, [&](int, uint64_t status, auto) {
      CHECK(status == 1);
      found_.push_back(fmt::format("start {}", step_));
    });
    if (field == 5) fields(text, [&](int, uint64_t, std::string_view value) {
      std::string tag;
      float scalar = 0;
      fields(value, [&](int f, uint64_t bits, std::string_view t) {
        if (f == 1) tag = t;
        if (f == 2) scalar = std::bit_cast<float>(uint32_t(bits));
      });
      found_.push_back(fmt::format("{} {} {}", step_, tag, scalar));
    });
  }

  const std::string bytes_;
  size_t at_ = 0;
  int64_t step_ = 0;
  std::vector<std::string> found_;
};

std::string text_in(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> found;
  for (const std::string& name : real_file_system().list(folder))
    if (name.starts_with("events.out.tfevents.")) found.push_back(folder + "/" + name);
  return found;
}

StepLine line_of(int64_t step, double loss) {
  StepLine line;
  line.step = step;
  line.tokens = 100 * step;
  line.loss = loss;
  line.grad_norm = 0.5;
  line.lr = 0.25;
  return line;
}

}  // namespace

TEST_CASE("records of event files have the bytes of TensorFlow's") {
  CHECK(crc32c("123456789") == 0xE3069283u);
  CHECK(hex(version_record(seconds_of(0x41d954fc40000000))) ==
        "1800000000000000a37f4b220900000040fc54d9411a0d627261696e2e4576656e743a32eced8f9d");
  const Scalar loss{"train/loss", 2.5};
  CHECK(hex(scalars_record(seconds_of(0x41d954fc40400000), 100, {&loss, 1})) ==
        "200000000000000029eda9500900004040fc54d94110642a130a110a0a747261696e2f6c6f7373150000204"
        "07fc0c6fd");
  CHECK(hex(start_record(seconds_of(0x41d954fc40800000), 100)) ==
        "0f000000000000006d532b090900008040fc54d94110643a020801452a66de");
}

TEST_CASE("an event file has every step of an attempt, and the next attempt's says where it goes on") {
  const test::TemporaryFolder dir;
  {
    EventFiles files(dir.path());
    CHECK(event_files(dir.path()).empty());   // no step, no file
    files.step(line_of(1, 2.5), 1.7e9);
    StepLine full = line_of(300, std::numeric_limits<double>::quiet_NaN());
    full.val_loss = 3;
    full.step_s = 0.5;
    full.tokens_per_s = 200;
    full.mfu = 0.5;
    full.phases = Phases{.communication_s = 0.125, .data_s = 0.25, .checkpoint_s = 2};
    full.ranks = RankSpread{.count = 2,
                            .compute_s = Spread<double>{1, 2, 3},
                            .wait_s = {},
                            .peak_memory_bytes = Spread<uint64_t>{0, 0, uint64_t(3) << 29},
                            .outliers = {}};
    full.skipped_steps = 1;
    files.step(full, 1.7e9 + 1);
    files.begin_next();
    files.step(line_of(200, 2), 1.7e9 + 2);
    CHECK(files.error().is_none());
  }
  const std::vector<std::string> files = event_files(dir.path());
  REQUIRE(files.size() == 2);
  CHECK(Reader(text_in(files[0])).read() ==
        std::vector<std::string>{"version brain.Event:2",
                                 "start 1",
                                 "1 loss/train 2.5",
                                 "1 optim/grad_norm 0.5",
                                 "1 optim/lr 0.25",
                                 "1 data/tokens 100",
                                 "300 loss/train nan",
                                 "300 optim/grad_norm 0.5",
                                 "300 loss/val 3",
                                 "300 optim/lr 0.25",
                                 "300 data/tokens 30000",
                                 "300 perf/step_s 0.5",
                                 "300 perf/tokens_per_s 200",
                                 "300 perf/mfu 0.5",
                                 "300 perf/data_wait_s 0.25",
                                 "300 perf/communication_s 0.125",
                                 "300 perf/checkpoint_s 2",
                                 "300 perf/rank_skew 0.5",
                                 "300 mem/peak_gib 1.5",
                                 "300 ft/skipped_steps 1"});
  CHECK(Reader(text_in(files[1])).read() ==
        std::vector<std::string>{"version brain.Event:2", "start 200", "200 loss/train 2",
                                 "200 optim/grad_norm 0.5", "200 optim/lr 0.25", "200 data/tokens 20000"});
}

TEST_CASE("a folder that cannot be written to costs the curves alone") {
  EventFiles files("/nonexistent/run");
  CHECK_NOTHROW(files.step(line_of(1, 2.5), 1.7e9));
  CHECK_NOTHROW(files.step(line_of(2, 2.5), 1.7e9));
  CHECK_THAT(files.error().text(), Catch::StartsWith("cannot create /nonexistent/run/events.out.tfevents."));
}

TEST_CASE("the Prometheus page follows the text format and names what the run has") {
  RunStatus status;
  status.run_id = "a\"b\\c";
  status.state = RunState::running;
  status.epoch = 2;
  status.restarts = 1;
  status.step = 7;
  status.total_steps = 100;
  status.saved_step = 5;
  status.staged_step = 7;
  status.updated_unix_s = 1.7e9;
  StepLine line = line_of(7, 2.5);
  line.mfu = line.step_s = 0.5;
  line.tokens_per_s = line.flops_per_s = line.flops_per_s_full_attention = line.mfu_full_attention = 3;
  line.phases = Phases{.forward_s = 0.125, .data_s = 0.25};
  status.last_step = line;
  status.nodes = {{.name = "node0", .state = NodeState::running}, {.name = "node1", .state = NodeState::lost}};
  std::map<std::string, std::string> samples;
  std::set<std::string> families;
  std::string family;
  const std::string page = prometheus_text(status);
  REQUIRE(page.ends_with('\n'));
  std::istringstream lines(page);
  const std::regex sample_form(R"re(([a-z_]+)(\{([a-z]+="([^"\\\n]|\\\\|\\"|\\n)*",?)+\}) (\S+))re");
  for (std::string text; std::getline(lines, text);) {
    CAPTURE(text);
    if (text.starts_with("# HELP ")) {
      family = text.substr(7, text.find(' ', 7) - 7);
      CHECK(families.insert(family).second);
      continue;
    }
    if (text.starts_with("# TYPE ")) {
      const bool is_counter = text == "# TYPE " + family + " counter";
      CHECK((is_counter || text == "# TYPE " + family + " gauge"));
      CHECK(is_counter == family.ends_with("_total"));
      continue;
    }
    std::smatch found;
    REQUIRE(std::regex_match(text, found, sample_form));
    CHECK(found[1] == family);
    CHECK(found[2].str().starts_with(R"({run="a\"b\\c")"));
    samples[found[1].str() + found[2].str().substr(sizeof(R"({run="a\"b\\c")") - 1)] = found[5];
  }
  const std::map<std::string, std::string> some = {
      {"trainctl_step}", "7"},
      {"trainctl_restarts_total}", "1"},
      {R"(trainctl_state,state="running"})", "1"},
      {R"(trainctl_state,state="failed"})", "0"},
      {"trainctl_loss}", "2.5"},
      {"trainctl_tokens_total}", "700"},
      {"trainctl_mfu_ratio}", "0.5"},
      {R"(trainctl_phase_seconds,phase="data"})", "0.25"},
      {R"(trainctl_checkpoint_step,place="memory"})", "7"},
      {R"(trainctl_checkpoint_step,place="written"})", "5"},
      {R"(trainctl_nodes,state="lost"})", "1"},
      {R"(trainctl_nodes,state="spare"})", "0"},
  };
  for (const auto& [name, value] : some) {
    CAPTURE(name, page);
    REQUIRE(samples.contains(name));
    CHECK(samples[name] == value);
  }
  CHECK(!samples.contains(R"(trainctl_checkpoint_step,place="verified"})"));   // none yet
  CHECK(!families.contains("trainctl_validation_loss"));
  CHECK(!families.contains("trainctl_overflows_total"));
  StepLine half = line;
  half.loss_scale = 1024, half.skipped_steps = 1, half.overflows = 4;
  status.last_step = half;
  CHECK_THAT(prometheus_text(status),
             Catch::Contains(R"(trainctl_overflows_total{run="a\"b\\c"} 4)") &&
                 Catch::Contains(R"(trainctl_skipped_steps_total{run="a\"b\\c"} 1)"));
  status.last_step = {};
  CHECK_THAT(prometheus_text(status), !Catch::Contains("trainctl_loss"));   // no step yet
  line.loss = std::numeric_limits<double>::infinity();
  status.last_step = line;
  CHECK_THAT(prometheus_text(status), Catch::Contains(R"(trainctl_loss{run="a\"b\\c"} )"));
}
