// Goal: two supervisors that both take themselves for the writer of a run's object store, an older and a newer
// one or two of the same epoch, never publish a checkpoint with parts missing or mixed, never lose one that
// was reported as copied or the mark of an epoch that began, and never bring back what the run has left
// behind; whichever of their requests come in whichever order, and also if either is killed at any of them.
// Method: exhaustive. Every request is a step. All orders of the steps of two writers are run on an object
// store in memory, equal situations once: a writer is run again from its beginning with the answers that it
// had, then does one step more. What a reader finds is checked in every situation. Then the same with stores
// that leave out a part of the protocol: each omission must be seen.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <unordered_set>

#include "ckpt/object_index.h"
#include "ckpt/object_store.h"
#include "runtime/base/error.h"
#include "test/ckpt/two_writers.h"
#include "test/support/faulty_objects.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

/// What an object store leaves out, for tests of this test.
enum class Lack {
  nothing,
  conditions,  ///< it ignores the conditions of puts
  words,       ///< copies have no folders of their own
  marks,       ///< an epoch that begins leaves no mark
  giving_up,   ///< who removes an upload does not put an empty COMMIT first
};

struct Reply {
  int error = 0;  ///< status; 0: none
  std::string text;
  std::optional<ckpt::ObjectInfo> info;
  std::vector<ckpt::ObjectInfo> list;
};
using Replies = std::vector<std::shared_ptr<const Reply>>;

/// The store as one writer sees it: first the replies that it had, then `steps` more requests.
class RequestSteps final : public ckpt::ObjectClient {
 public:
  RequestSteps(FaultyObjects& objects, Replies& replies, uint64_t& digest, uint64_t steps, Lack lack,
               std::function<void()> changed)
      : objects_(objects),
        replies_(replies),
        digest_(digest),
        steps_(steps),
        lack_(lack),
        changed_(std::move(changed)) {}

  std::optional<ckpt::ObjectInfo> head(const std::string& key) override {
    return ask(false, [&] { return Reply{.info = objects_.head(key)}; }).info;
  }
  size_t get(const std::string& key, uint64_t offset, std::span<std::byte> out) override {
    const Reply& reply = ask(false, [&] {
      std::string text(out.size(), '\0');
      text.resize(objects_.get(key, offset, std::as_writable_bytes(std::span(text))));
      return Reply{.text = text};
    });
    std::copy_n(std::as_bytes(std::span(reply.text)).begin(), reply.text.size(), out.begin());
    return reply.text.size();
  }
  std::optional<size_t> get_if(const std::string&, const std::string&, uint64_t,
                               std::span<std::byte>) override {
    throw ckpt::ObjectError(400, "no store of checkpoints reads under a condition");
  }
  std::string put(const std::string& key, std::span<const std::byte> body) override {
    return ask(true, [&] { return Reply{.text = objects_.put(key, body)}; }).text;
  }
  std::optional<std::string> put_if(const std::string& key, const std::string& version,
                                    std::span<const std::byte> body) override {
    const Reply& reply = ask(true, [&] {
      const bool is_dropped = (lack_ == Lack::giving_up && body.empty()) ||
                              (lack_ == Lack::marks && key.ends_with("/INDEX") && is_mark(key, body));
      const auto etag = is_dropped ? std::optional(ckpt::etag_of(body)) : objects_.put_if(key, version, body);
      return Reply{.text = etag.value_or(""),
                   .info = etag ? std::optional(ckpt::ObjectInfo{}) : std::nullopt};
    });
    return reply.info ? std::optional(reply.text) : std::nullopt;
  }
  std::vector<ckpt::ObjectInfo> list(const std::string& prefix) override {
    return ask(false, [&] { return Reply{.list = objects_.list(prefix)}; }).list;
  }
  void remove(const std::string& key) override {
    ask(true, [&] { return objects_.remove(key), Reply{}; });
  }
  std::string start_upload(const std::string&) override { return no_parts(); }
  std::string put_part(const std::string&, const std::string&, int, std::span<const std::byte>) override {
    return no_parts();
  }
  std::string finish_upload(const std::string&, const std::string&,
                            const std::vector<std::string>&) override {
    return no_parts();
  }
  void abort_upload(const std::string&, const std::string&) override { no_parts(); }
  std::vector<ckpt::UnfinishedUpload> list_uploads(const std::string&) override { return {}; }

