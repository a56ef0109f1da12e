// Parts of a program of which gradients keep nothing but what goes in and what comes out, as `torch.utils.checkpoint` asks for: what is
// made inside is computed again.
//
// In a trace they are operations that only divide it. In the graph, marks stand where a value goes in or comes out: copies with numbers of
// their own, which no pass merges or removes until `split_gradients` has read them. A gradient reads what it needs without one.
//
// The running statistics of a batch norm that is evaluated are eager's to read anew for gradients, and a training call in between writes them
// though nobody counts that. There they enter, so that nothing made of them is kept; where the call reads them they are held as they were.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "trace/trace.h"

namespace broach {

constexpr std::string_view kEnterRegion = "broach::enter_region", kLeaveRegion = "broach::leave_region",
                           kBeginGradients = "broach::begin_gradients";
// Where a region begins, the arguments are what it is given.
TraceOp divider(std::string_view schema, std::vector<TensorId> given = {});

enum class RegionMark : uint8_t { enter, leave, hold };
std::optional<RegionMark> region_mark(const Node& n);

// Where in a trace an operation stands, and where each storage got its elements. To be told of every operation in order.
class Regions {
 public:
  explicit Regions(const Trace& trace);
  // Whether an operation only divides the trace, which is then behind it.
  bool moves(const TraceOp& op);
  void note(const TraceOp& op);
  bool is_within() const { return now_ > kOutside; }
  // Whether the operation that is next reads what another part has made, within a region.
  bool enters_with(TensorId id) const { return now_ > kOutside && made_in(id) != now_; }
  // What it reads, marked where it comes from another part.
  Value read(GraphBuilder& b, TensorId id, Value v) const;
  Value given_back(GraphBuilder& b, TensorId id, Value v) const;

 private:
  static constexpr int kGradients = -1, kOutside = 0;
  int made_in(TensorId id) const;
  Value marked(GraphBuilder& b, Value v, int region, RegionMark mark) const;

  const Trace& t_;
  bool used_ = false;
  int now_ = kOutside, count_ = 0;
  std::map<int32_t, int> made_in_;    // by storage
  std::vector<TensorId> read_again_;  // by the operation that is next, for a gradient
  std::set<int32_t> statistics_;      // storages of what is read so
};

}  // namespace broach
