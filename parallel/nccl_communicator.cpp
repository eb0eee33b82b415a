// Ranks with a GPU each, by NCCL. An exchange is one group of ncclSend and ncclRecv on the communicator's
// own stream; events order it after the earlier and before the later work of the caller's stream. NCCL's
// sums are used only if a job asks for them (`reduce`), because NCCL chooses their order of additions.
//
// A group of ranks is made by a new ncclCommInitRankConfig over the ranks' host communicator, also if it
// is a part of another group. ncclCommSplit is a collective of all of the parent's ranks, which must be
// idle for it, and a rank that is lost in it can neither be named nor left out. A new start needs only the
// members and begins with a message among them on the host, which names missing ranks.
//
// NCCL makes the connection of two ranks when they first exchange something, and keeps several MiB for each
// thread block of it. So a group connects only members between which data flow (connect), before the first
// step: what a pair exchanges first must not wait for what it does later.
//
// NCCL has no tags. Within an exchange, both sides sort the messages of each pair by their tags; messages
// of different exchanges are matched in the order of the exchanges.
#include <algorithm>
#include <set>

#include "kernels/cuda/runtime.h"
#include "parallel/back_off.h"
#include "parallel/communicator.h"
#include "parallel/nccl_link.h"
#include "parallel/transfer_rules.h"
#include "parallel/wait_observer.h"

namespace trainctl::parallel {
namespace {

using Clock = std::chrono::steady_clock;

/// Of streams (Backend::create_stream_before). A message that a computation waits for comes before others.
constexpr int kBulkPriority = 1, kUrgentPriority = 2;

struct NcclTicket : Ticket::State {
  std::shared_ptr<NcclLink> link;
  std::shared_ptr<NcclPending> pending;   // null after the wait
  ~NcclTicket() override {
    if (pending) link->abandon(*pending);
  }
};

/// Device memory beside the backend's, whose sum is planned to the byte: it belongs to what NCCL takes.
class GreetingBytes {
 public:
  explicit GreetingBytes(size_t bytes) {
    kernels::cuda::check_cuda(cudaMalloc(&data_, bytes), "start NCCL", "cudaMalloc");
  }
  GreetingBytes(const GreetingBytes&) = delete;
  GreetingBytes& operator=(const GreetingBytes&) = delete;
  ~GreetingBytes() { (void)cudaFree(data_); }
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> host, kernels::Backend& backend, double deadline_s,
                   Traffic traffic, const NcclSettings& settings, bool connects_later)
      : host_(std::move(host)), backend_(backend), traffic_(traffic), settings_(settings) {
    const bool uses_nccl = size() > 1 && traffic != Traffic::none;
    link_ = std::make_shared<NcclLink>(uses_nccl ? &nccl() : nullptr, backend_, name(), deadline_s);
    if (!uses_nccl) return;
    (void)stream();  // before those that NCCL makes for any group
    if (!connects_later) join(other_members());
  }
  ~NcclCommunicator() override { link_->shut_down(); }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  const std::string& name() const override { return host_->name(); }
  int world_rank(int r) const override { return host_->world_rank(r); }
  double deadline_s() const override { return link_->deadline_s(); }
  void set_deadline(double seconds) override {
    host_->set_deadline(seconds);
    link_->set_deadline(seconds);
  }
  double waited_s() const override { return waited_s_; }
  uint64_t sent_bytes() const override { return sent_bytes_; }
  Communicator& host() override { return *host_; }
  void check() override { link_->check(); }

