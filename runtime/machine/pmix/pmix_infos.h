// PmixInfos is a list of pmix_info_t and owns all memory of it. libpmix reads the list during a call and
// until the call's callback, and frees none of it.
//
// Only runtime/machine/pmix/pmix_*.cpp include this header, because it includes the header of PMIx.
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
  /// Adds the result of PMIx_generate_regex or PMIx_generate_ppn. Takes ownership of `generated`.
  void add_map(const char* key, char* generated, decltype(&PMIx_Info_load) info_load);
  /// Adds a list as one value, in its order.
  void add_array(const char* key, std::unique_ptr<PmixInfos> infos);

  /// Valid until the next add.
  pmix_info_t* data() { return infos_.data(); }
  size_t size() const { return infos_.size(); }

 private:
  pmix_value_t& add(const char* key, pmix_data_type_t type);

  struct Array {
    std::unique_ptr<PmixInfos> infos;
    pmix_data_array_t head;
  };
  std::vector<pmix_info_t> infos_;
  std::deque<std::string> texts_;  // a deque, because elements must not move when one is added
  std::deque<Array> arrays_;
  std::vector<char*> maps_;  // allocated by malloc
};

}  // namespace trainctl
