// What the links of a job's ranks say of its nodes (runtime/machine/links.h). Pure.
//
// A link is compared with its like: those within a host, and those between hosts. It is slow below a third of
// what the fastest quarter of them has. A rank most of whose links of a kind are slow or wrong is to blame,
// and not its links; of any other link nothing says which end it is. Where more than a third of the hosts
// would be to blame for slow links, none is: then links differ by groups, as the network is built.
#pragma once
#include <string>
#include <vector>

#include "runtime/machine/links.h"
#include "runtime/observe/doctor.h"

namespace trainctl {

struct LinkBlame {
  std::string host;
  bool is_slow = false;  ///< else bits arrive or leave wrongly
  std::string cause;     ///< one sentence
};
struct LinkReport {
  DoctorCheck check;
  std::string expected;
  std::vector<LinkBlame> blamed;  ///< each host once for each kind
};
/// A rate, in powers of 1000: "10.0 GB/s", "1.25 MB/s".
std::string rate_text(double bytes_per_s);
LinkReport judge_links(const LinkResult& result);

/// Without the next step, which depends on what is done about it.
std::string render_links(const LinkReport& report, bool color);
/// {"v": 1, "ok", "hosts": [...], "rounds", "verdict", "found", "expected", "advice", "blamed", "links":
/// [...]}
std::string links_json(const LinkReport& report, const LinkResult& result);

}  // namespace trainctl
