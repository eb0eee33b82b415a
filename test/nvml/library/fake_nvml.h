// What the fake management library of this test reports of its one GPU, at PCI bus id 0000:1B:00.0.
#pragma once

struct FakeNvml {
  unsigned long long uncorrected = 0, clock_limits = 0;
  unsigned corrected_rows = 0, uncorrected_rows = 0, pending = 0, failed = 0;
  unsigned temperature_c = 41, power_mw = 250000, clock_mhz = 1200;
  int status = 0;  ///< what each reading returns; 0: success
};
