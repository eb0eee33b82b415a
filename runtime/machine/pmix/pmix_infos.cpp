#include "runtime/machine/pmix/pmix_infos.h"

#include <cstdlib>
#include <cstring>

#include "runtime/base/error.h"

namespace trainctl {

PmixInfos::~PmixInfos() {
  for (char* map : maps_) std::free(map);
}

pmix_value_t& PmixInfos::add(const char* key, pmix_data_type_t type) {
  pmix_info_t& info = infos_.emplace_back();
  std::memset(&info, 0, sizeof info);
  ENSURE(std::strlen(key) < sizeof info.key, "key = {}", key);
  std::strcpy(info.key, key);
  info.value.type = type;
  return info.value;
}

void PmixInfos::add_text(const char* key, const std::string& value) {
  add(key, PMIX_STRING).data.string = texts_.emplace_back(value).data();
}

void PmixInfos::add_uint32(const char* key, uint32_t value) { add(key, PMIX_UINT32).data.uint32 = value; }

void PmixInfos::add_uint16(const char* key, uint16_t value) { add(key, PMIX_UINT16).data.uint16 = value; }

void PmixInfos::add_rank(const char* key, int rank) {
  add(key, PMIX_PROC_RANK).data.rank = pmix_rank_t(rank);
}

void PmixInfos::add_map(const char* key, char* generated, decltype(&PMIx_Info_load) info_load) {
  add(key, PMIX_REGEX);
  info_load(&infos_.back(), key, generated, PMIX_REGEX);  // knows how long it is: it may hold zeros
  std::free(generated);
  maps_.push_back(infos_.back().value.data.bo.bytes);
}

void PmixInfos::add_array(const char* key, std::unique_ptr<PmixInfos> infos) {
  Array& array = arrays_.emplace_back();
  array.infos = std::move(infos);
  array.head = {.type = PMIX_INFO, .size = array.infos->size(), .array = array.infos->data()};
  add(key, PMIX_DATA_ARRAY).data.darray = &array.head;
}

}  // namespace trainctl