 private:
  static std::string no_parts() { throw ckpt::ObjectError(400, "no parts"); }
  /// Whether it adds an epoch to INDEX.
  bool is_mark(const std::string& key, std::span<const std::byte> body) {
    const auto at = objects_.objects().find(key);
    const auto now =
        ckpt::read_object_index(std::string(reinterpret_cast<const char*>(body.data()), body.size()));
    return now.newest_epoch() !=
           (at == objects_.objects().end() ? 0 : ckpt::read_object_index(at->second).newest_epoch());
  }
  const Reply& ask(bool is_change, const std::function<Reply()>& live) {
    if (next_ == replies_.size()) {
      if (steps_ == 0) throw Suspended{};
      --steps_;
      Reply reply;
      try {
        reply = live();
      } catch (const ckpt::ObjectError& error) {
        reply.error = error.status();
      }
      std::string text =
          fmt::format("{} {} {}", reply.error, reply.text, reply.info ? reply.info->version : "-");
      for (const auto& info : reply.list) text += " " + info.key + " " + info.version;
      digest_ = xxh3(text, digest_ + 1);
      replies_.push_back(std::make_shared<Reply>(std::move(reply)));
      if (is_change) changed_();
    }
    const Reply& reply = *replies_[next_++];
    if (reply.error != 0) throw ckpt::ObjectError(reply.error, "refused");
    return reply;
  }

  FaultyObjects& objects_;
  Replies& replies_;
  uint64_t& digest_;  ///< of them
  uint64_t steps_;
  const Lack lack_;
  const std::function<void()> changed_;
  size_t next_ = 0;
};

// ---- what writers do, and what a reader finds

std::unique_ptr<ckpt::Store> store_of(ckpt::ObjectClient& client, uint64_t epoch = UINT64_MAX,
                                      const std::string& word = "") {
  return ckpt::object_store(client, {.prefix = "p", .where = "s3://b/p", .epoch = epoch, .word = word});
}

/// The folder from which checkpoints are copied.
PowerLossFileSystem& source() {
  static PowerLossFileSystem fs;
  return fs;
}
void copy_to(ckpt::Store& store, int64_t step, uint64_t epoch) {
  const std::string dir = fmt::format("/e{}", epoch);
  if (!source().exists(ckpt::step_directory(dir, step))) {
    const auto receipt = [&] {
      const auto saving = ckpt::directory_store(source(), dir)->saving(info_of(step, epoch));
      saving->join();
      const float value = float(step) + float(epoch) / 16;
      const ckpt::ChunkData chunk{0, {0, 1, 0, 1}, &value};
      return ckpt::write_shard(*saving, "s.safetensors", info_of(step, epoch), tensors(), {&chunk, 1});
    }();
    ckpt::publish(source(), dir, info_of(step, epoch), tensors(), {&receipt, 1});
  }
  ckpt::copy(*ckpt::Checkpoint::open(source(), ckpt::step_directory(dir, step)), store);
}

/// The epoch of each step that a reader finds; UINT64_MAX: what it finds there is not whole.
std::map<int64_t, uint64_t> found_in(const FaultyObjects& objects) {
  const auto now = objects.copy();
  const auto store = store_of(*now);
  std::map<int64_t, uint64_t> found;
  for (const int64_t step : store->list()) {
    found[step] = UINT64_MAX;
    const auto files = store->open(step);
    if (!files) continue;
    const auto commit = ckpt::read_commit(files->read_text("COMMIT"));
    Files texts;
    for (const std::string& name : files->names()) texts[name] = files->read_text(name);
    if (commit && commit->step == step && texts == files_of(step, commit->epoch)) found[step] = commit->epoch;
  }
  return found;
}

