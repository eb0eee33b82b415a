// Goal: the loss of each source of the data has the same bits on every mesh, is of that source's samples
// and no others, and is left out where there is one source. Method: tiny jobs on two and on eleven token
// files, thread ranks on a cover of meshes, with documents, weights of targets, cut sequences and tensor
// ranks: the sources of every step against those of one rank; sums against the whole loss, targets against
// the order of the data; a text that is easily learned next to noise.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <map>
#include <random>

#include "runtime/base/json.h"
#include "runtime/base/record.h"
#include "runtime/train/source_losses.h"
#include "runtime/train/trainer.h"
#include "test/support/described_models.h"
#include "test/support/seed.h"
#include "test/support/temporary_folder.h"
#include "test/support/test_mesh.h"
#include "test/support/thread_run.h"
#include "test/support/token_sets.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

constexpr int64_t kSourceSteps = 4;

/// Writes a file of 2000 tokens, of one id or of random ones.
DataSource raw_source(const std::string& path, const std::string& name, double weight, bool is_plain) {
  std::mt19937 random(unsigned(path.size()) + unsigned(weight * 8));
  std::vector<uint16_t> ids(2000);
  for (uint16_t& id : ids) id = uint16_t(is_plain ? 5 : random() % 97);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(ids.data()), std::streamsize(ids.size() * sizeof(uint16_t)));
  DataSource source;
  source.path = path, source.name = name, source.weight = weight;
  source.format = TokenFormat::raw, source.dtype = DType::u16;
  return source;
}

JobSpec job_of_two(const TemporaryFolder& dir) {
  JobSpec job = tiny_job(Family::llama, dir.path());
  job.data.train = {raw_source(dir / "web.bin", "web", 3, false), raw_source(dir / "same.bin", "", 1, true)};
  job.parallelism.lanes = 4;
  return job;
}

/// Their documents are kept apart, and targets weighed.
JobSpec job_of_weighed(const TemporaryFolder& dir) {
  JobSpec job = tiny_job(Family::llama, dir.path());
  std::mt19937 random(3);
  job.data.train.clear();
  for (const char* name : {"a", "b", "c"}) {
    std::vector<TokenDocument> documents = many_documents(12);
    std::vector<uint8_t> weights;
    for (const TokenDocument& document : documents)
      for (const auto& ids : document)
        for (size_t i = 0; i < ids.size(); ++i) weights.push_back(uint8_t(random() % 4));
    write_megatron(dir / name, documents);
    write_loss(dir / name, weights);
    DataSource source;
    source.path = dir / name, source.name = name;
    job.data.train.push_back(source);
  }
  job.data.documents = Documents::mask;
  job.data.loss = TargetLoss::weights;
  job.parallelism.lanes = 4;
  return job;
}

ThreadRun run_of_sources(const JobSpec& job, const TemporaryFolder& dir) {
  static int number = 0;
  return run_on_threads(job, {.dir = dir / std::to_string(++number), .max_steps = kSourceSteps});
}

/// The sources of each step, as they are recorded.
std::vector<std::string> recorded_sources(const ThreadRun& run) {
  std::vector<std::string> texts;
  for (const std::string& line : run.lines) {
    const Json step = parse_json(line);
    texts.push_back(step.contains("sources") ? dump_json(step["sources"]) : "");
  }
  return texts;
}

std::vector<StepLine> lines_of_run(const ThreadRun& run) {
  std::vector<StepLine> lines;
  for (const std::string& line : run.lines) lines.push_back(step_view(line));
  return lines;
}

void check_source_meshes(const JobSpec& base, const TemporaryFolder& dir,
                         const std::vector<TestMesh>& meshes) {
  const ThreadRun plain = run_of_sources(base, dir);
  REQUIRE(plain.lines.size() == size_t(kSourceSteps));
  REQUIRE(!recorded_sources(plain).back().empty());
  for (const TestMesh& m : meshes) {
    CAPTURE(text_of(m));
    const ThreadRun run = run_of_sources(on_mesh(base, m), dir);
    CHECK(recorded_sources(run) == recorded_sources(plain));
    check_equal_runs(run, plain);
  }
}

const std::vector<TestMesh> kSourceMeshes = {
    {.data = 2, .zero = 2, .recompute = Recompute::full},
    {.data = 3, .pipeline = 2, .zero = 0},
    {.data = 4, .zero = 3},
    {.pipeline = 2, .schedule = Schedule::zb_h1},
    {.data = 2, .pipeline = 2, .zero = 1, .schedule = Schedule::zb_v, .virtual_stages = 2},
    {.data = 2, .pipeline = 2, .schedule = Schedule::interleaved, .virtual_stages = 2}};

}  // namespace

TEST_CASE("losses of sources: the same bits on every mesh", "[bits][sources]") {
  const TemporaryFolder two, weighed, mtp;
  check_source_meshes(job_of_two(two), two, kSourceMeshes);
  JobSpec several = job_of_weighed(weighed);
  check_source_meshes(several, weighed, kSourceMeshes);
  several.batch.micro_sequences = 2;
  check_source_meshes(several, weighed, {{.data = 2}, {.data = 4, .zero = 2}});
  JobSpec ahead = job_of_two(mtp);  // the modules' losses come behind those of the head
  describe_mtp(ahead.model);
  check_source_meshes(ahead, mtp, {{.data = 2}, {.pipeline = 2}});
}