  Ticket exchange(std::span<const Transfer> transfers, kernels::Stream* after) override {
    check_transfers(*this, transfers);
    if (transfers.empty()) return Ticket();
    ENSURE(carries(), "{}: made for no traffic", name());
    const auto pairs = match_own(*this, transfers);
    const std::vector<Transfer> messages = in_common_order(transfers);
    if (!messages.empty()) join_late(peers_of(messages));
    std::vector<int> peers;
    for (const Transfer& t : messages) peers.push_back(world_rank(t.peer));
    Ticket ticket = start(transfers, peers, after, [&] {
      if (!messages.empty()) link_->launch(peers, [&](ncclComm_t comm) { return give(messages, comm); });
      for (const auto& [send, receive] : pairs)
        if (send.bytes > 0) backend_.copy_on_device(stream(), receive.data, send.data, send.bytes);
    });
    for (const Transfer& t : transfers)
      if (t.kind == Transfer::send) sent_bytes_ += t.bytes;
    return ticket;
  }

  bool waits_on_device() const override { return true; }
  bool reduces() const override { return true; }
  Ticket reduce(std::span<const Reduction> reductions, kernels::Stream* after) override {
    for (const Reduction& r : reductions)
      ENSURE(r.data != nullptr && r.count > 0 && r.root >= 0 && r.root < size(),
             "{}: the sum of {} numbers for {} of {}", name(), r.count, r.root, size());
    if (reductions.empty() || size() == 1) return Ticket();
    ENSURE(carries(), "{}: made for no traffic", name());
    join_late(other_members());
    const std::vector<int> peers = others();
    Ticket ticket = start(as_transfers(reductions), peers, after, [&] {
      link_->launch(peers, [&](ncclComm_t comm) { return give(reductions, comm); });
    });
    for (const Reduction& r : reductions)
      if (r.root != rank()) sent_bytes_ += size_t(r.count) * size_of(r.dtype);
    return ticket;
  }

  bool test(Ticket& ticket) override {
    if (!ticket) return true;
    NcclTicket& own_ticket = own(ticket);
    if (!link_->is_done(*own_ticket.pending)) return false;
    collect(own_ticket);
    ticket.reset();
    return true;
  }

  void wait(Ticket& ticket, const char* what) override {
    if (!ticket) return;
    Ticket taken = std::move(ticket);   // emptied on every return and throw
    NcclTicket& own_ticket = own(taken);
    taken.name(what);
    const auto start = Clock::now();
    link_->set_waited(own_ticket.pending, what);
    BackOff back_off;
    BlockedWait blocked(name(), what);
    const std::vector<int>& peers = own_ticket.pending->peers;
    blocked.update(peers.size(), [&](auto report) { std::for_each(peers.begin(), peers.end(), report); });
    while (!link_->is_done(*own_ticket.pending)) back_off.pause();
    collect(own_ticket);
    waited_s_ += std::chrono::duration<double>(Clock::now() - start).count();
  }

  void wait(Ticket& ticket, const char* what, kernels::Stream& then) override {
    if (!ticket) return;
    Ticket taken = std::move(ticket);
    NcclTicket& own_ticket = own(taken);
    taken.name(what);
    link_->check();
    link_->set_waited(own_ticket.pending, what, then);
    then.wait(*own_ticket.pending->done);
    collect(own_ticket);   // the link keeps it under watch
  }

  void connect(std::span<const int> peers) override {
    if (size() == 1 || !carries() || has_joined_) return;
    was_connected_ = true;
    int64_t ranks_with_peers = peers.empty() ? 0 : 1;
    all_sum(*host_, {&ranks_with_peers, 1}, kInternalTag);
    if (ranks_with_peers > 0) join({peers.begin(), peers.end()});
  }

  std::unique_ptr<Communicator> subgroup(const Subgroup& group) override {
    link_->check();
    return std::make_unique<NcclCommunicator>(host_->subgroup(group), backend_, deadline_s(), group.traffic,
                                              settings_, group.connects_later);
  }
  std::unique_ptr<Communicator> twin() override { ENSURE(false, "{}: no transport is built on NCCL", name()); }

 private:
  bool carries() const { return size() == 1 || traffic_ != Traffic::none; }

