// Goal: an object store that fails in any way that passes costs time only; one that does not pass costs one
// save, said in time; listings that lag, older epochs and repeated saves never show a wrong checkpoint.
// Method: every request of a save and of a load fails in turn, in every way, on an object store in memory;
// the outcome is compared with the plain arrays. Crashes at every effect are in power_loss_test.cpp.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <set>

#include "ckpt/object_index.h"
#include "ckpt/object_store.h"
#include "runtime/base/error.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/faulty_objects.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

class HandClock final : public Clock {
 public:
  double monotonic_s() override { return now; }
  double unix_s() override { return now; }
  void sleep_s(double seconds) override { now += seconds; }
  double now = 1e6;
};

PlainState state_at(int64_t step, uint64_t epoch = 3, uint64_t seed = 1) {
  PlainState state = make_state(seed, step);
  state.info.epoch = epoch;
  return state;
}

/// A client with retries, and a store on top.
struct ObjectSetup {
  explicit ObjectSetup(ckpt::ObjectClient& objects, uint64_t part_bytes = 700, uint64_t epoch = UINT64_MAX)
      : client(ckpt::retrying(objects, clock, {.deadline_s = 60})),
        store(ckpt::object_store(
            *client, {.prefix = "p", .where = "s3://b/p", .part_bytes = part_bytes, .epoch = epoch})) {}
  HandClock clock;
  std::unique_ptr<ckpt::ObjectClient> client;
  std::unique_ptr<ckpt::Store> store;
};

bool loads(ckpt::Store& store, const PlainState& state) {
  auto files = store.open(state.info.step);
  if (!files) return false;
  const auto checkpoint = ckpt::Checkpoint::open(std::move(files));
  return checkpoint->state().epoch == state.info.epoch && reads_back(*checkpoint, state) &&
         ckpt::verify(*checkpoint).findings.empty();
}

}  // namespace

TEST_CASE("every request of a save and a load fails once, in every way that passes") {
  const PlainState state = state_at(30);
  uint64_t faults = 0;
  for (const ObjectFault fault : kPassingFaults)
    for (uint64_t n = 0;; ++n) {
      FaultyObjects objects;
      ObjectSetup setup(objects);
      objects.fail_at(n, fault);
      INFO("fault " << int(fault) << " at request " << n);
      save(*setup.store, state, 2);
      REQUIRE(loads(*setup.store, state));
      REQUIRE(setup.store->list() == std::vector<int64_t>{30});
      if (objects.requests() <= n) break;
      ++faults;
    }
  CHECK(faults > 200);
}

TEST_CASE("a store that is away or refuses: one sentence, in time, and the older checkpoint stands") {
  const PlainState older = state_at(20), newer = state_at(30);
  for (const ObjectFault fault :
       {ObjectFault::server_error, ObjectFault::lost_request, ObjectFault::lost_answer,
        ObjectFault::slow_down, ObjectFault::wrong_body, ObjectFault::refused})
    for (uint64_t n = 0; n < 40; ++n) {
      FaultyObjects objects;
      ObjectSetup setup(objects);
      save(*setup.store, older, 2);
      objects.fail_at(n, fault, ~uint64_t(0));
      const double begin = setup.clock.now;
      std::string message;
      try {
        save(*setup.store, newer, 2);
      } catch (const Error& error) {
        message = error.what();
      }
      INFO("fault " << int(fault) << " from request " << n << ": " << message);
      REQUIRE(!message.empty());
      CHECK(message.find('\n') == std::string::npos);
      // A request gives up at its deadline; a shard is tried twice, its bad file removed twice.
      CHECK(setup.clock.now - begin < 6 * 60);
      if (fault == ObjectFault::refused) {
        CHECK(setup.clock.now == begin);  // no use in trying again
        CHECK(message.find("403 Access Denied") != std::string::npos);
      } else {
        CHECK(message.find(" times in ") != std::string::npos);
      }
      objects.repair();
      REQUIRE(loads(*setup.store, older));
      // Not reported as saved; where only the answer of the commit was lost it may be there, whole.
      for (const int64_t step : setup.store->list()) REQUIRE(loads(*setup.store, step == 30 ? newer : older));
      save(*setup.store, newer, 2);
      REQUIRE(loads(*setup.store, newer));
    }
}

