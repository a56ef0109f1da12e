// When an executable's values are in memory, and where.
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "runtime/executable.h"
#include "schedule/kernel_facts.h"

namespace broach {

void Executable::find_versions() {
  const auto& buffers = schedule_.buffers;
  std::map<int, int> first;  // buffers of inputs as they are given
  for (size_t a = 0; a < buffers.size(); ++a)
    if (buffers[a].kind == Buffer::Kind::input && buffers[a].version == 0) first.emplace(buffers[a].index, static_cast<int>(a));
  for (size_t b = 0; b < buffers.size(); ++b)
    if (auto it = buffers[b].version > 0 ? first.find(buffers[b].index) : first.end(); it != first.end())
      versions_.push_back({static_cast<int>(b), it->second});
}

void Executable::find_lifetimes(const Targets& targets) {
  std::vector<int> first(schedule_.buffers.size(), -1), last(first);
  for (size_t i = 0; i < schedule_.steps.size(); ++i)
    for (const auto* list : {&schedule_.steps[i].reads, &schedule_.steps[i].writes})
      for (int b : *list) {
        auto& f = first[static_cast<size_t>(b)];
        if (f < 0) f = static_cast<int>(i);
        last[static_cast<size_t>(b)] = static_cast<int>(i);
      }
  find_output_places(first, last);
  for (auto [from, output] : within_) steps_[static_cast<size_t>(first[static_cast<size_t>(output)])].within.push_back({from, output});
  std::vector<SymbolId> symbols;
  const std::set<int> outputs(schedule_.output_buffers.begin(), schedule_.output_buffers.end());
  std::map<int, int> versions;  // of inputs
  for (const Buffer& b : schedule_.buffers) versions[b.kind == Buffer::Kind::input ? b.index : -1]++;
  for (size_t b = 0; b < schedule_.buffers.size(); ++b) {
    const Buffer& buffer = schedule_.buffers[b];
    const bool returned = outputs.contains(static_cast<int>(b));
    if (first[b] >= 0) {
      CompiledStep &begin = steps_[static_cast<size_t>(first[b])], &end = steps_[static_cast<size_t>(last[b])];
      if (buffer.kind == Buffer::Kind::external && !returned) end.releases.push_back(static_cast<int>(b));
      if (buffer.kind == Buffer::Kind::output) begin.makes.push_back(static_cast<int>(b));
      if (buffer.kind == Buffer::Kind::input && !returned && versions[buffer.index] == 1) end.spends.push_back(static_cast<int>(b));
    }
    if (schedule_.buffers[b].kind != Buffer::Kind::arena || first[b] < 0) continue;
    parts_[part_on(schedule_.buffers[b].type.device, targets)].arena.push_back({static_cast<int>(b), first[b], last[b]});
    schedule_.buffers[b].elements.collect_symbols(symbols);
  }
  find_input_uses(last);
  find_places();
  find_intermediates();
  std::sort(symbols.begin(), symbols.end());
  symbols.erase(std::unique(symbols.begin(), symbols.end()), symbols.end());
  plan_symbols_ = std::move(symbols);
  if (plan_symbols_.empty()) fixed_plans_ = std::make_shared<const Plans>(plans({}, false));
}

// From its first element to its last, in elements.
static int64_t extent_of(const Buffer& buffer, std::span<const int64_t> symbols) {
  int64_t last = 0;
  for (size_t d = 0; d < buffer.type.shape.size(); ++d) {
    const int64_t size = buffer.type.shape[d].eval(symbols);
    if (size == 0) return 0;
    last += (size - 1) * buffer.strides[d].eval(symbols);
  }
  return last + 1;
}

// What a result may lie in is in use to the end. Of a call of the host's library nothing is known, but of those that may be recorded.
void Executable::find_input_uses(const std::vector<int>& last) {
  constexpr int kEnd = std::numeric_limits<int>::max();
  std::set<int> kept(schedule_.output_buffers.begin(), schedule_.output_buffers.end());
  for (size_t step = 0; step < steps_.size(); ++step)
    if (steps_[step].external && !steps_[step].external->records(false))
      kept.insert(schedule_.steps[step].reads.begin(), schedule_.steps[step].reads.end());
  for (auto [later, first] : versions_) kept.insert({later, first});
  for (size_t b = 0; b < schedule_.buffers.size(); ++b)
    if (const int buffer = static_cast<int>(b); schedule_.buffers[b].kind == Buffer::Kind::input)
      input_uses_.push_back({buffer, kept.contains(buffer) ? kEnd : last[b]});
}

// What a step writes, if it is one value, and what it reads in whose place that may lie.
Executable::Replacement Executable::replacement(size_t step) const {
  const auto& buffers = schedule_.buffers;
  Replacement out;
  auto add = [&](int from, bool is_placed_alike) {
    const Buffer &a = buffers[static_cast<size_t>(from)], &b = buffers[static_cast<size_t>(out.written)];
    if (is_placed_alike && a.elements == b.elements && a.type.device == b.type.device) out.read.push_back(from);
  };
  if (const auto* k = std::get_if<KernelStep>(&schedule_.steps[step].work); k && k->kernel->stores.size() == 1) {
    const auto own = static_cast<size_t>(k->kernel->stores[0].access.buffer);
    out.written = k->buffers[own];
    for (size_t at : overwritable(*k->kernel))
      add(k->buffers[at], (k->starts.empty() || k->starts[at] == k->starts[own]) && std::ranges::count(k->buffers, k->buffers[at]) == 1);
  }
  if (const auto* r = std::get_if<RoutineStep>(&schedule_.steps[step].work); r && steps_[step].works_in_place) {
    const Operand &from = r->operands[0], &to = r->results[0];
    auto reads = [&](const Operand& o) { return o.place.buffer == from.place.buffer; };
    out.written = to.place.buffer;
    const bool is_alike = from.type == to.type && from.place.offset == to.place.offset && from.place.strides == to.place.strides;
    if (from.place.buffer >= 0) add(from.place.buffer, is_alike && std::ranges::count_if(r->operands, reads) == 1);
  }
  return out;
}

// An intermediate that is read for the last time where an output may take its place lies in the output's memory from the beginning.
// Not where launches are recorded, as the addresses of outputs change.
void Executable::find_output_places(std::vector<int>& first, std::vector<int>& last) {
  std::map<int, int> lies_in;  // an output, or one of them
  for (size_t i = steps_.size(); i-- > 0;) {
    const Target* const target = parts_[steps_[i].part].target;
    if (!target || target->records()) continue;
    const auto [written, read] = replacement(i);
    if (written < 0) continue;
    const auto known = lies_in.find(written);
    const bool is_output = schedule_.buffers[static_cast<size_t>(written)].kind == Buffer::Kind::output;
    const int output = known != lies_in.end() ? known->second : is_output ? written : -1;
    if (output < 0 || first[static_cast<size_t>(output)] != static_cast<int>(i)) continue;
    for (int from : read) {
      const auto f = static_cast<size_t>(from);
      if (schedule_.buffers[f].kind != Buffer::Kind::arena || last[f] != static_cast<int>(i)) continue;
      lies_in[from] = output;
      within_.push_back({from, output});
      first[static_cast<size_t>(output)] = first[f];
      first[f] = last[f] = -1;
      break;
    }
  }
}

// Where a step is the last to read a value and the first to write another, the other may take its place.
void Executable::find_places() {
  std::map<int, std::pair<Part*, size_t>> in_arena;  // by buffer
  for (Part& p : parts_)
    for (size_t i = 0; i < p.arena.size(); ++i) in_arena[p.arena[i].buffer] = {&p, i};
  auto take_place = [&](int from, int written, int step) {
    const auto [part, position] = in_arena.at(written);
    if (const auto known = in_arena.find(from); known != in_arena.end()) {
      const auto [owner, other] = known->second;
      if (owner != part || owner->arena[other].last != step) return false;
      part->arena[position].over = static_cast<int>(other);
      return true;
    }
    const auto use = std::ranges::find(input_uses_, from, &LastUse::buffer);
    if (use == input_uses_.end() || use->step != step) return false;
    use->heir = static_cast<int>(position);
    return true;
  };
  for (size_t i = 0; i < steps_.size(); ++i) {
    const auto [written, read] = replacement(i);
    const auto found = in_arena.find(written);
    if (found == in_arena.end() || found->second.first->arena[found->second.second].first != static_cast<int>(i)) continue;
    for (int from : read)
      if (take_place(from, written, static_cast<int>(i))) break;
  }
}

// For runs in which they come and go.
void Executable::find_intermediates() {
  if (!works_by_step()) return;
  const auto& arena = parts_[0].arena;
  std::vector<size_t> order(arena.size()), own(arena.size());
  std::vector<bool> has_heir(arena.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return std::pair(arena[i].first, arena[i].last); });  // each behind what it lies over
  for (size_t i : order) {
    if (arena[i].over >= 0) {
      own[i] = own[static_cast<size_t>(arena[i].over)];
      has_heir[static_cast<size_t>(arena[i].over)] = true;
    } else {
      own[i] = intermediates_.size();
      intermediates_.emplace_back();
      steps_[static_cast<size_t>(arena[i].first)].begins.push_back(own[i]);
    }
    intermediates_[own[i]].push_back(arena[i].buffer);
  }
  for (size_t i = 0; i < arena.size(); ++i)
    if (!has_heir[i]) steps_[static_cast<size_t>(arena[i].last)].ends.push_back(own[i]);
}

