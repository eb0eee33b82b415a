#include "runtime/observe/report/plan_view.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/json.h"
#include "runtime/machine/rank_device.h"
#include "runtime/model/stage_program.h"
#include "runtime/observe/report/step_rows.h"
#include "runtime/plan/report.h"

namespace trainctl::report {
namespace {

/// A drawing of more computations shows stripes.
constexpr int64_t kMostSpans = 3000;

/// Whether plan_json's name is of a part of a rank's memory. Copies in /dev/shm are none of a GPU's.
bool is_part(const std::string& key, bool on_gpu) {
  return key != "stage" && key != "total" && key != "pinned_host" && !(on_gpu && key == "copies");
}

OrderedJson memory_view(const OrderedJson& plan) {
  OrderedJson list = OrderedJson::array();
  const bool on_gpu = plan.value("device", "cpu") != "cpu";
  for (const OrderedJson& stage : plan.value("memory", OrderedJson::array())) {
    OrderedJson terms = OrderedJson::array();
    for (const auto& [key, bytes] : stage.items())
      if (is_part(key, on_gpu) && bytes.is_number() && bytes.get<double>() > 0) terms.push_back({key, bytes});
    list.push_back({{"stage", stage["stage"]}, {"total", stage["total"]}, {"terms", std::move(terms)}});
  }
  return list;
}

/// How many micro-batches are drawn: all, or enough whole rounds of the pipeline to see its pattern.
int drawn_micro_batches(const parallel::PipelineShape& shape) {
  const auto spans = [&](int64_t m) { return m * shape.stages * shape.virtual_stages * 3; };
  if (spans(shape.micro_batches) <= kMostSpans) return shape.micro_batches;
  // Two rounds are the fewest that each schedule takes.
  const int64_t rounds = std::max<int64_t>(2, kMostSpans / std::max<int64_t>(1, spans(shape.stages)));
  return int(std::min<int64_t>(shape.micro_batches, rounds * shape.stages));
}

const char* letter_of(parallel::Op op) {
  return op == parallel::Op::forward ? "F" : op == parallel::Op::backward_input ? "B" : "W";
}

}  // namespace

OrderedJson pipeline_view(const JobSpec& job, const DeviceModel& device) {
  const int all = pipeline_shape(job, 0).micro_batches;
  const int drawn = drawn_micro_batches(pipeline_shape(job, 0));
  const PipelinePicture picture = pipeline_picture(job, device, drawn);
  OrderedJson stages = OrderedJson::array();
  const double makespan = picture.timeline.makespan;
  for (const std::vector<parallel::Span>& spans : picture.timeline.stages) {
    OrderedJson list = OrderedJson::array();
    for (const parallel::Span& s : spans)
      list.push_back({letter_of(s.instruction.op), s.instruction.micro_batch, s.instruction.virtual_stage,
                      number(s.begin / makespan, 5), number(s.end / makespan, 5)});
    stages.push_back(std::move(list));
  }
  return {{"schedule", parallel::name_of(picture.shape.schedule)},
          {"virtual_stages", picture.shape.virtual_stages},
          {"micro_batches", all},
          {"drawn_micro_batches", drawn},
          {"stages", std::move(stages)}};
}

OrderedJson plan_view(const ParsedJob& parsed) {
  const JobSpec& job = parsed.job;
  const DeviceModel device = device_of_kind(job, device_kind(job));
  const OrderedJson plan = parse_ordered_json(plan_json(make_report({}, job, device, std::nullopt)));
  OrderedJson view{{"parameters", plan["parameters"]},
                    {"checkpoint_bytes", plan["checkpoint_bytes"]},
                    {"bubble", number(plan["bubble_fraction"].get<double>(), 4)},
                    {"memory", memory_view(plan)}};
  if (job.parallelism.pipeline > 1) view["pipeline"] = pipeline_view(job, device);
  return view;
}

void add_measured_memory(OrderedJson& view, const RankGrid& grid) {
  if (grid.columns().empty() || !view.contains("memory") || view["memory"].empty()) return;
  const std::vector<double>& measured = grid.columns().rbegin()->second.peak_memory_bytes;
  const size_t stages = view["memory"].size(), each = measured.size() / stages;
  if (measured.empty() || measured.size() % stages != 0) return;
  for (size_t s = 0; s < stages; ++s) {
    const auto begin = measured.begin() + ptrdiff_t(s * each);
    const auto most = std::max_element(begin, begin + ptrdiff_t(each));
    if (!std::isfinite(*most)) continue;
    view["memory"][s]["measured"] = number(*most, 7);
    view["memory"][s]["measured_rank"] = most - measured.begin();
  }
}

}  // namespace trainctl::report