TEST_CASE("a damaged object is named, whichever request brings it") {
  FaultyObjects objects;
  ObjectSetup setup(objects);
  const PlainState state = state_at(30);
  save(*setup.store, state, 2);
  for (const auto& [key, content] : std::map(objects.objects())) {
    if (key.ends_with("INDEX")) continue;
    std::string bad = content;
    bad[bad.size() / 2] ^= 1;
    objects.poke(key, bad);
    INFO(key);
    std::string found;
    try {
      const auto findings = ckpt::verify(*ckpt::Checkpoint::open(setup.store->open(30))).findings;
      if (!findings.empty()) found = findings[0].file;
    } catch (const Error& error) {
      found = error.what();
    }
    CHECK(found.find(key.substr(key.rfind('/') + 1)) != std::string::npos);
    objects.poke(key, content);
  }
  CHECK(loads(*setup.store, state));
  // INDEX is a hint: whatever it holds, what is there is found.
  for (const std::string index :
       {"", "x", "{}", "{\"published\":[1,\"step-9\"],\"set_aside\":[{\"epoch\":-1}]}",
        "{\"published\":{},\"set_aside\":3}", "[]"}) {
    objects.poke("p/INDEX", index);
    INFO(index);
    CHECK(loads(*setup.store, state));
  }
}

TEST_CASE("a large file goes in parts, an abandoned one leaves none") {
  FaultyObjects objects;
  ObjectSetup small(objects, 100);
  save(*small.store, state_at(30), 1);
  const auto parts = std::count_if(objects.effects().begin(), objects.effects().end(),
                                   [](const std::string& effect) { return effect.starts_with("put part "); });
  CHECK(parts > 50);
  CHECK(objects.uploads() == 0);
  {
    const auto saving = small.store->saving(state_at(40).info);
    const auto file = saving->put("f", 1000);
    file->append(std::vector<std::byte>(500));
    CHECK(objects.uploads() == 1);
  }
  CHECK(objects.uploads() == 0);
  // No file needs more parts than the store takes.
  const auto saving = small.store->saving(state_at(50).info);
  const auto file = saving->put("g", 3'000'000);
  file->append(std::vector<std::byte>(3'000'000));
  file->finish();
  CHECK(objects.effects().back() == "finish the upload of p/step-00000050.e3.a0/g");
  CHECK(std::count_if(objects.effects().begin(), objects.effects().end(), [](const std::string& effect) {
          return effect.starts_with("put part ") && effect.ends_with("/g");
        }) <= 10000);
}

TEST_CASE("uploads in parts of writers that died are aborted, of those that may live they are not") {
  FaultyObjects objects;
  ObjectSetup setup(objects, 700, 4);
  for (const char* key : {"p/step-00000010.e2.a0/shard", "p/step-00000010.e3.a1.5f3a9c21/shard",
                          "p/step-00000010.e4.a0/shard", "p/step-00000012.e5.a0/shard", "p/other/shard",
                          "q/step-00000010.e1.a0/shard"})
    objects.start_upload(key);
  setup.store->clean({.current_epoch = 4}, {});
  std::set<std::string> left;
  for (const auto& upload : objects.list_uploads("")) left.insert(upload.key);
  CHECK(left == std::set<std::string>{"p/step-00000010.e4.a0/shard", "p/step-00000012.e5.a0/shard",
                                      "p/other/shard", "q/step-00000010.e1.a0/shard"});
}

