// Whether a value can be computed in a kernel, asked while kernels grow from their stores backwards.
//
// When a node joins, all that read it have joined before, so every position at which the kernel wants it is known.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/strides.h"
#include "schedule/space.h"

namespace broach {

// What is known of each value before kernels are made, by node id.
struct Storage {
  std::vector<bool> must_store;                      // somebody needs it in memory
  std::vector<bool> absorbed;                        // computed by a contraction's epilogue
  std::vector<std::optional<MemoryWindow>> windows;  // of what is sure to be in memory
};

// Whether a kernel may compute it: anything but inputs, contractions with their epilogues, routines and calls.
bool is_fusible(const Node& n, const Storage& storage);

class Fit {
 public:
  explicit Fit(const Storage& storage) : storage_(&storage) {}

  // Computes the node at the point and stores it; false, and nothing changed, if it does not fit.
  bool add_root(const Node& n);
  // Computes the node wherever it is wanted; false, and nothing changed, if it does not fit.
  bool add(const Node& n);
  // Stores what is wanted once for each row of the kernel, and computes `below`, the last first: all that it is made of, down to reductions
  // of the row. False, and nothing changed, if it is no such value.
  bool add_row_root(const Node& n, std::span<const Node* const> below);

  // The kernel's root lies in this input, as `window` says. From then on it is noticed if other elements of the input are read.
  void overwrite(int input, MemoryWindow window) { overwritten_.emplace(input, std::move(window)); }
  bool reads_what_it_overwrites() const { return reads_overwritten_; }
  bool can_fail() const { return taken_ > 0; }  // by an index out of range

  const Space& space() const { return space_; }

 private:
  struct Demand {
    Index at;
    int condition;  // under which it is wanted, by position in conditions_; -1: always
    friend bool operator==(const Demand&, const Demand&) = default;
  };
  struct Condition {
    int outer;
    SymInt position, size;
    friend bool operator==(const Condition&, const Condition&) = default;
  };
  using Wants = std::vector<std::pair<Value, Demand>>;

  enum class Role : uint8_t { computed, root, row_root };

  bool add_again(const Node& n, Role role);
  bool store_row(const Node& n);
  bool compute(const Node& n, std::optional<AxisSplit>& split);
  bool find_operands(const Node& n, const Demand& d, Wants& wants, std::optional<AxisSplit>& split);
  bool find_view_operands(const Node& n, const Demand& d, Wants& wants);
  void find_take_operands(const Node& n, const Demand& d, Wants& wants);
  bool add_split(const Node& n, const AxisSplit& split);
  int condition(int outer, const SymInt& position, const SymInt& size);
  void want(const Value& v, Demand d);
  void notice_read(const Value& v, const Index& at);

  const Storage* storage_;
  Space space_;
  std::vector<std::pair<const Node*, Role>> members_;
  std::unordered_map<const Node*, std::vector<Demand>> demands_;
  std::vector<Condition> conditions_;
  std::set<const Node*> outside_;  // must be read from memory, since some view of it does not fit
  std::optional<std::pair<int, MemoryWindow>> overwritten_;
  bool reads_overwritten_ = false;
  size_t expressions_ = 0;  // about
  SymbolId taken_ = 0;
};

}  // namespace broach
