// Steps run on a device that has memory of its own: each buffer of the host's that such a step touches gets a mirror there, and before
// either side reads what the other wrote last, it is copied.
#include <algorithm>
#include <map>
#include <utility>

#include "schedule/schedule.h"
#include "support/error.h"

namespace broach {

namespace {

class Offloader {
 public:
  // `all`: of the host's work; else what was placed there.
  Offloader(Schedule schedule, Device device, bool all) : s_(std::move(schedule)), device_(device), all_(all) {}

  Schedule run() {
    std::vector<Step> steps = std::exchange(s_.steps, {});
    for (size_t b = 0; b < s_.buffers.size(); ++b) host_.push_back({is_given(s_.buffers[b])});
    for (Step& s : steps) {
      const bool on_host = std::holds_alternative<ExternStep>(s.work) || (!all_ && s.device != device_);
      for (int b : s.reads) bring(b, on_host);
      // Who writes a part leaves the rest as it was.
      for (int b : s.writes) bring(b, on_host);
      for (int b : s.writes)
        if (is_of_host(b)) side(b).host = on_host, side(b).device = !on_host;
      if (!on_host) move(s);
      s_.steps.push_back(std::move(s));
    }
    for (size_t b = 0; b < host_.size(); ++b)
      if (is_returned(static_cast<int>(b))) bring(static_cast<int>(b), true);
    return std::move(s_);
  }

 private:
  // Where the elements are that were written last; nowhere as long as nobody wrote any.
  struct Sides {
    bool host = false, device = false;
  };

  bool is_of_host(int b) const { return s_.buffers[static_cast<size_t>(b)].type.device == Device{}; }
  static bool is_given(const Buffer& b) { return b.kind == Buffer::Kind::input; }
  bool is_returned(int b) const {
    const Buffer& buffer = s_.buffers[static_cast<size_t>(b)];
    return buffer.kind == Buffer::Kind::input || buffer.kind == Buffer::Kind::output ||
           std::find(s_.output_buffers.begin(), s_.output_buffers.end(), b) != s_.output_buffers.end();
  }
  // Versions of an input lie in one memory.
  int memory(int b) const {
    const Buffer& buffer = s_.buffers[static_cast<size_t>(b)];
    if (buffer.kind != Buffer::Kind::input) return b;
    for (size_t i = 0; i < host_.size(); ++i)
      if (s_.buffers[i].kind == Buffer::Kind::input && s_.buffers[i].index == buffer.index) return static_cast<int>(i);
    return b;
  }
  Sides& side(int b) { return host_[static_cast<size_t>(memory(b))]; }

  int mirror(int b) {
    auto [it, fresh] = mirrors_of_.emplace(memory(b), static_cast<int>(s_.buffers.size()));
    if (fresh) {
      Buffer copy = s_.buffers[static_cast<size_t>(memory(b))];
      copy.kind = Buffer::Kind::arena, copy.index = -1, copy.version = 0, copy.type.device = device_;
      s_.buffers.push_back(std::move(copy));
    }
    return it->second;
  }

  void bring(int b, bool to_host) {
    if (!is_of_host(b)) return;
    Sides& at = side(b);
    if ((to_host ? at.host : at.device) || (!at.host && !at.device)) return;
    const int here = memory(b), there = mirror(b);
    Step step{CopyStep{to_host ? there : here, to_host ? here : there}, {to_host ? there : here}, {to_host ? here : there}, -1, device_};
    s_.steps.push_back(std::move(step));
    ++s_.copies;
    at = {true, true};
  }

  void move(Step& s) {
    auto swap = [&](int& b) {
      if (b >= 0 && is_of_host(b)) b = mirror(b);
    };
    auto swap_operand = [&](Operand& o) { swap(o.place.buffer); };
    s.device = device_;
    std::for_each(s.reads.begin(), s.reads.end(), swap);
    std::for_each(s.writes.begin(), s.writes.end(), swap);
    if (auto k = std::get_if<KernelStep>(&s.work)) std::for_each(k->buffers.begin(), k->buffers.end(), swap);
    if (auto c = std::get_if<ContractionStep>(&s.work)) {
      for (size_t i = 0; i < c->operands.size(); ++i) {
        if (is_of_host(c->operands[i].place.buffer)) c->weight_inputs[i] = -1;
        swap_operand(c->operands[i]);
      }
      if (c->bias) swap_operand(*c->bias);
      for (Epilogue& e : c->epilogue)
        if (e.operand) swap_operand(*e.operand);
      for (auto& side : c->side_results) swap_operand(side.result);
      swap_operand(c->result);
    }
    if (auto r = std::get_if<RoutineStep>(&s.work)) {
      std::for_each(r->operands.begin(), r->operands.end(), swap_operand);
      std::for_each(r->results.begin(), r->results.end(), swap_operand);
    }
  }

  Schedule s_;
  Device device_;
  bool all_;
  std::vector<Sides> host_;        // by buffer of the host; of an input's first one for all of its versions
  std::map<int, int> mirrors_of_;  // buffers of the device
};

}  // namespace

Schedule offload(Schedule schedule, Device device) { return Offloader(std::move(schedule), device, true).run(); }

Schedule bridge(Schedule schedule, Device device) { return Offloader(std::move(schedule), device, false).run(); }

}  // namespace broach