TEST_CASE("the same step again, and writers that are out of date") {
  for (const int lag : {0, 6}) {
    FaultyObjects objects(lag);
    ObjectSetup setup(objects);
    ckpt::Store& store = *setup.store;
    const std::string root = save(store, state_at(10), 3);
    CHECK(save(store, state_at(10), 2) == root);  // equal state, same epoch: nothing to do
    CHECK(loads(store, state_at(10)));
    CHECK_THROWS_WITH(save(store, state_at(10, 3, 2), 3), Catch::Contains("by attempt 3 with other content"));
    CHECK_THROWS_WITH(save(store, state_at(10, 2), 3), Catch::Contains("this writer has attempt 2"));
    CHECK(loads(store, state_at(10)));
    CHECK(save(store, state_at(10, 4, 2), 3) != root);
    CHECK(loads(store, state_at(10, 4, 2)));
    // A writer of epoch 3 that is still running: its later step does not count once epoch 4 was at step 10.
    save(store, state_at(15, 3), 2);
    CHECK(store.list() == std::vector<int64_t>{10});
    CHECK(loads(store, state_at(10, 4, 2)));
  }
}

TEST_CASE("a run that goes back: later checkpoints do not count, and go when newer ones are safe") {
  for (const int lag : {0, 6}) {
    FaultyObjects objects(lag);
    ObjectSetup setup(objects);
    ckpt::Store& store = *setup.store;
    for (const int64_t step : {10, 20, 30, 40}) save(store, state_at(step, 1), 2);
    store.set_aside_after({.epoch = 2, .step = 20});
    CHECK(store.list() == std::vector<int64_t>{20, 10});
    CHECK_THROWS_WITH(
        save(store, state_at(35, 1), 2),
        Catch::Contains(
            "step 35 of attempt 1 is no part of the run any more: attempt 2 went on from step 20"));
    save(store, state_at(25, 2), 2);
    CHECK(store.list() == std::vector<int64_t>{25, 20, 10});
    const auto has_step_40 = [&] { return objects.objects().count("p/step-00000040.e1.a0/COMMIT") > 0; };
    ckpt::retain(store, {});
    CHECK(has_step_40());  // one checkpoint of the new line is not enough
    save(store, state_at(30, 2), 2);
    objects.settle();
    CHECK(ckpt::retain(store, {}) == std::vector<int64_t>{20});
    CHECK_FALSE(has_step_40());
    CHECK(store.list() == std::vector<int64_t>{30, 25});
  }
}

namespace {

/// Forwards to another client, and does something once: between the read of INDEX and the next put of it, or,
/// `at_get`, between its size and its content.
class Overtaken final : public ckpt::ObjectClient {
 public:
  Overtaken(FaultyObjects& inner, std::function<void()> other, bool at_get = false)
      : inner_(inner), other_(std::move(other)), at_get_(at_get) {}
  std::optional<ckpt::ObjectInfo> head(const std::string& key) override { return inner_.head(key); }
  size_t get(const std::string& key, uint64_t offset, std::span<std::byte> out) override {
    if (key.ends_with("/INDEX") && at_get_) std::exchange(other_, [] {})();
    return inner_.get(key, offset, out);
  }
  std::optional<size_t> get_if(const std::string& key, const std::string& version, uint64_t offset,
                               std::span<std::byte> out) override {
    return inner_.get_if(key, version, offset, out);
  }
  std::string put(const std::string& key, std::span<const std::byte> body) override {
    return inner_.put(key, body);
  }
  std::optional<std::string> put_if(const std::string& key, const std::string& version,
                                    std::span<const std::byte> body) override {
    if (key.ends_with("/INDEX") && !at_get_) ++tries, std::exchange(other_, [] {})();
    return inner_.put_if(key, version, body);
  }
  std::string start_upload(const std::string& key) override { return inner_.start_upload(key); }
  std::string put_part(const std::string& key, const std::string& upload, int number,
                       std::span<const std::byte> body) override {
    return inner_.put_part(key, upload, number, body);
  }
  std::string finish_upload(const std::string& key, const std::string& upload,
                            const std::vector<std::string>& etags) override {
    return inner_.finish_upload(key, upload, etags);
  }
  void abort_upload(const std::string& key, const std::string& upload) override {
    inner_.abort_upload(key, upload);
  }
  std::vector<ckpt::UnfinishedUpload> list_uploads(const std::string& prefix) override {
    return inner_.list_uploads(prefix);
  }
  std::vector<ckpt::ObjectInfo> list(const std::string& prefix) override { return inner_.list(prefix); }
  void remove(const std::string& key) override { inner_.remove(key); }
  int tries = 0;