struct Uploads {
  std::unique_ptr<FaultyObjects> objects;
  std::array<Replies, 2> replies;
  std::array<uint64_t, 2> digests{};
  std::array<std::optional<std::string>, 2> ends;  ///< "": the writer succeeded; else what it reported
  std::string order;
  bool succeeded(int writer) const { return ends[size_t(writer)] == ""; }
};

struct Plan {
  std::string name;
  std::function<void(ckpt::Store&)> before;
  std::array<uint64_t, 2> epochs;
  std::array<std::function<void(ckpt::Store&)>, 2> writers;
  /// "" or what is wrong, at any moment.
  std::function<std::string(const Uploads&, const std::map<int64_t, uint64_t>&)> check;
  std::function<std::string(const Uploads&, const std::map<int64_t, uint64_t>&)> check_end;
};

std::string look_at_uploads(const Uploads& s, const Plan& plan) {
  const auto found = found_in(*s.objects);
  for (const auto& [step, epoch] : found)
    if (epoch == UINT64_MAX) return fmt::format("step {} is not whole", step);
  const auto index = s.objects->objects().find("p/INDEX");
  const uint64_t newest =
      index == s.objects->objects().end() ? 0 : ckpt::read_object_index(index->second).newest_epoch();
  for (const int w : {0, 1})
    if (s.succeeded(w) && plan.epochs[size_t(w)] == 4 && newest != 4) return "the mark of epoch 4 is lost";
  if (const std::string what = plan.check(s, found); !what.empty()) return what;
  return s.ends[0] && s.ends[1] ? plan.check_end(s, found) : "";
}

void advance_upload(
    Uploads& s, const Plan& plan, size_t writer, uint64_t steps, Lack lack,
    const std::function<void()>& changed = [] {}) {
  RequestSteps client(*s.objects, s.replies[writer], s.digests[writer], steps, lack, changed);
  const auto store = store_of(client, plan.epochs[writer],
                              lack == Lack::words ? ""
                              : writer == 0       ? "aaaa"
                                                  : "bbbb");
  try {
    plan.writers[writer](*store);
    s.ends[writer] = "";
  } catch (const Suspended&) {
  } catch (const Error& error) {
    s.ends[writer] = error.what();
  }
}

Uploads begin(const Plan& plan, Lack lack) {
  Uploads s{.objects = std::make_unique<FaultyObjects>()};
  plan.before(*store_of(*s.objects));
  if (lack == Lack::conditions) s.objects->conditions = FaultyObjects::Conditions::ignored;
  return s;
}

struct Seen {
  std::string violation;
  size_t situations = 0, ends = 0;
};

Seen explore_uploads(const Plan& plan, Lack lack = Lack::nothing) {
  Seen seen;
  std::unordered_set<uint64_t> known, looked_at;
  std::vector<Uploads> open;
  open.push_back(begin(plan, lack));
  const auto look_once = [&](const Uploads& s) {
    std::string place;
    for (const auto& [key, content] : s.objects->objects()) place += key + "\n" + content + "\n";
    for (const auto& end : s.ends) place += end ? "end " + *end : "-";
    if (!seen.violation.empty() || !looked_at.insert(xxh3(place)).second) return;
    seen.violation = look_at_uploads(s, plan);
    if (!seen.violation.empty())
      seen.violation += fmt::format("; a: {}; b: {}; steps: {}", s.ends[0].value_or("stopped"),
                                    s.ends[1].value_or("stopped"), s.order);
  };
  while (!open.empty() && seen.violation.empty()) {
    const Uploads s = std::move(open.back());
    open.pop_back();
    // What a writer does next follows from its replies; what is there, from those of both.
    std::string place = fmt::format("{} {}", s.digests[0], s.digests[1]);
    for (const auto& [key, content] : s.objects->objects()) place += key + "\n" + content + "\n";
    if (!known.insert(xxh3(place)).second) continue;
    ++seen.situations;
    look_once(s);
    if (s.ends[0] && s.ends[1]) ++seen.ends;
    for (size_t w = 0; w < 2; ++w) {
      if (s.ends[w]) continue;
      Uploads next{s.objects->copy(), s.replies, s.digests, s.ends, s.order + (w == 0 ? 'a' : 'b')};
      advance_upload(next, plan, w, s.ends[1 - w] ? ~uint64_t(0) : 1, lack, [&] { look_once(next); });
      open.push_back(std::move(next));
    }
  }
  return seen;
}

