// Values that are stored for others and then copied into an input, as an optimizer's moments are: the kernel that computes one stores it in
// the input at once, where nobody reads the old elements any more and nothing that follows can fail.
#include <algorithm>

#include "schedule/exprs.h"
#include "schedule/schedule.h"

namespace broach {

namespace {

using Kind = KernelExpr::Kind;

bool holds(const std::vector<int>& list, int buffer) { return std::ranges::find(list, buffer) != list.end(); }

// A kernel that does nothing but copy all elements of a buffer to another, in their order.
bool copies_all(const KernelStep& step) {
  const Kernel& k = *step.kernel;
  if (k.stores.size() != 1 || k.axes.size() > 1 || k.exprs.size() != 2 || !step.starts.empty()) return false;
  const KernelExpr &load = k.exprs[0], &copy = k.exprs[1];
  const Access& to = k.stores[0].access;
  const SymInt at = k.axes.empty() ? SymInt(0) : SymInt::symbol(k.axes[0].id);
  return load.kind == Kind::load && load.predicate < 0 && copy.kind == Kind::op && copy.op == Op::copy && !k.stores[0].adds &&
         load.dtype == copy.dtype && load.access.index == at && to.index == at && load.access.dynamic.empty() && to.dynamic.empty() &&
         !k.axes.empty() == !load.access.index.is_constant();
}

class Through {
 public:
  Through(std::vector<Step>& steps, const std::vector<Buffer>& buffers) : steps_(steps), buffers_(buffers) {}

  void run() {
    for (size_t i = steps_.size(); i-- > 0;)
      if (const auto* copy = std::get_if<KernelStep>(&steps_[i].work); copy && copies_all(*copy) && !steps_[i].early) store(i);
  }

 private:
  // What the copy at `last` reads is stored where that writes, if it may be.
  void store(size_t last) {
    const int from = steps_[last].reads[0], into = steps_[last].writes[0];
    if (!may_be_one(from, into)) return;
    const auto maker = std::ranges::find_if(steps_, [&](const Step& s) { return holds(s.writes, from); });
    const auto first = static_cast<size_t>(maker - steps_.begin());
    if (first >= last || !may_store(*maker, from, into)) return;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Step& s = steps_[i];
      const bool is_between = i > first && i != last;
      if (is_between && (can_fail(s) || holds(s.reads, into) || holds(s.writes, into))) return;
      if (i != first && i != last && (holds(s.writes, from) || holds(s.writes, into))) return;
      if (is_between && holds(s.reads, from) && !std::holds_alternative<KernelStep>(s.work)) return;
    }
    for (Step& s : steps_)
      if (holds(s.reads, from) || holds(s.writes, from)) rename(s, from, into);
    steps_.erase(steps_.begin() + static_cast<std::ptrdiff_t>(last));
  }

  bool may_be_one(int from, int into) const {
    const Buffer &a = buffers_[static_cast<size_t>(from)], &b = buffers_[static_cast<size_t>(into)];
    auto is_it = [&](const Buffer& other) { return other.kind == Buffer::Kind::input && other.index == b.index; };
    return a.kind == Buffer::Kind::arena && b.kind == Buffer::Kind::input && std::ranges::count_if(buffers_, is_it) == 1 &&
           a.type.dtype == b.type.dtype && a.type.device == b.type.device && a.elements == b.elements;
  }

  // Each point stores one element, and reads of the input that one alone, before.
  static bool may_store(const Step& step, int from, int into) {
    const auto* work = std::get_if<KernelStep>(&step.work);
    if (!work || can_fail(step) || !work->starts.empty() || holds(step.reads, from) || holds(step.writes, into)) return false;
    const Kernel& k = *work->kernel;
    auto buffer = [&](const Access& a) { return work->buffers[static_cast<size_t>(a.buffer)]; };
    if (std::ranges::any_of(k.axes, &KernelAxis::reduced) ||
        std::ranges::any_of(k.exprs, [](const KernelExpr& e) { return e.kind == Kind::reduction; }))
      return false;
    const auto store = std::ranges::find_if(k.stores, [&](const KernelStore& s) { return buffer(s.access) == from; });
    if (store->adds || !store->access.dynamic.empty()) return false;
    return std::ranges::all_of(k.exprs, [&](const KernelExpr& e) {
      return e.kind != Kind::load || buffer(e.access) != into || (e.access.index == store->access.index && e.access.dynamic.empty());
    });
  }

  static void rename(Step& step, int from, int into) {
    auto& work = std::get<KernelStep>(step.work);
    const auto there = std::ranges::find(work.buffers, into);
    if (there != work.buffers.end()) {
      auto kernel = std::make_shared<Kernel>(*work.kernel);
      const auto to = static_cast<int>(there - work.buffers.begin());
      auto move = [&](Access& a) {
        if (work.buffers[static_cast<size_t>(a.buffer)] == from) a.buffer = to;
      };
      for (KernelExpr& e : kernel->exprs)
        if (e.kind == Kind::load) move(e.access);
      for (KernelStore& s : kernel->stores) move(s.access);
      work.kernel = std::move(kernel);
      work = without_idle_buffers(std::move(work));
    } else {
      std::ranges::replace(work.buffers, from, into);
    }
    for (auto* list : {&step.reads, &step.writes})
      if (holds(*list, from)) {
        std::erase(*list, from);
        if (!holds(*list, into)) list->push_back(into);
      }
  }

  std::vector<Step>& steps_;
  const std::vector<Buffer>& buffers_;
};

}  // namespace

void store_through(std::vector<Step>& steps, const std::vector<Buffer>& buffers) { Through(steps, buffers).run(); }

}  // namespace broach