 private:
  FaultyObjects& inner_;
  std::function<void()> other_;
  const bool at_get_;
};

ckpt::ObjectIndex index_of(const FaultyObjects& objects) {
  return ckpt::read_object_index(objects.objects().at("p/INDEX"));
}

}  // namespace

TEST_CASE("INDEX that another writer changed after it was read is read and changed again") {
  FaultyObjects objects;
  ObjectSetup other(objects);
  save(*other.store, state_at(10), 1);
  Overtaken overtaken(objects, [&] { save(*other.store, state_at(20), 1); });
  ObjectSetup setup(overtaken);
  save(*setup.store, state_at(30), 1);
  CHECK(overtaken.tries == 2);
  std::vector<int64_t> steps;
  for (const auto& name : index_of(objects).published) steps.push_back(name.step);
  CHECK(steps == std::vector<int64_t>{10, 20, 30});
}

TEST_CASE("INDEX that is replaced between its size and its content is read again") {
  FaultyObjects objects;
  ObjectSetup other(objects);
  for (const int64_t step : {10, 20}) save(*other.store, state_at(step), 1);
  other.store->set_aside_after({.epoch = 5, .step = 15});
  const auto listed = [&](const std::function<void()>& meanwhile) {
    Overtaken overtaken(objects, meanwhile, true);
    ObjectSetup setup(overtaken);
    const std::vector<int64_t> steps = setup.store->list();
    CHECK(setup.clock.now == 1e6);
    return steps;
  };
  // Step 20 is set aside before and after.
  CHECK(listed([&] { save(*other.store, state_at(15), 1); }) == std::vector<int64_t>{15, 10});  // longer
  CHECK(listed([&] { objects.poke("p/INDEX", R"({"set_aside":[{"epoch":5,"after_step":15}]})"); }) ==
        std::vector<int64_t>{15, 10});
}

TEST_CASE("a newer epoch that begins between the read of INDEX and its put is not overwritten") {
  FaultyObjects objects;
  ObjectSetup newer(objects, 700, 4);
  save(*newer.store, state_at(10), 1);
  Overtaken overtaken(objects, [&] { newer.store->set_aside_after({.epoch = 4, .step = 10}); });
  ObjectSetup older(overtaken, 700, 3);
  CHECK_THROWS_WITH(
      save(*older.store, state_at(20), 1),
      Catch::Contains("attempt 4 of this run has begun in s3://b/p; this writer has attempt 3"));
  CHECK(index_of(objects).newest_epoch() == 4);
  CHECK(index_of(objects).published.size() == 1);
  CHECK(older.store->list() == std::vector<int64_t>{10});
  // From then on it changes nothing, not even what was given up before.
  objects.put("p/step-00000007.e2.a0/shard", {});
  CHECK_THROWS_WITH(save(*older.store, state_at(5), 1), Catch::Contains("is out of date"));
  const auto before = objects.objects();
  CHECK_THROWS_WITH(older.store->set_aside_after({.epoch = 3, .step = 5}), Catch::Contains("is out of date"));
  CHECK_FALSE(older.store->remove(10, 3));
  older.store->clean({.current_epoch = 3}, {});
  CHECK(objects.objects() == before);
  newer.store->clean({.current_epoch = 4}, {});
  CHECK_FALSE(objects.objects().count("p/step-00000007.e2.a0/shard"));
  CHECK(newer.store->remove(10, 4));
}

