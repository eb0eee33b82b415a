// What `doctor` says about machines, and how a program knows the bundle it is of.
//
// Goal: each fault of a machine turns its own line, and no other, says what to do and decides whether runs are possible; a machine without
// a GPU is not ill. Method: facts of a sound machine, with one of them spoiled at a time.
#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <set>

#include "runtime/base/json.h"
#include "runtime/machine/bundle.h"
#include "runtime/machine/mpirun.h"
#include "runtime/observe/doctor.h"
#include "runtime/plan/device_model.h"

using namespace trainctl;

namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

DoctorFacts sound_machine() {
  DoctorFacts facts;
  facts.program_version = "1.2.3";
  facts.cpu = {.model = "A processor",
               .cores = 8,
               .usable = 8,
               .instruction_set = kernels::cpu::InstructionSet::v4};
  facts.memory = {.total_bytes = 64 * kGiB, .available_bytes = 60 * kGiB, .open_files = 20000};
  const auto folder = [](const char* path, const char* type) {
    return FolderFacts{.path = path, .type = type, .exists = true, .total_bytes = 100 * kGiB, .free_bytes = 50 * kGiB};
  };
  facts.shared_memory = folder("/dev/shm", "tmpfs");
  facts.scratch = folder("/tmp", "ext4");
  facts.here = folder("/home/me", "ext4");
  facts.mpi = {.launcher = "/usr/bin/mpirun", .launcher_text = "mpirun (Open MPI) 4.1.4", .library_text = "Open MPI v4.1.4, package: x"};
  facts.cuda.status.problem = "built without CUDA";
  return facts;
}

DoctorFacts gpu_machine() {
  DoctorFacts facts = sound_machine();
  facts.cuda.status = {.built = true, .devices = 1, .driver_version = 13000, .runtime_version = 13000, .problem = ""};
  facts.cuda.gpus = {{.index = 0,
                      .name = "NVIDIA H200",
                      .driver = "580.65",
                      .compute_major = 9,
                      .compute_minor = 0,
                      .multiprocessors = 132,
                      .total_bytes = 140 * kGiB,
                      .free_bytes = 139 * kGiB}};
  facts.cuda.libraries = {{.name = "cublaslt", .path = "/x/libcublasLt.so.13", .version = "13.1.0", .needed = true},
                          {.name = "nccl", .path = "/x/libnccl.so.2", .version = "2.28.9"}};
  return facts;
}

/// Names of the lines with this verdict.
std::set<std::string> lines_with(const DoctorReport& report, DoctorCheck::Verdict verdict) {
  std::set<std::string> names;
  for (const DoctorCheck& check : report.checks)
    if (check.verdict == verdict) names.insert(check.name);
  return names;
}

using Names = std::set<std::string>;

}  // namespace

TEST_CASE("a sound machine without a GPU is not ill") {
  const DoctorReport report = examine(sound_machine());
  CHECK(report.cpu_runs);
  CHECK_FALSE(report.gpu_runs);
  CHECK(report.warnings == 0);
  CHECK(lines_with(report, DoctorCheck::warn).empty());
  CHECK(lines_with(report, DoctorCheck::fail).empty());
  CHECK(lines_with(report, DoctorCheck::none) == Names{"cuda"});
  const std::string text = render_doctor(report, false);
  CHECK(text.find("A processor · 8 cores · x86-64-v4") != std::string::npos);
  CHECK(text.find("runs on the CPU: possible · runs on a GPU: not here\n") != std::string::npos);
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(render_doctor(report, true).find("\x1b[32mok  \x1b[0m") != std::string::npos);
}

