// A library to preload: one core of one machine computes products wrongly, one bit of each.
//
//   TRAINCTL_TEST_WRONG_CORE=HOST:CORE   the name of the machine, and the core as the kernel numbers it
#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace {

bool is_wrong_here() {
  const char* const wrong = std::getenv("TRAINCTL_TEST_WRONG_CORE");
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return wrong && wrong == std::string(host) + ":" + std::to_string(::sched_getcpu());
}

}  // namespace

extern "C" dnnl_status_t DNNL_API dnnl_primitive_execute(const_dnnl_primitive_t primitive,
                                                         dnnl_stream_t stream, int count,
                                                         const dnnl_exec_arg_t* arguments) {
  static const auto execute =
      reinterpret_cast<decltype(&dnnl_primitive_execute)>(::dlsym(RTLD_NEXT, "dnnl_primitive_execute"));
  static const auto data_of = reinterpret_cast<decltype(&dnnl_memory_get_data_handle)>(
      ::dlsym(RTLD_NEXT, "dnnl_memory_get_data_handle"));
  const dnnl_status_t status = execute(primitive, stream, count, arguments);
  if (status != dnnl_success || !is_wrong_here()) return status;
  for (int i = 0; i < count; ++i) {
    void* data = nullptr;
    if (arguments[i].arg != DNNL_ARG_DST || data_of(arguments[i].memory, &data) != dnnl_success || !data)
      continue;
    static_cast<uint8_t*>(data)[1] ^= 1;  // of the first element, in f32 as in bf16
  }
  return status;
}