TEST_CASE("a store that refuses the conditions of puts keeps checkpoints all the same") {
  FaultyObjects objects;
  objects.conditions = FaultyObjects::Conditions::refused;
  ObjectSetup setup(objects);
  const double begin = setup.clock.now;
  for (const int64_t step : {10, 20, 30}) save(*setup.store, state_at(step), 1);
  CHECK(setup.clock.now == begin);  // 501 is no failure that passes
  const auto asked = std::count_if(objects.effects().begin(), objects.effects().end(),
                                   [](const std::string& e) { return e.find(" if ") != std::string::npos; });
  CHECK(asked == 1);
  CHECK(index_of(objects).published.size() == 3);
  CHECK(loads(*setup.store, state_at(30)));
  CHECK(ckpt::retain(*setup.store, {}) == std::vector<int64_t>{10});
  // What changed since the read is seen there, too.
  ObjectSetup newer(objects, 700, 4);
  newer.store->set_aside_after({.epoch = 4, .step = 20});
  ObjectSetup older(objects, 700, 3);
  CHECK_THROWS_WITH(save(*older.store, state_at(40), 1), Catch::Contains("is out of date"));
}

TEST_CASE("whether a store keeps to the conditions of puts is found out") {
  using Conditions = FaultyObjects::Conditions;
  for (const Conditions conditions : {Conditions::known, Conditions::refused, Conditions::ignored}) {
    FaultyObjects objects;
    objects.conditions = conditions;
    ObjectSetup setup(objects);
    setup.client->put("k", {});
    CHECK(ckpt::keeps_conditions(*setup.client, "k") == (conditions == Conditions::known));
  }
  FaultyObjects refusing;
  refusing.put("k", {});
  refusing.fail_at(0, ObjectFault::refused, ~uint64_t(0));
  CHECK_THROWS_WITH(ckpt::keeps_conditions(refusing, "k"), Catch::Contains("403"));
}

TEST_CASE("a put under a condition whose answer is lost, or whose bytes arrive damaged, is made up for") {
  for (const ObjectFault fault :
       {ObjectFault::lost_answer, ObjectFault::wrong_body, ObjectFault::server_error})
    for (const bool is_new : {true, false}) {
      FaultyObjects objects;
      ObjectSetup setup(objects);
      const std::vector<std::byte> old(3, std::byte(1)), body(5, std::byte(2));
      if (!is_new) objects.put("k", old);
      const std::string version = is_new ? "" : objects.head("k")->version;
      objects.fail_at(0, fault);
      INFO(int(fault) << " " << is_new);
      CHECK(setup.client->put_if("k", version, body) == ckpt::etag_of(body));
      CHECK(objects.objects().at("k") == std::string(5, '\2'));
      CHECK_FALSE(setup.client->put_if("k", version, old));
      CHECK(objects.objects().at("k") == std::string(5, '\2'));
    }
}

TEST_CASE("what is written in INDEX, and names of attempts, come back") {
  ckpt::ObjectIndex index;
  for (int64_t step = 1; step <= 70; ++step) index.add({step, 3, 0, step % 2 ? "0f" : ""});
  index.add({70, 3, 0, ""});
  CHECK(index.published.size() == 64);
  CHECK((index.published.front().step == 7 && index.published.back().step == 70));
  CHECK(index.begin({.epoch = 2, .step = 50}));
  CHECK(index.begin({.epoch = 3, .step = 60}));
  CHECK_FALSE(index.begin({.epoch = 3, .step = 60}));
  CHECK(index.begin({.epoch = 4, .step = 55}));  // sets aside what epoch 3 does
  CHECK(index.set_aside == std::vector<ckpt::ObjectIndex::SetAside>{{50, 2}, {55, 4}});
  CHECK(index.newest_epoch() == 4);
  CHECK(index.against(1, 51)->epoch == 2);
  CHECK(index.against(3, 56)->epoch == 4);
  CHECK_FALSE(index.against(3, 55));
  CHECK_FALSE(index.against(4, 99));
  const ckpt::ObjectIndex again = ckpt::read_object_index(index.text());
  CHECK((again.published == index.published && again.set_aside == index.set_aside));
  for (const char* other : {"step-00000001.e1.a0.", "step-00000001.e1.a0.xy", "step-1.e1.a0",
                            "step-00000001.e1", "step-00000001.e1.a0x0f", "step-00000001.e1.a00"})
    CHECK_FALSE(ckpt::attempt_of(other));
}