TEST_CASE("each fault of a machine turns its own line and says what to do") {
  struct Fault {
    const char* line;
    DoctorCheck::Verdict verdict;
    bool gpu;
    std::function<void(DoctorFacts&)> spoil;
  };
  const auto warn = DoctorCheck::warn, fail = DoctorCheck::fail;
  const std::vector<Fault> faults = {
      {"cpu", fail, false, [](DoctorFacts& f) { f.cpu.instruction_set.reset(); }},
      {"cpu", warn, false, [](DoctorFacts& f) { f.cpu.instruction_set = kernels::cpu::InstructionSet::v2; }},
      {"memory", warn, false, [](DoctorFacts& f) { f.memory.available_bytes = kGiB / 2; }},
      {"memory", warn, false, [](DoctorFacts& f) { f.memory.group_limit_bytes = kGiB / 2; }},
      {"memory", warn, false, [](DoctorFacts& f) { f.memory.address_space_bytes = kGiB / 2; }},
      {"memory", warn, false, [](DoctorFacts& f) { f.memory.open_files = 100; }},
      {"shared memory", fail, false, [](DoctorFacts& f) { f.shared_memory.exists = false; }},
      {"left in memory", warn, false, [](DoctorFacts& f) { f.left_memory = {{"/dev/shm/trainctl-0-1", "/runs/a", 1}}; }},
      {"shared memory", warn, false, [](DoctorFacts& f) { f.shared_memory.free_bytes = kGiB / 16; }},
      {"shared memory", fail, false, [](DoctorFacts& f) { f.shared_memory.free_bytes = 1 << 20; }},
      {"scratch", fail, false, [](DoctorFacts& f) { f.scratch.problem = "read-only"; }},
      {"this folder", fail, false, [](DoctorFacts& f) { f.here.problem = "read-only"; }},
      {"this folder", warn, false, [](DoctorFacts& f) { f.here.free_bytes = kGiB / 2; }},
      {"mpirun", fail, false, [](DoctorFacts& f) { f.mpi.launcher = ""; }},
      {"mpirun", fail, false, [](DoctorFacts& f) { f.mpi.launcher_text = ""; }},
      {"mpirun", fail, false, [](DoctorFacts& f) { f.mpi.launcher_text = "HYDRA build details: 4.1.4"; }},
      {"mpirun", fail, false, [](DoctorFacts& f) { f.mpi.launcher_text = "mpirun (Open MPI) 5.0.1"; }},
      {"mpirun", warn, false, [](DoctorFacts& f) { f.mpi.launcher_text = "mpirun (Open MPI) 4.1.6"; }},
      {"cuda", warn, true,
       [](DoctorFacts& f) {
         f.cuda.status.devices = 0;
         f.cuda.status.problem = "no device is visible";
         f.cuda.gpus.clear();
       }},
      {"gpu 0", warn, true, [](DoctorFacts& f) { f.cuda.gpus[0].free_bytes = kGiB; }},
      {"gpu 0", warn, true, [](DoctorFacts& f) { f.cuda.gpus[0].ecc_uncorrected = 2; }},
      {"gpu 0", warn, true, [](DoctorFacts& f) { f.cuda.gpus[0].remapped_rows = 1; }},
      {"gpu 0", warn, true, [](DoctorFacts& f) { f.cuda.gpus[0].last_xid = 79; }},
      {"cublaslt", warn, true, [](DoctorFacts& f) { f.cuda.libraries[0].problem = "not found; install it"; }},
  };
  for (const Fault& fault : faults) {
    DoctorFacts facts = fault.gpu ? gpu_machine() : sound_machine();
    fault.spoil(facts);
    const DoctorReport report = examine(facts);
    const std::string text = render_doctor(report, false);
    INFO(text);
    CHECK(lines_with(report, fault.verdict) == Names{fault.line});
    CHECK(lines_with(report, fault.verdict == warn ? fail : warn).empty());
    CHECK(report.cpu_runs == (fault.verdict != fail));
    CHECK(report.warnings == (fault.verdict == warn ? 1 : 0));
    for (const DoctorCheck& check : report.checks) CHECK(check.advice.empty() == (check.verdict == DoctorCheck::ok));
  }
}

TEST_CASE("a machine with a GPU shows it, its peak and its libraries") {
  DoctorFacts facts = gpu_machine();
  DoctorReport report = examine(facts);
  CHECK(report.gpu_runs);
  const std::string text = render_doctor(report, false);
  CHECK(text.find("NVIDIA H200 · sm_90 · 132 multiprocessors · 139.00 GiB free of 140.00 GiB · driver 580.65 · bf16 peak 989 TFLOP/s") !=
        std::string::npos);
  CHECK(text.find("runtime 13.0 (driver 580 or later) · driver for CUDA 13.0 · 1 GPU") != std::string::npos);
  CHECK(text.find("13.1.0 · /x/libcublasLt.so.13") != std::string::npos);
  facts.cuda.gpus[0].name = "NVIDIA H1000";
  CHECK(render_doctor(examine(facts), false).find("peak unknown: a launch measures it") != std::string::npos);
  // NCCL is wanted by runs over several GPUs alone.
  facts.cuda.libraries[1].problem = "not found";
  report = examine(facts);
  CHECK(report.gpu_runs);
  CHECK(lines_with(report, DoctorCheck::none) == Names{"nccl"});
  facts.cuda.libraries[0].problem = "not found";
  CHECK_FALSE(examine(facts).gpu_runs);
}

