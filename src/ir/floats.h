// Floating point numbers on the host: those that a call brings along, and what the program computes from them and from sizes.
//
// They are evaluated once a call, before the program runs, so that what the program decides by them is a guard. Those that follow
// from elements of tensors are known only while it runs: they are part of the graph, and `evaluate` leaves them out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/symint.h"

namespace broach {

enum class Relation : uint8_t;

class HostFloats {
 public:
  using Id = int32_t;
  enum class Op : uint8_t { given, size, constant, element, add, sub, mul, div, pow, neg, min, max, function };

  // Number `index` of the call; `hint` is its value in the recorded call, here and below.
  Id given(size_t index, double hint);
  Id size(SymInt expression, int64_t hint, bool late);  // late: known only while the program runs
  Id constant(double value);
  Id element(double hint);  // a new one on each call
  // As Python computes it. Throws where Python raises an error: a division by zero, a power that overflows or is complex.
  Id compute(Op op, Id a, Id b = -1);

  // A function of Python's `math`, by its place in `functions()`. Nothing where Python raises an error; either way what decides that is
  // a guard.
  std::optional<Id> apply(size_t function, Id a);
  struct Function {
    const char *name, *operation;  // in `math`, and the library's for tensors
    double (*value)(double);
    double low, high;        // the ends of where it is defined and finite
    bool has_low, has_high;  // whether they belong to it
  };
  static std::span<const Function> functions();

  // How a number is computed; the operands are -1 where there are none. `size`: of what it is a size. `function`: of those that are
  // given, and of elements, the number.
  struct Step {
    Op op;
    Id a, b;
    SymInt size;
    size_t function;
  };
  Step step(Id id) const { return {node(id).op, node(id).a, node(id).b, node(id).expression, node(id).index}; }
  bool is_deferred(Id id) const { return node(id).deferred; }
  // What the program decided by numbers that are known only while it runs.
  struct Decision {
    Id a, b;
    Relation relation;
    bool answer;
  };
  std::vector<Decision> deferred() const;
  double hint(Id id) const { return node(id).hint; }
  // For the text form: all that was decided, where b < 0 says that the value of a is its hint's; and both as they were.
  const std::vector<Decision>& decisions() const { return guards_; }
  Id count() const { return static_cast<Id>(nodes_.size()); }
  static const char* name_of(Op op);
  static std::optional<Op> find_op(std::string_view name);  // but `function`
  void restore(const Step& step, double hint, bool late);
  void restore(const Decision& decision) { guards_.push_back(decision); }
  // The answer in the recorded call, which becomes a guard.
  bool ask(Id a, Relation relation, Id b);
  // The value as a constant: the given numbers behind it must be the same, bit for bit. Sizes behind it are left to the
  // caller. Throws for one that is known only while the program runs.
  double fix(Id id);
  // The sizes behind a number.
  std::vector<SymInt> sizes_behind(Id id) const;
  bool empty() const { return nodes_.empty(); }

  // The values in a call; false where a guard does not hold, and `why`, if not null, says which.
  bool evaluate(std::span<const double> given, std::span<const int64_t> symbols, std::vector<double>& values, std::string* why) const;
  std::vector<std::string> text() const;  // a line for each guard
  std::string text(Id id) const;

 private:
  struct Node {
    Op op;
    Id a = -1, b = -1;
    double hint = 0;  // of constants the value
    size_t index = 0;
    SymInt expression;
    bool deferred = false;
  };
  using Guard = Decision;  // b < 0: the value of a is its hint's, bit for bit
  const Node& node(Id id) const { return nodes_[static_cast<size_t>(id)]; }
  bool is_constant(Id id) const { return node(id).op == Op::constant; }
  Id add(Node n);
  Id power(Id a, Id b);
  std::string text(const Guard& g) const;

  std::vector<Node> nodes_;
  std::vector<Guard> guards_;
};

}  // namespace broach
