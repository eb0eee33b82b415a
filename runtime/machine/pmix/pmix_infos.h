// A list of pmix_info_t in memory of ours: libpmix reads it during a call and until the call's callback, and
// frees nothing of it.
//
// Only runtime/machine/pmix_*.cpp include this: it needs the header of PMIx.
#pragma once
#include <pmix_server.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace trainctl {

class PmixInfos {
 public:
  PmixInfos() = default;
  ~PmixInfos();
  PmixInfos(const PmixInfos&) = delete;
  PmixInfos& operator=(const PmixInfos&) = delete;

  void add_text(const char* key, const std::string& value);
  void add_uint32(const char* key, uint32_t value);
  void add_uint16(const char* key, uint16_t value);
  void add_rank(const char* key, int rank);
  /// What PMIx_generate_regex or PMIx_generate_ppn has made of a list; their result is freed.
  void add_map(const char* key, char* generated, decltype(&PMIx_Info_load) info_load);
  /// Infos as one value, in the order in which they were added to `infos`.
  void add_array(const char* key, std::unique_ptr<PmixInfos> infos);

  /// Valid until something is added.
  pmix_info_t* data() { return infos_.data(); }
  size_t size() const { return infos_.size(); }

 private:
  pmix_value_t& add(const char* key, pmix_data_type_t type);

  struct Array {
    std::unique_ptr<PmixInfos> infos;
    pmix_data_array_t head;
  };
  std::vector<pmix_info_t> infos_;
  std::deque<std::string> texts_;  // these do not move when one is added
  std::deque<Array> arrays_;
  std::vector<char*> maps_;  // of malloc
};

}  // namespace trainctl