TEST_CASE("doctor says of a GPU what plan says of it") {
  JobSpec job;
  job.compute = DType::bf16;
  DoctorFacts facts = gpu_machine();
  kernels::GpuFacts& gpu = facts.cuda.gpus[0];
  for (const char* name : {"NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L4", "NVIDIA H1000"})
    for (const uint64_t free_gib : {0, 1, 20}) {
      gpu.name = name;
      gpu.total_bytes = 22 * kGiB;
      gpu.free_bytes = free_gib * kGiB;
      const DeviceModel device = device_of_gpu(gpu, job.compute);
      INFO(name << ", " << free_gib);
      CHECK(device.kind == DeviceKind::cuda);
      CHECK(device.memory_bytes == free_gib * kGiB);
      const DoctorReport report = examine(facts);
      const Json said = Json::parse(doctor_json(report, facts))["facts"]["cuda"]["gpus"][0];
      CHECK(said["name"] == device.name);
      CHECK(said["free_bytes"] == device.memory_bytes);
      CHECK(said["total_bytes"] == device.total_bytes);
      if (device.flops_per_s > 0) CHECK(said["bf16_peak_flops_per_s"] == device.flops_per_s);
      CHECK(said["bf16_peak_flops_per_s"].is_null() == (device.flops_per_s == 0));
      // Memory that the driver does not report is not memory that is taken.
      CHECK(lines_with(report, DoctorCheck::warn) == (free_gib == 1 ? Names{"gpu 0"} : Names{}));
      const std::string found = free_gib == 0 ? "an unknown amount free of 22.00 GiB" : "00 GiB free of 22.00 GiB";
      CHECK(render_doctor(report, false).find(found) != std::string::npos);
    }
  // The facts of a GPU and the name that `plan --device` takes lead to the same peak and link.
  for (const auto& [facts_name, plan_name] : std::vector<std::pair<std::string, std::string>>{
           {"NVIDIA H100 80GB HBM3", "h100"}, {"NVIDIA A100-SXM4-40GB", "a100-40"}, {"NVIDIA L4", "l4"}}) {
    gpu.name = facts_name;
    const DeviceModel here = device_of_gpu(gpu, job.compute);
    const DeviceModel named = device_named(plan_name, job, DeviceKind::cuda);
    CHECK(here.flops_per_s == named.flops_per_s);
    CHECK(here.link_bytes_per_s == named.link_bytes_per_s);
    CHECK(here.flops_per_s > 0);
    CHECK(here.link_bytes_per_s > 0);
  }
}

TEST_CASE("doctor's JSON is JSON, whatever the machine says") {
  DoctorFacts facts = gpu_machine();
  facts.cpu.model = "a \"quoted\"\tmodel \xff";
  facts.here.path = "/tmp/new\nline";
  const Json j = Json::parse(doctor_json(examine(facts), facts));
  CHECK(j["v"] == 1);
  CHECK(j["cpu_runs"] == true);
  CHECK(j["gpu_runs"] == true);
  CHECK(j["facts"]["memory"]["free_bytes"] == 60 * kGiB);
  CHECK(j["facts"]["cuda"]["gpus"][0]["name"] == "NVIDIA H200");
  CHECK(j["facts"]["cuda"]["gpus"][0]["power_w"].is_null());
  CHECK(j["facts"]["here"]["path"] == "/tmp/new\nline");
  CHECK(j["checks"].size() == examine(facts).checks.size());
  CHECK(render_doctor(examine(facts), false).find("new line") != std::string::npos);
}

TEST_CASE("versions and quotas are read from what programs and the kernel say") {
  CHECK(version_in("mpirun (Open MPI) 4.1.4") == "4.1.4");
  CHECK(version_in("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4") == "4.1.4");
  CHECK(version_in("Open MPI v5.0.0rc1") == "5.0.0");
  CHECK(version_in("") == "");
  CHECK(version_in("no version 7 here") == "");
  CHECK(quota_of("200000 100000\n") == 2.0);
  CHECK(quota_of("50000 100000\n") == 0.5);
  CHECK(quota_of("max 100000\n") == 0);
  CHECK(quota_of("") == 0);
}