  /// Where data flow there is a stream; others would share the few queues of the device with it.
  kernels::Stream& stream() {
    if (stream_) return *stream_;
    stream_ = backend_.create_stream_before(traffic_ == Traffic::bulk ? kBulkPriority : kUrgentPriority);
    auto* cuda = dynamic_cast<kernels::cuda::CudaStream*>(stream_.get());
    ENSURE(cuda != nullptr, "{}: NCCL moves memory of the CUDA backend, not of '{}'", name(),
           backend_.name());
    cuda_stream_ = cuda->handle();
    return *stream_;
  }

  /// At a first exchange that was not announced. NCCL's start takes and frees memory, which waits for
  /// everything under way on the device: not within a step.
  void join_late(const std::vector<int>& peers) {
    if (has_joined_) return;
    ENSURE(!was_connected_, "{}: an exchange, where no member named a peer when its members were connected",
           name());
    join(peers);
  }

  std::vector<int> other_members() const {
    std::vector<int> members;
    for (int r = 0; r < size(); r++)
      if (r != rank()) members.push_back(r);
    return members;
  }
  static std::vector<int> peers_of(const std::vector<Transfer>& messages) {
    std::set<int> peers;
    for (const Transfer& t : messages) peers.insert(t.peer);
    return {peers.begin(), peers.end()};
  }

  /// World ranks.
  std::vector<int> others() const {
    std::vector<int> ranks = other_members();
    for (int& r : ranks) r = world_rank(r);
    return ranks;
  }

  /// What an observer sees of sums: this rank's part goes to the roots, and what it is the root of comes from
  /// all others.
  std::vector<Transfer> as_transfers(std::span<const Reduction> reductions) const {
    std::vector<Transfer> transfers;
    if (!ObservedExchange::is_wanted()) return transfers;
    for (const Reduction& r : reductions) {
      const size_t bytes = size_t(r.count) * sizeof(float);
      if (r.root != rank()) transfers.push_back({Transfer::send, r.root, r.data, bytes, 0});
      for (int from = 0; r.root == rank() && from < size(); ++from)
        if (from != rank()) transfers.push_back({Transfer::receive, from, r.data, bytes, 0});
    }
    return transfers;
  }

  /// Enqueues the work of `give_work` behind the work of `after`; the link watches it.
  ///   transfers   for the observer
  template <typename GiveWork>
  Ticket start(std::span<const Transfer> transfers, const std::vector<int>& peers, kernels::Stream* after,
               GiveWork give_work) {
    auto ticket = std::make_unique<NcclTicket>();
    ticket->observed.begin(*this, transfers);
    const std::shared_ptr<NcclPending> pending = link_->make_pending(peers);
    if (after) {
      std::unique_ptr<kernels::Event> before = link_->take_event();
      after->record(*before);
      stream().wait(*before);
      link_->give_back(std::move(before));
    }
    stream().record(*pending->started);
    give_work();
    stream().record(*pending->done);
    link_->add(pending);
    ticket->link = link_;
    ticket->pending = pending;
    return Ticket(std::move(ticket));
  }

  /// The arrival of `peers`, then NCCL's own start with all members, then a message with each of `peers`:
  /// NCCL makes a connection when it is first used and both sides must be there for it, which an exchange of
  /// two ranks may not ask of the others.
  void join(const std::vector<int>& peers) {
    constexpr const char* kWhat = "start NCCL";
    has_joined_ = true;
    std::vector<char> here(2 * peers.size());
    const auto greetings = [&](char* at, int tag) {
      std::vector<Transfer> messages;
      for (size_t i = 0; i < peers.size(); i++) {
        messages.push_back({Transfer::send, peers[i], at + 2 * i, 1, tag});
        messages.push_back({Transfer::receive, peers[i], at + 2 * i + 1, 1, tag});
      }
      return messages;
    };
    host_->exchange_and_wait(greetings(here.data(), kInternalTag), kWhat);
    const NcclApi& api = nccl();
    ncclUniqueId id{};
    if (rank() == 0)
      if (const ncclResult_t result = api.get_unique_id(&id); result != ncclSuccess)
        throw Error(ErrorCode::kPreflight, fmt::format("{}: start NCCL: {} ({})", name(), api.error_string(result),
                                                       api.last_error(nullptr)));
    broadcast(*host_, 0, &id, sizeof id, kInternalTag);
    const int blocks = traffic_ == Traffic::edge ? settings_.edge_blocks : settings_.bulk_blocks;
    link_->join(id, rank(), size(), others(), blocks, settings_.traffic_class);
    if (peers.empty()) return;
    const uint64_t sent_before = sent_bytes_;
    const double waited_before_s = waited_s_;
    const GreetingBytes bytes(2 * peers.size());
    exchange_and_wait(greetings(bytes.data(), 0), kWhat);
    sent_bytes_ = sent_before;
    waited_s_ = waited_before_s;
  }

