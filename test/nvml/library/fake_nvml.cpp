// A libnvidia-ml.so.1 with one GPU, whose readings the test sets.
#include "test/nvml/library/fake_nvml.h"

#include <cstdio>
#include <cstring>

extern "C" {

FakeNvml fake_nvml;

int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  *device = &fake_nvml;
  return std::strcmp(bus_id, "0000:1B:00.0") == 0 ? 0 : 6;
}
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  return std::snprintf(text, size, "580.65") > 0 ? fake_nvml.status : 1;
}
int nvmlDeviceGetTemperature(void*, unsigned, unsigned* value) {
  *value = fake_nvml.temperature_c;
  return fake_nvml.status;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* value) {
  *value = fake_nvml.power_mw;
  return fake_nvml.status;
}
int nvmlDeviceGetClockInfo(void*, unsigned, unsigned* value) {
  *value = fake_nvml.clock_mhz;
  return fake_nvml.status;
}
int nvmlDeviceGetTotalEccErrors(void*, unsigned kind, unsigned counter, unsigned long long* value) {
  *value = kind == 1 && counter == 0 ? fake_nvml.uncorrected : 99;
  return fake_nvml.status;
}
int nvmlDeviceGetRemappedRows(void*, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  *corrected = fake_nvml.corrected_rows;
  *uncorrected = fake_nvml.uncorrected_rows;
  *pending = fake_nvml.pending;
  *failed = fake_nvml.failed;
  return fake_nvml.status;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* value) {
  *value = fake_nvml.clock_limits;
  return fake_nvml.status;
}
}