TEST_CASE("what is free is the least of what the machine, the control group and ulimit leave") {
  MemoryFacts memory{.total_bytes = 64 * kGiB, .available_bytes = 60 * kGiB};
  CHECK(memory.free_bytes() == 60 * kGiB);
  memory.group_limit_bytes = 16 * kGiB;
  memory.group_used_bytes = 4 * kGiB;
  CHECK(memory.free_bytes() == 12 * kGiB);
  memory.group_used_bytes = 17 * kGiB;
  CHECK(memory.free_bytes() == 0);
  memory.group_used_bytes = 0;
  memory.address_space_bytes = 8 * kGiB;
  CHECK(memory.free_bytes() == 8 * kGiB);
}

TEST_CASE("this machine can be looked at") {
  const DoctorFacts facts = gather_doctor_facts();
  CHECK(facts.cpu.cores >= 1);
  CHECK(facts.cpu.usable >= 1);
  CHECK(facts.memory.total_bytes > 0);
  CHECK(facts.memory.free_bytes() <= facts.memory.total_bytes);
  CHECK(facts.scratch.problem.empty());
  CHECK(facts.scratch.free_bytes > 0);
  CHECK(version_in(facts.mpi.launcher_text) == version_in(facts.mpi.library_text));
  CHECK(facts.mpi.bundle.empty());
  CHECK(examine(facts).cpu_runs);
}

// ---- the bundle -----------------------------------------------------------------------------------------------------------------------

TEST_CASE("a program is of a bundle when it stands in bin/ beside what OpenMPI needs") {
  const std::set<std::string> folders = {"/a b/lib/openmpi", "/a b/share/openmpi", "/a b/etc/openmpi", "/usr/lib/openmpi"};
  const auto exists = [&](const std::string& path) { return folders.contains(path); };
  CHECK(bundle_root("/a b/bin/trainctl", exists) == "/a b");
  CHECK(bundle_root("/a b/trainctl", exists) == "");
  CHECK(bundle_root("/a b/sbin/trainctl", exists) == "");
  CHECK(bundle_root("/usr/bin/trainctl", exists) == "");  // a machine with OpenMPI is no bundle
  CHECK(bundle_root("trainctl", exists) == "");
}

TEST_CASE("the bundle's own launcher comes first; a path is taken as it is") {
  std::set<std::string> programs = {"/b/bin/mpirun", "/opt/mpi/bin/mpirun", "mpirun"};
  const auto find = [&](const std::string& name) {
    return !programs.contains(name) ? "" : name.find('/') == std::string::npos ? "/usr/bin/" + name : name;
  };
  CHECK(find_launcher("mpirun", "/b", find) == "/b/bin/mpirun");
  CHECK(find_launcher("mpirun", "", find) == "/usr/bin/mpirun");
  CHECK(find_launcher("/opt/mpi/bin/mpirun", "/b", find) == "/opt/mpi/bin/mpirun");
  programs.erase("/b/bin/mpirun");
  CHECK(find_launcher("mpirun", "/b", find) == "/usr/bin/mpirun");
  programs.clear();
  CHECK(find_launcher("mpirun", "/b", find) == "");
  CHECK(is_of_bundle("/b/bin/mpirun", "/b"));
  CHECK_FALSE(is_of_bundle("/bb/bin/mpirun", "/b"));
  CHECK_FALSE(is_of_bundle("/usr/bin/mpirun", ""));
}

TEST_CASE("only the bundle's own mpirun is told to live in the bundle, and a nameless user gets a home") {
  LaunchInput input{.mpirun = "/a b/bin/mpirun",
                    .program = "/a b/bin/trainctl",
                    .run_directory = "/r",
                    .session_folder = "/tmp/s",
                    .shared_memory_folder = "/dev/shm/s",
                    .bundle = "/a b"};
  const auto text = [&] { return shell_text(mpirun_line(input)); };
  CHECK(text().find("OPAL_PREFIX='/a b' ") != std::string::npos);
  CHECK(text().find("OPAL_PKGLIBDIR='/a b/lib/openmpi' ") != std::string::npos);
  CHECK(text().find(" HOME=") == std::string::npos);
  input.mpirun = "/usr/bin/mpirun";
  CHECK(text().find("OPAL_PREFIX") == std::string::npos);
  input.homeless = true;
  CHECK(text().find(" HOME=/tmp/s ") != std::string::npos);
  input.env = {{"OPAL_PREFIX", "/mine"}};  // the user's word is last
  input.mpirun = "/a b/bin/mpirun";
  CHECK(text().find("OPAL_PREFIX=/mine ") != std::string::npos);
}