LentMemory Executable::lent_by(const Frame& frame) const {
  constexpr int64_t kAlignment = 64;
  LentMemory out;
  const auto begin = reinterpret_cast<intptr_t>(frame.spent.data);
  for (const LastUse& u : input_uses_) {
    const Buffer& buffer = schedule_.buffers[static_cast<size_t>(u.buffer)];
    const auto at = reinterpret_cast<intptr_t>(frame.data[static_cast<size_t>(u.buffer)]) - begin;
    if (buffer.type.device != frame.spent.device || at < 0 || at >= frame.spent.bytes) continue;
    const int64_t from = at / kAlignment * kAlignment, bytes = extent_of(buffer, frame.symbols) * size_of(buffer.type.dtype);
    out.uses.push_back({from, (at + bytes - from + kAlignment - 1) / kAlignment * kAlignment, u.step, at == from ? u.heir : -1});
  }
  if (!out.uses.empty() && begin % kAlignment == 0) out.bytes = frame.spent.bytes / kAlignment * kAlignment;
  else out.uses.clear();
  return out;
}

int64_t Executable::bytes_of(int buffer, std::span<const int64_t> symbols) const {
  const Buffer& b = schedule_.buffers[static_cast<size_t>(buffer)];
  return b.elements.eval(symbols) * size_of(b.type.dtype);
}

