// Facts about a GPU from NVIDIA's management library (NVML) that the CUDA runtime does not report:
// temperature, power, clocks, memory errors. The library comes with the driver and is loaded at first use.
// Values that it does not report stay nullopt.
#pragma once
#include "kernels/device.h"

namespace trainctl::kernels::cuda {

/// Sets the values that the library reports for the GPU at facts.pci_bus_id. Does not throw if the library is
/// missing or fails.
void add_management_facts(GpuFacts& facts);

/// A function that reads the GPU at this PCI bus id, which is looked up once. Without the library all
/// readings are nullopt.
std::function<GpuReadings()> management_readings(const std::string& pci_bus_id);

/// The driver's own version ("535.104.05"); "": not known.
std::string management_driver_version();

}  // namespace trainctl::kernels::cuda