TEST_CASE("retention of an object store: milestones, the newest good ones, nothing left of the others") {
  FaultyObjects objects;
  ObjectSetup setup(objects);
  ckpt::Store& store = *setup.store;
  for (const int64_t step : {10, 20, 30, 40, 50, 60}) save(store, state_at(step), 1);
  objects.remove(
      "p/step-00000050.e3.a0/manifest.json");  // damaged: does not count, and is left for inspection
  const auto current = store.saving(state_at(70).info);
  current->put_text("shard", "being written");
  CHECK(ckpt::retain(store, {.keep_last = 1, .keep_every_steps = 20, .current = current->where()}) ==
        std::vector<int64_t>{30, 10});
  CHECK(store.list() == std::vector<int64_t>{60, 50, 40, 20});
  CHECK(current->has("shard"));
  for (const auto& [key, content] : objects.objects())
    CHECK((key.find("step-00000030") == std::string::npos && key.find("step-00000010") == std::string::npos));
  ckpt::retain(store, {});
  CHECK_FALSE(current->has("shard"));
  CHECK(loads(store, state_at(60)));
  CHECK(loads(store, state_at(40)));
}

TEST_CASE("the newest checkpoint up to a step is kept: one that counts, or else what is there") {
  struct Row {
    std::optional<int64_t> upto;
    std::set<int64_t> not_counted;
    std::vector<int64_t> kept;
  };
  for (const Row& row : {Row{{}, {}, {60, 50}}, Row{5, {}, {60, 50}}, Row{10, {}, {60, 50, 10}},
                         Row{39, {}, {60, 50, 30}}, Row{40, {}, {60, 50, 40}}, Row{55, {}, {60, 50}},
                         Row{60, {}, {60, 50}}, Row{40, {40, 30}, {60, 50, 20}},
                         Row{30, {30, 20, 10}, {60, 50, 30}}, Row{55, {50, 40}, {60, 50, 40, 30}}}) {
    FaultyObjects objects;
    ObjectSetup setup(objects);
    for (const int64_t step : {10, 20, 30, 40, 50, 60}) save(*setup.store, state_at(step), 1);
    ckpt::retain(*setup.store, {.keep_upto = row.upto, .counts = [&](ckpt::StoredFiles& files) {
                                  return !row.not_counted.contains(files.named_step().value_or(-1));
                                }});
    CAPTURE(row.upto.value_or(-1), row.not_counted.size());
    CHECK(setup.store->list() == row.kept);
  }
}

TEST_CASE("what does not pass is not repeated, and waits grow to a limit") {
  FaultyObjects objects;
  HandClock clock;
  const auto client =
      ckpt::retrying(objects, clock, {.first_wait_s = 1, .longest_wait_s = 8, .deadline_s = 100});
  std::vector<std::byte> one(1);
  CHECK_THROWS_WITH(client->get("absent", 0, one), "the GET of absent failed: 404 No Such Key absent");
  CHECK(objects.requests() == 1);
  CHECK_FALSE(client->head("absent").has_value());
  objects.fail_at(0, ObjectFault::slow_down, ~uint64_t(0));
  const double begin = clock.now;
  const uint64_t before = objects.requests();
  CHECK_THROWS_WITH(client->put("k", one),
                    Catch::Contains("the PUT of k failed ") && Catch::Contains("503 Slow Down"));
  const uint64_t tries = objects.requests() - before;
  CHECK((clock.now - begin <= 100 && clock.now - begin > 80));
  CHECK((tries > 12 && tries < 30));  // waits of 1, 2, 4, 8, 8, ... s, up to half of each taken away
  // S3's own example of an ETag of parts has this form; other forms of ETag prove nothing.
  CHECK(ckpt::etag_of({}) == "d41d8cd98f00b204e9800998ecf8427e");
  CHECK(ckpt::etag_of_parts({ckpt::etag_of({}), ckpt::etag_of({})}).ends_with("-2"));
  CHECK_FALSE(ckpt::etags_differ("opaque", ckpt::etag_of({})));
  CHECK(ckpt::etags_differ(ckpt::etag_of(one), ckpt::etag_of({})));
}
