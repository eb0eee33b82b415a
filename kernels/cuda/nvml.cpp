#include "kernels/cuda/nvml.h"

#include <array>
#include <mutex>
#include <string_view>

#include "kernels/library_search.h"

namespace trainctl::kernels::cuda {

namespace {

// The library's C interface, from its manual (NVML API Reference, R535 and later), because toolkits often
// lack its header.
using NvmlDevice = struct NvmlDeviceHandle*;
constexpr int kSuccess = 0;
constexpr unsigned kTemperatureGpu = 0, kClockSm = 1, kClockMemory = 2, kUncorrected = 1, kSinceReset = 0;

struct NvmlMemory {   // nvmlMemory_t of nvmlDeviceGetMemoryInfo; that of .._v2 begins with a version
  unsigned long long total = 0, free = 0, used = 0;
};

struct Nvml {
  int (*init)() = nullptr;
  int (*device_by_bus_id)(const char*, NvmlDevice*) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*uuid)(NvmlDevice, char*, unsigned) = nullptr;
  int (*memory_info)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*temperature)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*power_mw)(NvmlDevice, unsigned*) = nullptr;
  int (*power_limit_mw)(NvmlDevice, unsigned*) = nullptr;
  int (*clock_mhz)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*max_clock_mhz)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*ecc_errors)(NvmlDevice, unsigned, unsigned, unsigned long long*) = nullptr;
  int (*remapped_rows)(NvmlDevice, unsigned*, unsigned*, unsigned*, unsigned*) = nullptr;
  int (*clock_limits)(NvmlDevice, unsigned long long*) = nullptr;
};

/// Loads and initialises the library once for the process. It is never shut down, because other code of the
/// process may use it.
const Nvml* nvml() {
  static const Nvml* const library = []() -> const Nvml* {
    static constexpr std::string_view kFiles[] = {"libnvidia-ml.so.1"};
    const LoadedLibrary loaded = load_library("NVML", kFiles, {});
    if (!loaded) return nullptr;
    static Nvml f;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(loaded.find(name));
    };
    find(f.init, "nvmlInit_v2");
    find(f.device_by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
    find(f.driver_version, "nvmlSystemGetDriverVersion");
    find(f.uuid, "nvmlDeviceGetUUID");
    find(f.memory_info, "nvmlDeviceGetMemoryInfo");
    find(f.temperature, "nvmlDeviceGetTemperature");
    find(f.power_mw, "nvmlDeviceGetPowerUsage");
    find(f.power_limit_mw, "nvmlDeviceGetEnforcedPowerLimit");
    find(f.clock_mhz, "nvmlDeviceGetClockInfo");
    find(f.max_clock_mhz, "nvmlDeviceGetMaxClockInfo");
    find(f.ecc_errors, "nvmlDeviceGetTotalEccErrors");
    find(f.remapped_rows, "nvmlDeviceGetRemappedRows");
    find(f.clock_limits, "nvmlDeviceGetCurrentClocksThrottleReasons");
    return f.init && f.device_by_bus_id && f.init() == kSuccess ? &f : nullptr;
  }();
  return library;
}

/// The number that `function` reports; nullopt if the library lacks the function or it fails.
template <typename... Parameters, typename... Arguments>
std::optional<double> ask(int (*function)(NvmlDevice, Parameters...), NvmlDevice device, Arguments... arguments) {
  unsigned value = 0;
  if (!function || function(device, arguments..., &value) != kSuccess) return std::nullopt;
  return double(value);
}

std::optional<double> scaled(std::optional<double> value, double factor) {
  if (value) *value *= factor;
  return value;
}

/// Of the reasons for a low clock those that a GPU in order does not have; idle clocks and the limit of power
/// are none.
std::string slowed_by(unsigned long long reasons) {
  std::string text;
  for (const auto& [bit, name] : {std::pair{0x08ull, "hardware"},
                                  {0x20ull, "heat"},
                                  {0x40ull, "heat by hardware"},
                                  {0x80ull, "the power supply"}})
    if (reasons & bit) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

NvmlDevice find_device(const std::string& pci_bus_id) {
  const Nvml* f = nvml();
  NvmlDevice device = nullptr;
  return f && f->device_by_bus_id(pci_bus_id.c_str(), &device) == kSuccess ? device : nullptr;
}

GpuReadings read(const Nvml& f, NvmlDevice device) {
  return {.temperature_c = ask(f.temperature, device, kTemperatureGpu),
          .power_w = scaled(ask(f.power_mw, device), 1e-3),
          .sm_clock_mhz = ask(f.clock_mhz, device, kClockSm)};
}

}  // namespace

std::string management_driver_version() {
  const Nvml* f = nvml();
  std::array<char, 96> text{};
  return f && f->driver_version && f->driver_version(text.data(), unsigned(text.size())) == kSuccess ? text.data() : "";
}

std::function<GpuReadings()> management_readings(const std::string& pci_bus_id) {
  const NvmlDevice device = find_device(pci_bus_id);
  return [device] { return device ? read(*nvml(), device) : GpuReadings{}; };
}

void add_management_facts(GpuFacts& facts) {
  const NvmlDevice device = find_device(facts.pci_bus_id);
  if (!device) return;
  const Nvml* f = nvml();
  std::array<char, 96> text{};
  facts.driver = management_driver_version();
  if (f->uuid && f->uuid(device, text.data(), unsigned(text.size())) == kSuccess) facts.uuid = text.data();
  // A slice of a GPU (MIG) shares its bus id, so the reported memory is that of the whole GPU.
  if (NvmlMemory memory; f->memory_info && facts.name.find(" MIG ") == std::string::npos && f->memory_info(device, &memory) == kSuccess)
    facts.free_bytes = memory.free;
  const GpuReadings now = read(*f, device);
  facts.temperature_c = now.temperature_c;
  facts.power_w = now.power_w;
  facts.sm_clock_mhz = now.sm_clock_mhz;
  facts.power_limit_w = scaled(ask(f->power_limit_mw, device), 1e-3);
  facts.sm_clock_max_mhz = ask(f->max_clock_mhz, device, kClockSm);
  facts.memory_clock_mhz = ask(f->clock_mhz, device, kClockMemory);
  unsigned long long errors = 0;
  if (f->ecc_errors && f->ecc_errors(device, kUncorrected, kSinceReset, &errors) == kSuccess) facts.ecc_uncorrected = (long long)(errors);
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  if (f->remapped_rows && f->remapped_rows(device, &corrected, &uncorrected, &pending, &failed) == kSuccess) {
    facts.remapped_rows = (long long)(corrected) + uncorrected;
    facts.remap_pending = pending != 0;
    facts.remap_failed = failed != 0;
  }
  if (unsigned long long reasons = 0; f->clock_limits && f->clock_limits(device, &reasons) == kSuccess)
    facts.slowed_by = slowed_by(reasons);
}

}  // namespace trainctl::kernels::cuda