TEST_CASE("losses of sources: the same bits on every number of context ranks", "[bits][sources][context]") {
  const TemporaryFolder dir;
  JobSpec job = job_of_weighed(dir);
  job.batch.micro_sequences = 2;
  job.parallelism.sequence_parallel = false;
  job.parallelism.context_blocks = 4;
  check_source_meshes(job, dir, {{.context = 2}, {.context = 4, .zero = 3}, {.context = 2, .data = 2}});
}

TEST_CASE("losses of sources: two tensor ranks count them once", "[bits][sources]") {
  const TemporaryFolder dir;
  JobSpec job = job_of_two(dir);
  const std::vector<StepLine> one = lines_of_run(run_of_sources(job, dir));
  job.parallelism.tensor = 2;
  const std::vector<StepLine> two = lines_of_run(run_of_sources(job, dir));
  for (size_t s = 0; s < one.size(); ++s) {
    REQUIRE(two[s].sources.size() == one[s].sources.size());
    for (size_t i = 0; i < one[s].sources.size(); ++i) {
      CHECK(two[s].sources[i].targets == one[s].sources[i].targets);
      CHECK(two[s].sources[i].loss == Approx(one[s].sources[i].loss).epsilon(tolerance::kLossOfWidths));
    }
  }
  check_source_meshes(job, dir, {{.data = 2, .zero = 3}, {.pipeline = 2}});
}

TEST_CASE("losses of sources add to the whole loss, and each is of its own samples", "[sources]") {
  const TemporaryFolder dir;
  JobSpec job = job_of_two(dir);
  job.schedule.lr = 1e-2;
  job.schedule.total_steps = 60;
  const ThreadRun run = run_on_threads(job, {.dir = dir / "run", .max_steps = 60});
  const auto dataset = data::open_dataset(dataset_options(job.data, job.model.vocab_size, false));
  uint64_t sample = 0;
  for (const StepLine& line : lines_of_run(run)) {
    std::map<std::string, int64_t> targets;
    for (int64_t i = 0; i < job.batch.global_sequences; ++i)
      targets[dataset->place(sample++).source] += job.data.seq_len;
    double sum = 0, all = 0;
    CHECK(line.sources.size() == targets.size());
    for (const SourceLoss& source : line.sources) {
      CHECK(source.targets == targets[source.name]);
      sum += source.loss * double(source.targets), all += double(source.targets);
    }
    CHECK(std::abs(line.loss - sum / all) < tolerance::kLossF32);
  }
  // The one is learned soon, the other never; a source without a name has its path.
  const StepLine last = lines_of_run(run).back();
  REQUIRE(last.sources.size() == 2);
  CHECK(last.sources[0].name == "web");
  CHECK(last.sources[1].name == job.data.train[1].path);
  CHECK(last.sources[1].loss < 0.5);
  CHECK(last.sources[0].loss > 3);
}

TEST_CASE("losses of sources: more sources than are added at once, some without samples", "[sources]") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  job.data.train.clear();
  for (int i = 0; i < 11; ++i)
    job.data.train.push_back(
        raw_source(dir / std::to_string(i), "s" + std::to_string(i), i == 4 ? 0.001 : 1, i == 10));
  job.parallelism.lanes = 4;
  check_source_meshes(job, dir, {{.data = 4}, {.data = 2, .pipeline = 2}});
  std::map<std::string, int64_t> targets;
  for (const StepLine& line : lines_of_run(run_of_sources(job, dir)))
    for (const SourceLoss& source : line.sources) targets[source.name] += source.targets;
  CHECK(targets.size() == 10);
  CHECK(!targets.contains("s4"));
  int64_t all = 0;
  for (const auto& [name, count] : targets) all += count;
  CHECK(all == kSourceSteps * job.tokens_per_step());
}

TEST_CASE("one source has no losses of sources", "[sources]") {
  const TemporaryFolder dir;
  for (const StepLine& line : lines_of_run(run_of_sources(tiny_job(Family::llama, dir.path()), dir)))
    CHECK(line.sources.empty());
}

TEST_CASE("floats that are added together make the exact sum of each, in any order", "[sources]") {
  for (const uint64_t seed : test_seeds(20)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    std::vector<float> values;
    for (int i = 0; i < 20000; ++i) {
      // Of any size, most of those that losses have; some negative, some zero.
      const int exponent = i % 10 == 0 ? int(random() % 250) - 125 : int(random() % 60) - 48;
      const float value = std::ldexp(float(random() % (1 << 24)), exponent - 23);
      values.push_back(i % 7 == 0 ? -value : i % 11 == 0 ? 0 : value);
    }
    ExactSum one_by_one, together, in_other_order;
    FloatSum floats, others;
    for (const float value : values) one_by_one.add(value);
    floats.add(values, together), floats.flush(together);
    std::shuffle(values.begin(), values.end(), random);
    for (size_t i = 0, n = 0; i < values.size(); i += n) {
      n = std::min<size_t>(values.size() - i, 1 + random() % 3000);
      others.add(std::span(values).subspan(i, n), in_other_order);
    }
    others.flush(in_other_order);
    CHECK(together == one_by_one);
    CHECK(in_other_order == one_by_one);
  }
  for (const float odd : {NAN, INFINITY, -INFINITY}) {
    ExactSum sum, of_doubles;
    FloatSum floats;
    floats.add(std::vector{1.5f, odd}, sum), floats.flush(sum);
    of_doubles.add(1.5), of_doubles.add(odd);
    CHECK(sum == of_doubles);
  }
}