/// The first writer stops for good at any of its requests, the second must succeed.
std::string freeze_uploads(const Plan& plan) {
  for (uint64_t steps = 0;; ++steps) {
    Uploads s = begin(plan, Lack::nothing);
    advance_upload(s, plan, 0, steps, Lack::nothing);
    const bool is_over = s.ends[0].has_value();
    advance_upload(s, plan, 1, ~uint64_t(0), Lack::nothing);
    if (!s.succeeded(1)) return fmt::format("a stops after request {}, b: {}", steps, *s.ends[1]);
    if (const std::string what = look_at_uploads(s, plan); !what.empty()) return what;
    if (is_over) return "";
  }
}

// ---- the scenarios

using FoundSteps = std::map<int64_t, uint64_t>;
bool has(const FoundSteps& found, int64_t step, uint64_t epoch) {
  const auto at = found.find(step);
  return at != found.end() && at->second == epoch;
}
bool is_indexed(const Uploads& s, int64_t step) {
  const auto index = s.objects->objects().find("p/INDEX");
  if (index == s.objects->objects().end()) return false;
  const auto names = ckpt::read_object_index(index->second).published;
  return std::any_of(names.begin(), names.end(), [&](const auto& name) { return name.step == step; });
}
const ckpt::EpochBegin kEpoch4From20{kRun, 4, 20};

/// Both copy step 20 of epoch 3; `is_newer`: the second one after it began epoch 4 from there.
Plan same_checkpoint(bool is_newer) {
  const auto copy = [](ckpt::Store& store) { copy_to(store, 20, 3); };
  return {.name = is_newer ? "same checkpoint, newer epoch" : "same checkpoint",
          .before = [](ckpt::Store& store) { copy_to(store, 10, 2); },
          .epochs = {3, is_newer ? 4u : 3u},
          .writers = {copy,
                      [=](ckpt::Store& store) {
                        if (is_newer) store.set_aside_after(kEpoch4From20);
                        copy(store);
                      }},
          .check = [](const Uploads& s, const FoundSteps& found) -> std::string {
            if (!has(found, 10, 2)) return "step 10 is lost";
            const bool is_copied = s.succeeded(0) || s.succeeded(1);
            if (is_copied && !has(found, 20, 3)) return "step 20 is lost";
            return is_copied && !is_indexed(s, 20) ? "INDEX has lost step 20" : "";
          },
          .check_end = [=](const Uploads& s, const FoundSteps&) -> std::string {
            if (!s.succeeded(1)) return "b failed: " + *s.ends[1];
            return is_newer || s.succeeded(0) ? "" : "a failed: " + *s.ends[0];
          }};
}

/// Each copies a step of its own: both are named in INDEX.
Plan two_steps() {
  return {.name = "two steps",
          .before = [](ckpt::Store&) {},
          .epochs = {3, 3},
          .writers = {[](ckpt::Store& store) { copy_to(store, 20, 3); },
                      [](ckpt::Store& store) { copy_to(store, 30, 3); }},
          .check = [](const Uploads& s, const FoundSteps& found) -> std::string {
            for (const int w : {0, 1}) {
              const int64_t step = w == 0 ? 20 : 30;
              if (s.succeeded(w) && !(has(found, step, 3) && is_indexed(s, step)))
                return fmt::format("step {} is lost", step);
            }
            return "";
          },
          .check_end = [](const Uploads& s, const FoundSteps&) -> std::string {
            return s.succeeded(0) && s.succeeded(1) ? "" : "failed: " + *s.ends[0] + *s.ends[1];
          }};
}