  using Communicator::exchange_and_wait;

  /// The messages to and from other ranks, those of each pair sorted by tag. NCCL has no empty messages.
  std::vector<Transfer> in_common_order(std::span<const Transfer> transfers) const {
    std::vector<Transfer> messages;
    for (const Transfer& t : transfers)
      if (t.peer != rank() && t.bytes > 0) messages.push_back(t);
    std::stable_sort(messages.begin(), messages.end(), [](const Transfer& a, const Transfer& b) { return a.tag < b.tag; });
    return messages;
  }

  ncclResult_t give(const std::vector<Transfer>& messages, ncclComm_t comm) const {
    const NcclApi& api = nccl();
    for (const Transfer& t : messages) {
      const ncclResult_t result = t.kind == Transfer::send ? api.send(t.data, t.bytes, ncclUint8, t.peer, comm, cuda_stream_)
                                                           : api.receive(t.data, t.bytes, ncclUint8, t.peer, comm, cuda_stream_);
      if (result != ncclSuccess) return result;
    }
    return ncclSuccess;
  }

  /// In place: NCCL reads the data of all ranks and writes only that of the root.
  ncclResult_t give(std::span<const Reduction> reductions, ncclComm_t comm) const {
    for (const Reduction& r : reductions) {
      const ncclDataType_t type = r.dtype == DType::f32 ? ncclFloat32 : ncclBfloat16;
      const ncclResult_t result =
          nccl().reduce(r.data, r.data, size_t(r.count), type, ncclSum, r.root, comm, cuda_stream_);
      if (result != ncclSuccess) return result;
    }
    return ncclSuccess;
  }

  void collect(NcclTicket& ticket) {
    link_->release(*ticket.pending);
    ticket.pending = nullptr;
  }

  NcclTicket& own(Ticket& ticket) const {
    auto* own_ticket = dynamic_cast<NcclTicket*>(ticket.state());
    ENSURE(own_ticket != nullptr && own_ticket->link == link_, "{}: a ticket of another communicator", name());
    return *own_ticket;
  }

  std::unique_ptr<Communicator> host_;
  kernels::Backend& backend_;
  const Traffic traffic_;
  const NcclSettings settings_;
  std::unique_ptr<kernels::Stream> stream_;  // null: nothing to move yet
  cudaStream_t cuda_stream_ = nullptr;
  std::shared_ptr<NcclLink> link_;
  bool has_joined_ = false;   // or tried to
  bool was_connected_ = false;
  double waited_s_ = 0;
  uint64_t sent_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host,
                                                     kernels::Backend& backend, double deadline_s,
                                                     Traffic traffic, const NcclSettings& settings) {
  ENSURE(deadline_s > 0, "deadline_s = {}", deadline_s);
  return std::make_unique<NcclCommunicator>(std::move(host), backend, deadline_s, traffic, settings, false);
}

NcclStatus nccl_status() {
  try {
    const NcclApi& api = nccl();
    return {.version = api.version, .path = api.path, .problem = ""};
  } catch (const Error& e) {
    return {.version = 0, .path = "", .problem = e.what()};
  }
}

}  // namespace trainctl::parallel