Executable::Plans Executable::plans(std::span<const int64_t> symbols, bool by_step, const LentMemory& lent, Device device) const {
  Plans out;
  for (const Part& p : parts_) {
    std::vector<Lifetime> lifetimes;
    for (const auto& a : p.arena) {
      const int64_t bytes = bytes_of(a.buffer, symbols);
      lifetimes.push_back({by_step && bytes >= kComesByStep ? 0 : bytes, a.first, a.last, a.over});
    }
    out.by_part.push_back(plan_memory(lifetimes, p.device == device ? lent : LentMemory{}));
  }
  return out;
}

int64_t Executable::arena_bytes(std::span<const int64_t> symbols) const {
  int64_t sum = 0;
  for (const MemoryPlan& p : plans(symbols, false).by_part) sum += p.bytes;
  return sum;
}

std::shared_ptr<const Executable::Plans> Executable::plans_for(std::span<const int64_t> symbols, bool by_step, const LentMemory& lent,
                                                               Device device) const {
  std::vector<int64_t> key{by_step};
  for (SymbolId s : plan_symbols_) key.push_back(symbols[s]);
  if (lent.bytes > 0) key.push_back(lent.bytes);
  for (const LentMemory::Use& u : lent.uses) key.insert(key.end(), {u.offset, u.bytes, u.heir});
  {
    std::shared_lock lock(mutex_);
    if (auto known = plans_.find(key)) return *known;
  }
  auto made = std::make_shared<const Plans>(plans(symbols, by_step, lent, device));
  std::unique_lock lock(mutex_);
  return plans_.insert(std::move(key), std::move(made));
}

size_t Executable::remembered_plans() const {
  std::shared_lock lock(mutex_);
  return plans_.size();
}

void Executable::place_arena(size_t part, const MemoryPlan& plan, std::byte* arena, Frame& frame) const {
  const auto& buffers = parts_[part].arena;
  for (size_t i = 0; i < buffers.size(); ++i) {
    std::byte* const memory = !plan.is_lent.empty() && plan.is_lent[i] ? frame.spent.data : arena;
    frame.data[static_cast<size_t>(buffers[i].buffer)] = memory + plan.offsets[i];
  }
}

void Executable::begin_by_step(const CompiledStep& s, Frame& frame) const {
  for (int b : s.makes) frame.by_step->make(frame, b);
  for (auto [from, output] : s.within) frame.data[static_cast<size_t>(from)] = frame.data[static_cast<size_t>(output)];
  for (size_t i = 0; frame.has_large && i < s.begins.size(); ++i) {
    const std::vector<int>& buffers = intermediates_[s.begins[i]];
    const int64_t bytes = bytes_of(buffers[0], frame.symbols);
    if (bytes < kComesByStep) continue;
    std::byte* const data = frame.by_step->begin(s.begins[i], bytes);
    for (int b : buffers) frame.data[static_cast<size_t>(b)] = data;
  }
}

void Executable::end_by_step(const CompiledStep& s, Frame& frame) const {
  for (size_t i = 0; frame.has_large && i < s.ends.size(); ++i) frame.by_step->end(s.ends[i]);
  for (int b : s.spends) frame.by_step->spend(frame, b);
}

}  // namespace broach
