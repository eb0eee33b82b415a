// Goal: what transformers saved is imported and exported again with the same bytes under the same names, in
// every family, number format and cut into files; an export reads back, and its check finds damage; a full
// disk or a crash leaves no half of a folder under the final name.
// Method: folders with random weights that the test writes itself, in a file system in memory that fills up,
// fails and loses power at every effect.
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "ckpt/checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/exchange/export.h"
#include "runtime/exchange/export_writer.h"
#include "runtime/exchange/folder_model.h"
#include "runtime/exchange/forward_check.h"
#include "runtime/exchange/import.h"
#include "runtime/exchange/new_folder.h"
#include "runtime/train/generate/sample.h"
#include "test/runtime/exchange/hub_folder.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::test;
using Catch::Contains;

namespace {

const auto kModels = {gpt2_model(true), gpt2_model(false), llama_model(true), llama_model(false)};

std::string name_of(const HubModel& model) {
  return model.config["model_type"].get<std::string>() + (model.config["tie_word_embeddings"] ? " tied" : "");
}

/// A file system with the checkpoint /c of this model.
std::unique_ptr<PowerLossFileSystem> with_checkpoint(const HubModel& model, DType dtype = DType::f32,
                                                     size_t files = 1) {
  auto fs = std::make_unique<PowerLossFileSystem>();
  write_hub_folder(*fs, "/hub", model, dtype, files);
  import_folder(*fs, {.from = "/hub", .out = "/c"});
  return fs;
}

bool has_partial(FileSystem& fs) {
  for (const std::string& name : fs.list("/"))
    if (name.find(".partial-") != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE("what transformers saved comes back with the same bytes under the same names") {
  for (const HubModel& model : kModels)
    for (const DType dtype : {DType::f32, DType::bf16}) {
      INFO(name_of(model) << " " << trainctl::name_of(dtype));
      const auto fs = with_checkpoint(model, dtype, 3);
      const auto report = export_checkpoint(*fs, {.checkpoint = "/c", .out = "/out/", .dtype = dtype});
      const std::string word = dtype == DType::f32 ? "F32" : "BF16";
      CHECK(tensors_of(*fs, "/out", word) == tensors_of(*fs, "/hub", word));
      CHECK(report.out == "/out");
      CHECK(report.tensors == model.tensors.size());
      CHECK(report.largest_rounding == 0);  // also of bf16: the weights came from it
      CHECK(report.files ==
            std::vector<std::string>{"config.json", "generation_config.json", "model.safetensors"});
      CHECK_FALSE(has_partial(*fs));
      // The folder describes the same model: imported again, it is the same state.
      const std::string root = ckpt::Checkpoint::open(*fs, "/c")->root_hash();
      CHECK(import_folder(*fs, {.from = "/out", .out = "/again"}).root_hash == root);
      CHECK(ckpt::verify(*ckpt::Checkpoint::open(*fs, "/again")).findings.empty());
    }
}

TEST_CASE("an imported checkpoint has the weights of the folder and moments of zero") {
  const HubModel model = gpt2_model(false);
  const auto fs = with_checkpoint(model);
  const auto checkpoint = ckpt::Checkpoint::open(*fs, "/c");
  CHECK(checkpoint->state().step == 0);
  CHECK(checkpoint->tensors().size() == 3 * model.tensors.size());
  for (const ckpt::Tensor& tensor : checkpoint->tensors()) {
    INFO(tensor.name << " " << ckpt::name_of(tensor.role));
    const bool is_head = tensor.name == "lm_head.weight";
    const HubTensor& stored = model.tensors.at(is_head ? tensor.name : "transformer." + tensor.name);
    const int64_t rows = tensor.shape[0], cols = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
    std::vector<float> values(stored.values.size());
    checkpoint->read(tensor.name, tensor.role, {0, rows, 0, cols}, values.data());
    // Conv1D stores a linear weight the other way round.
    const bool is_linear = cols > 1 && !is_head && tensor.name[0] == 'h';
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) {
        const float weight = stored.values[size_t(is_linear ? c * rows + r : r * cols + c)];
        if (values[size_t(r * cols + c)] != (tensor.role == ckpt::Role::master ? weight : 0.0f))
          FAIL("differs");
      }
  }
}

TEST_CASE("names without the prefix of the base model, as on the Hub, and buffers of old versions") {
  HubModel model = gpt2_model(true), hub = model;
  hub.tensors.clear();
  for (const auto& [name, tensor] : model.tensors)
    hub.tensors[name.substr(sizeof "transformer." - 1)] = tensor;
  hub.tensors["h.0.attn.bias"] = {{1, 1, 2, 2}, {1, 0, 1, 1}};
  hub.tensors["lm_head.weight"] = model.tensors.at("transformer.wte.weight");
  const auto fs = with_checkpoint(model);
  write_hub_folder(*fs, "/short", hub, DType::f32);
  const ImportReport report = import_folder(*fs, {.from = "/short", .out = "/d"});
  CHECK(report.left_out == std::vector<std::string>{"h.0.attn.bias", "lm_head.weight"});
  CHECK(report.root_hash == ckpt::Checkpoint::open(*fs, "/c")->root_hash());
}

TEST_CASE("an export in bf16 rounds to nearest even and says how far") {
  const HubModel model = llama_model(false);
  const auto fs = with_checkpoint(model);
  const ExportReport report = export_checkpoint(*fs, {.checkpoint = "/c", .out = "/out", .check_tokens = 5});
  const auto tensors = tensors_of(*fs, "/out", "BF16");
  double largest = 0;
  for (const auto& [name, tensor] : model.tensors) {
    std::string expected;
    for (const float value : tensor.values) {
      const bf16 rounded(value);
      expected.append(reinterpret_cast<const char*>(&rounded), 2);
      largest = std::max(largest, std::abs(double(value) - double(float(rounded))));
    }
    CHECK(tensors.at(name).second == expected);
  }
  CHECK(report.largest_rounding == largest);
  REQUIRE(report.forward);
  CHECK(report.forward->largest == 0);
  CHECK(report.forward->from_master > 0);
}

TEST_CASE("an export in several files names every tensor once") {
  const auto fs = with_checkpoint(gpt2_model(true));
  const uint64_t limit = 20000;
  const ExportReport report =
      export_checkpoint(*fs, {.checkpoint = "/c", .out = "/out", .dtype = DType::f32, .shard_bytes = limit});
  CHECK(report.shards > 2);
  const Json index = Json::parse(fs->read_text("/out/model.safetensors.index.json"));
  CHECK(index["metadata"]["total_size"] == report.bytes);
  CHECK(tensors_of(*fs, "/out", "F32") == tensors_of(*fs, "/hub", "F32"));
  std::map<std::string, uint64_t> bytes_of_file, tensors_of_file;
  for (const auto& [name, tensor] : tensors_of(*fs, "/out", "F32")) {
    bytes_of_file[index["weight_map"].at(name)] += tensor.second.size();
    ++tensors_of_file[index["weight_map"].at(name)];
  }
  CHECK(index["weight_map"].size() == report.tensors);
  CHECK(bytes_of_file.size() == report.shards);
  for (const auto& [file, bytes] : bytes_of_file) CHECK((bytes <= limit || tensors_of_file[file] == 1));
  CHECK(bytes_of_file.count(fmt::format("model-00001-of-{:05}.safetensors", report.shards)) == 1);
}

TEST_CASE("the forward check passes for every family and finds changed weights") {
  for (const HubModel& model : kModels) {
    INFO(name_of(model));
    const auto fs = with_checkpoint(model);
    // 20 tokens are more than the 16 of a sequence.
    const ExportReport report = export_checkpoint(
        *fs, {.checkpoint = "/c", .out = "/out", .dtype = DType::f32, .check_tokens = 20, .threads = 2});
    REQUIRE(report.forward);
    CHECK(report.forward->tokens == 20);
    CHECK(report.forward->largest == 0);
    HubModel changed = model;
    auto& values = changed.tensors
                       .at(model.config["model_type"] == "gpt2" ? "transformer.h.1.mlp.c_fc.weight"
                                                                : "model.layers.1.mlp.up_proj.weight")
                       .values;
    std::swap(values[3], values[40]);
    write_hub_folder(*fs, "/changed", changed, DType::f32);
    const auto checkpoint = ckpt::Checkpoint::open(*fs, "/c");
    CHECK_THROWS_WITH(check_forward(*fs, job_of(*checkpoint), *checkpoint, "/changed", DType::f32, 20, 2),
                      Contains("the logits of 20 tokens differ by up to"));
  }
}

TEST_CASE("a folder computes as it lies there what its checkpoint computes") {
  const std::vector<std::vector<int32_t>> prompts{{1, 2, 3}, {4}};
  const GenerateOptions greedy{.tokens = 6, .temperature = 0};
  const auto written = [&](TrainedModel model) {
    const auto backend = one_device(model.job, 1);
    return model.on(*backend, model.job)->generate(prompts, greedy, [](size_t, int32_t) {});
  };
  for (const HubModel& model : kModels) {
    INFO(name_of(model));
    const auto fs = with_checkpoint(model, DType::bf16, 2);
    CHECK(folder_model(*fs, "/hub", true).is_folder());
    CHECK(written(folder_model(*fs, "/hub", true)) == written(checkpoint_model(*fs, "/c", false)));
  }
  HubModel diverged = llama_model(false);
  for (float& value : diverged.tensors.at("lm_head.weight").values) value = INFINITY;
  const auto fs = std::make_unique<PowerLossFileSystem>();
  write_hub_folder(*fs, "/hub", diverged, DType::f32);
  CHECK_THROWS_WITH(written(folder_model(*fs, "/hub", true)),
                    Contains("the logits behind 3 tokens are not finite"));
  HubModel other = llama_model(false);
  other.tensors.erase("model.norm.weight");
  write_hub_folder(*fs, "/less", other, DType::f32);
  CHECK_THROWS_WITH(folder_model(*fs, "/less", true), Contains("model.norm.weight"));
}

TEST_CASE("reading back finds a changed byte, a missing tensor and one too many") {
  const auto fs = with_checkpoint(llama_model(false));
  const auto checkpoint = ckpt::Checkpoint::open(*fs, "/c");
  const JobSpec job = job_of(*checkpoint);
  const ParamTable table = parameter_table(job.model, job.optimizer);
  const std::vector<ExportFile> files = export_files(table, DType::f32, UINT64_MAX);
  fs->make_directory("/out");
  const auto written = write_export_file(*fs, "/out", files[0], table, *checkpoint);
  read_back(*fs, "/out", files, written);
  const auto changed = [&](const std::string& message, const std::function<void(std::string&)>& change) {
    const auto copy = fs->copy();
    copy->poke("/out/model.safetensors", change);
    CHECK_THROWS_WITH(read_back(*copy, "/out", files, written),
                      Contains("did not read back") && Contains(message));
  };
  changed("the bytes of `lm_head.weight` are not those", [](std::string& text) { text.back() ^= 1; });
  changed("tensor `model.Norm.weight`",
          [](std::string& text) { text.replace(text.find("model.norm"), 10, "model.Norm"); });
  auto more = files;
  more[0].tensors.pop_back();
  CHECK_THROWS_WITH(read_back(*fs, "/out", more, written), Contains("tensors, not"));
}

namespace {

/// Does `work` with every fault at every effect, and with a power loss there: the folder is absent, or
/// whole by `is_whole`; after a fault no part of it is left.
void try_everywhere(const PowerLossFileSystem& start, const std::string& out,
                    const std::function<void(FileSystem&)>& work,
                    const std::function<bool(FileSystem&)>& is_whole) {
  const auto measured = start.copy();
  const size_t before = measured->effects().size();
  work(*measured);
  const size_t effects = measured->effects().size() - before;
  REQUIRE(is_whole(*measured));
  // When the work is done, it is durable.
  const auto reborn = measured->after_power_loss(Survival::nothing, 1);
  REQUIRE(reborn->exists(out));
  CHECK(is_whole(*reborn));
  REQUIRE(effects > 5);
  size_t failures = 0;
  for (size_t at = 0; at < effects; ++at) {
    for (const Fault fault : {Fault::no_space_from_here, Fault::io_error_once}) {
      INFO("effect " << at << ": " << measured->effects()[before + at] << ", fault " << int(fault));
      const auto fs = start.copy();
      fs->fail_at(at, fault);
      try {
        work(*fs);
      } catch (const Error& error) {
        ++failures;
        CHECK(error.code() == ErrorCode::kIo);
        fs->repair();
        CHECK((!fs->exists(out) || is_whole(*fs)));
        if (fault == Fault::no_space_from_here) {
          CHECK_THAT(error.what(), Contains("No space left"));
          CHECK_FALSE(fs->exists(out));
          CHECK_FALSE(has_partial(*fs));
        }
      }
    }
    const auto fs = start.copy();
    fs->lose_power_after(at);
    CHECK_THROWS_AS(work(*fs), PowerLost);
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      const Survival survival = seed == 1   ? Survival::nothing
                                : seed == 2 ? Survival::everything
                                            : Survival::random;
      INFO("power lost after effect " << at << ", survival " << int(survival) << ", seed " << seed);
      const auto later = fs->after_power_loss(survival, seed);
      CHECK((!later->exists(out) || is_whole(*later)));
    }
  }
  CHECK(failures > effects / 2);
}

}  // namespace

TEST_CASE("a full disk, an error or a power loss in the middle of an export leaves no half of a folder") {
  const auto start = with_checkpoint(llama_model(true));
  const auto expected = tensors_of(*start, "/hub", "F32");
  try_everywhere(
      *start, "/out",
      [](FileSystem& fs) {
        export_checkpoint(fs, {.checkpoint = "/c", .out = "/out", .dtype = DType::f32, .shard_bytes = 30000});
      },
      [&](FileSystem& fs) {
        return fs.exists("/out/config.json") && tensors_of(fs, "/out", "F32") == expected &&
               ckpt::TensorFolder::open(fs, "/out")->names().size() == expected.size();
      });
}

TEST_CASE("a full disk, an error or a power loss in the middle of an import leaves no half of a checkpoint") {
  const auto start = with_checkpoint(gpt2_model(true));
  const std::string root = ckpt::Checkpoint::open(*start, "/c")->root_hash();
  try_everywhere(
      *start, "/d", [](FileSystem& fs) { import_folder(fs, {.from = "/hub", .out = "/d"}); },
      [&](FileSystem& fs) {
        const auto checkpoint = ckpt::Checkpoint::open(fs, "/d");
        return checkpoint->root_hash() == root && ckpt::verify(*checkpoint).findings.empty();
      });
}

TEST_CASE("a new folder is durable with its files, also where the writer synced no folder") {
  PowerLossFileSystem fs;
  make_new_folder(fs, "/new", [&](const std::string& partial) {
    const auto file = fs.create(partial + "/a");
    file->write_at(0, std::as_bytes(std::span("text", 4)));
    file->sync();
    return partial;
  });
  CHECK(fs.after_power_loss(Survival::nothing, 1)->read_text("/new/a") == "text");
}

TEST_CASE("nothing is overwritten, and an empty folder is taken") {
  const auto fs = with_checkpoint(llama_model(true));
  fs->make_directory("/full");
  fs->write_new_text("/full/mine", "text");
  for (const char* out : {"/full", "/full/", "/full/mine"}) {
    CHECK_THROWS_WITH(export_checkpoint(*fs, {.checkpoint = "/c", .out = out}),
                      Contains("exists and is not an empty folder"));
    CHECK_THROWS_WITH(import_folder(*fs, {.from = "/hub", .out = out}),
                      Contains("exists and is not an empty folder"));
  }
  CHECK(fs->list("/full") == std::vector<std::string>{"mine"});
  fs->make_directory("/empty");
  export_checkpoint(*fs, {.checkpoint = "/c", .out = "/empty"});
  CHECK(fs->exists("/empty/config.json"));
  export_checkpoint(*fs, {.checkpoint = "/c", .out = "/made/below/here"});
  CHECK(fs->exists("/made/below/here/config.json"));
}