/// Epoch 3 copies step 30, which epoch 4, from step 20, has left behind. It copies its own step 40.
Plan left_behind() {
  return {.name = "left behind",
          .before = [](ckpt::Store& store) { copy_to(store, 20, 3); },
          .epochs = {3, 4},
          .writers = {[](ckpt::Store& store) { copy_to(store, 30, 3); },
                      [](ckpt::Store& store) {
                        store.set_aside_after(kEpoch4From20);
                        copy_to(store, 40, 4);
                      }},
          .check = [](const Uploads& s, const FoundSteps& found) -> std::string {
            if (!has(found, 20, 3)) return "step 20 is lost";
            if (!s.succeeded(1)) return "";
            if (found.count(30)) return "what the run left behind is back";
            return has(found, 40, 4) ? "" : "step 40 is lost";
          },
          .check_end = [](const Uploads& s, const FoundSteps&) { return s.succeeded(1) ? "" : *s.ends[1]; }};
}

/// One copies, the other removes older checkpoints and uploads that were not published.
///   is_late   it is the copying one that is out of date
Plan copy_and_retention(bool is_late) {
  const auto retain = [](ckpt::Store& store, uint64_t epoch) {
    ckpt::retain(store, {.current_epoch = epoch});
  };
  return {.name = is_late ? "late copy and retention" : "copy and late retention",
          .before =
              [](ckpt::Store& store) {
                for (const int64_t step : {5, 10, 20}) copy_to(store, step, 2);
              },
          .epochs = {3, 4},
          .writers = {[=](ckpt::Store& store) { is_late ? copy_to(store, 20, 3) : retain(store, 3); },
                      [=](ckpt::Store& store) {
                        store.set_aside_after(kEpoch4From20);
                        is_late ? retain(store, 4) : copy_to(store, 20, 3);
                      }},
          .check = [=](const Uploads& s, const FoundSteps& found) -> std::string {
            if (!has(found, 10, 2) || !found.count(20)) return "a newer step is lost";
            return s.succeeded(is_late ? 0 : 1) && !has(found, 20, 3) ? "the copy of step 20 is lost" : "";
          },
          .check_end = [](const Uploads& s, const FoundSteps&) { return s.succeeded(1) ? "" : *s.ends[1]; }};
}

std::vector<Plan> plans() {
  return {same_checkpoint(false), same_checkpoint(true),    two_steps(),
          left_behind(),          copy_and_retention(true), copy_and_retention(false)};
}

}  // namespace

TEST_CASE("two uploads, all orders of their requests", "[two_uploads][all]") {
  for (const Plan& plan : plans()) {
    const Seen seen = explore_uploads(plan);
    INFO(plan.name << ": " << seen.situations << " situations, " << seen.ends << " ends");
    CHECK(seen.violation == "");
    CHECK(seen.ends > 1);
    CHECK(freeze_uploads(plan) == "");
  }
}

TEST_CASE("each part of the protocol that a store leaves out is seen", "[two_uploads][all]") {
  struct Mutant {
    Lack lack;
    Plan plan;
  };
  const Mutant mutants[] = {
      {Lack::conditions, two_steps()},
      {Lack::conditions, same_checkpoint(true)},
      {Lack::words, same_checkpoint(false)},
      {Lack::marks, left_behind()},
      {Lack::giving_up, copy_and_retention(true)},
      {Lack::conditions, copy_and_retention(true)},
  };
  for (const Mutant& mutant : mutants) {
    INFO(int(mutant.lack) << " " << mutant.plan.name);
    CHECK(explore_uploads(mutant.plan, mutant.lack).violation != "");
  }
}
