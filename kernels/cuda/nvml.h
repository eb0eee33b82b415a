// What NVIDIA's management library tells about a GPU beyond the CUDA runtime: temperature, power, clocks, errors of its memory. It comes
// with the driver and is loaded when first asked; without it, or where it refuses, the facts stay absent.
#pragma once
#include "kernels/device.h"

namespace trainctl::kernels::cuda {

/// Fills in what the library knows about the GPU at facts.pci_bus_id. Never throws for a library that is absent or says no.
void add_management_facts(GpuFacts& facts);

/// The GPU at this PCI bus id, looked up once; empty readings without the library.
std::function<GpuReadings()> management_readings(const std::string& pci_bus_id);

/// The driver's own version ("535.104.05"), or "".
std::string management_driver_version();

}  // namespace trainctl::kernels::cuda
