// The graph: an immutable DAG of typed operations. Passes read one graph and build the next with a GraphBuilder, which
// infers result types and shares equal pure nodes.
#pragma once

#include <any>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "ir/floats.h"
#include "ir/type.h"

namespace broach {

enum class Op : uint8_t {
#define OP(name, ...) name,
#include "ir/ops.def"
#undef OP
};

enum class OpKind : uint8_t { source, unary, binary, compare, ternary, cast, view, heavy_view, reduce, heavy, routine, external };

// As the words of its row in ops.def, which says what they mean.
struct OpFacts {
  bool function = false, costly = false, activation = false, carries = false, moves = false, position = false, writes = false,
       checks = false;
  std::optional<Op> folds;
};

struct OpRow {
  const char* name;
  OpKind kind;
  int inputs;  // -1: any number
  const char* attrs;
  OpFacts facts;
};
const OpRow& row(Op op);
std::optional<Op> find_op(std::string_view name);
inline const char* name_of(Op op) { return row(op).name; }
inline OpKind kind_of(Op op) { return row(op).kind; }
inline bool is_elementwise(Op op) { return kind_of(op) >= OpKind::unary && kind_of(op) <= OpKind::cast; }
inline bool is_view(Op op) { return kind_of(op) == OpKind::view; }
inline bool is_reduce(Op op) { return kind_of(op) == OpKind::reduce; }
inline bool is_function(Op op) { return row(op).facts.function; }
inline bool is_costly(Op op) { return row(op).facts.costly; }
inline bool is_activation(Op op) { return row(op).facts.activation; }
inline bool carries(Op op) { return row(op).facts.carries; }
inline bool moves_only(Op op) { return row(op).facts.moves; }
inline bool is_index_reduction(Op op) { return row(op).facts.position; }
inline bool writes_elements(Op op) { return row(op).facts.writes; }
inline bool checks_index(Op op) { return row(op).facts.checks; }
inline std::optional<Op> fold_of(Op op) { return row(op).facts.folds; }

// One argument of an extern call. Tensors are named by their position among the node's inputs.
struct ExternArg {
  struct Input {
    uint32_t index;
    friend bool operator==(const Input&, const Input&) = default;
  };
  struct Inputs {  // a list of tensors; -1 for an absent one
    std::vector<int64_t> indices;
    bool optional_elements = false;
    friend bool operator==(const Inputs&, const Inputs&) = default;
  };
  struct InputNumber {
    uint32_t index;
    friend bool operator==(const InputNumber&, const InputNumber&) = default;
  };  // the element of an input, as a number
  // Something the core cannot name (a generator, an object of a custom class); compared by identity.
  struct Opaque {
    std::shared_ptr<const void> object;
    friend bool operator==(const Opaque&, const Opaque&) = default;
  };
  using Bools = std::vector<bool>;
  std::variant<std::monostate, Input, InputNumber, Inputs, SymInt, Scalar, std::string, Shape, std::vector<double>, Bools, Opaque> value;
  // Bit for bit: -0.0 is not 0.0, NaN is NaN.
  friend bool operator==(const ExternArg& a, const ExternArg& b);
};

// A call of the host's library: schema name with overload ("aten::sort.stable") and all arguments in schema order.
struct ExternCall {
  std::string schema;
  std::vector<ExternArg> args;
  std::vector<Type> results;
  // As eager made them; empty for contiguous. Behind these may be the operands', which the call then gets; empty for those that may lie
  // otherwise.
  std::vector<Shape> result_strides;
  // Has an effect beyond its results (random numbers, printing): never merged, dropped or reordered.
  bool effect = false;
  // Operands (by position among the node's inputs) that the call writes into. The graph stays functional: the runner copies
  // them first, and their new values are the last results.
  std::vector<int64_t> mutated;
  // Operands that eager had contiguous where the graph's value may lie otherwise; some kernels rely on it.
  std::vector<int64_t> contiguous;
  // Symbols that are known once the call has run: size `dim` of a result, or, where `result` is negative, the number it gives.
  struct Bind {
    SymbolId symbol;
    int32_t result, dim;
    friend bool operator==(const Bind&, const Bind&) = default;
  };
  std::vector<Bind> binds;
  friend bool operator==(const ExternCall&, const ExternCall&) = default;
};

enum class Attr : uint8_t {
  index,
  value,
  dtype,
  shape,
  dim,
  dims,
  expr,
  starts,
  steps,
  low,
  high,
  batch,
  stride,
  padding,
  dilation,
  transposed,
  output_padding,
  groups,
  descending,
  stable,
  sorted,
  k,
  skip_nan,
  right,
  scale,
  causal,
  device_kind,
  call,
};
const char* name_of(Attr a);

using AttrValue = std::variant<int64_t, Scalar, DType, SymInt, Shape, std::vector<int64_t>, std::shared_ptr<const ExternCall>>;
using Attrs = std::map<Attr, AttrValue>;
std::optional<Attr> find_attr(std::string_view name);
bool has_attr(Op op, Attr a);
AttrValue empty_value(Attr a);  // zero or an empty list, of the attribute's type

struct Node;

struct Value {
  const Node* node = nullptr;
  uint32_t index = 0;

  explicit operator bool() const { return node != nullptr; }
  const Type& type() const;
  const Shape& shape() const { return type().shape; }
  DType dtype() const { return type().dtype; }
  int rank() const { return type().rank(); }
  friend bool operator==(const Value&, const Value&) = default;
};

// A primitive and its attributes.
struct Primitive {
  Op op;
  Attrs attrs;

  template <class T>
  const T& get(Attr a) const {
    return std::get<T>(attrs.at(a));
  }
  int64_t integer(Attr a) const { return get<int64_t>(a); }
  const std::vector<int64_t>& ints(Attr a) const { return get<std::vector<int64_t>>(a); }
  const Shape& sizes(Attr a) const { return get<Shape>(a); }
  const ExternCall& call() const { return *get<std::shared_ptr<const ExternCall>>(Attr::call); }
};

struct Node : Primitive {
  uint32_t id;  // position in the graph: inputs have smaller ids
  std::vector<Value> inputs;
  std::vector<Type> results;
  int32_t line = -1;  // into Graph::lines: where in the program this comes from

  bool has_effect() const { return op == Op::extern_call && call().effect; }
};

inline const Type& Value::type() const { return node->results[index]; }

// What the program knows of a symbol. The hint is its value during capture.
struct SymbolInfo {
  // Where a call finds the value. `run_time`: what an extern gives, set as the call runs. `quotient`: another symbol divided, which
  // guards say leaves a known remainder.
  enum class Source : uint8_t { run_time, size, stride, integer, quotient };
  int64_t hint = 0;
  int64_t min = 0;
  // Size (the default where an input is named) or stride of dimension `dim` of input `input`; integer `dim` among those that
  // the program is given; quotient of symbol `input` by `dim`.
  int input = -1;
  int dim = -1;
  Source source = Source::run_time;
};

enum class Relation : uint8_t { eq, ne, lt, le };
const char* name_of(Relation r);
template <class Number>
bool holds(Number a, Relation r, Number b) {
  switch (r) {
    case Relation::eq: return a == b;
    case Relation::ne: return a != b;
    case Relation::lt: return a < b;
    default: return a <= b;
  }
}
// A fact that a call must satisfy: lhs relation rhs.
struct Guard {
  SymInt lhs;
  Relation relation;
  SymInt rhs;
  std::string str() const;
  friend bool operator==(const Guard&, const Guard&) = default;
};

// Symbols and the guards recorded while asking about them.
class Symbols {
 public:
  SymInt fresh(SymbolInfo info);
  // Answers from structure and ranges where that decides it; otherwise from the hints, and records the answer as a guard.
  bool ask(const SymInt& a, Relation relation, const SymInt& b);
  bool equal(const SymInt& a, const SymInt& b) { return ask(a, Relation::eq, b); }
  // Whether it holds for all values; records nothing.
  bool known_equal(const SymInt& a, const SymInt& b) const { return a == b; }
  int64_t hint(const SymInt& a) const;
  // The value as a constant; for a symbol by a guard that fixes it.
  int64_t specialize(const SymInt& a);
  Ranges ranges() const;
  bool declares(const SymInt& a) const;  // whether all its symbols are of these
  // The symbol behind it that becomes known last while a call runs; nothing if all are known before.
  std::optional<SymbolId> known_with(const SymInt& a) const;
  bool is_late(const SymInt& a) const { return known_with(a).has_value(); }
  // The same value with symbols replaced by what guards say they equal.
  SymInt resolved(const SymInt& a) const;

  const std::vector<SymbolInfo>& infos() const { return infos_; }
  std::vector<SymbolInfo>& infos() { return infos_; }
  const std::vector<Guard>& guards() const { return guards_; }
  void add_guard(Guard g);
  // Floating point numbers of the host, for which what is decided is kept likewise.
  HostFloats floats;

 private:
  void solve(const SymInt& expression);
  void solve_divisible(const SymInt& expression);
  void set_solved(SymbolId id, const SymInt& value);

  std::vector<SymbolInfo> infos_;
  std::vector<Guard> guards_;
  std::map<SymbolId, SymInt> solved_;  // by equations among the guards
};

// Where a node is computed and where its results lie, as passes decide it for the schedule. It changes no value. A graph that is built
// anew has the strides of its inputs and nothing else of it.
struct Placement {
  int within = -1;             // the node, a contraction, that computes this one before it stores its own result
  int in = -1;                 // the node in whose memory this one lies: an input, which it changes in place, or what it regroups
  bool early = false;          // `in` is written although a later step may fail
  std::vector<Shape> strides;  // by result; none: contiguous
  friend bool operator==(const Placement&, const Placement&) = default;
};

// What the caller wants of one graph output.
struct OutputRequest {
  Shape strides;        // of the new tensor; none: contiguous
  int into_input = -1;  // write into this input instead of a new tensor
  bool free = false;    // the strides may be others: those that the layouts pass finds best replace them
};

// Copies share their nodes.
class Graph {
 public:
  const std::deque<Node>& nodes() const { return *nodes_; }
  const std::vector<Value>& inputs() const { return inputs_; }
  const std::vector<Value>& outputs() const { return outputs_; }
  const std::vector<OutputRequest>& requests() const { return requests_; }  // by output
  const Placement& placement(const Node& n) const;
  Shape strides(const Value& v) const;                                                            // of the value where it is stored
  std::vector<Placement> placements() const;                                                      // by node id
  Graph with(std::vector<Placement> placements, std::vector<OutputRequest> requests = {}) const;  // without requests: its own
  const std::shared_ptr<Symbols>& symbols() const { return symbols_; }
  const std::vector<std::string>& lines() const { return *lines_; }

  std::string str() const;
  static Graph parse(std::string_view text);
  // Throws an Error that names the node if the graph breaks a rule of the IR.
  void verify() const;
  // How many nodes and outputs read each node, by node id.
  std::vector<int> use_counts() const;

 private:
  friend class GraphBuilder;
  std::shared_ptr<std::deque<Node>> nodes_ = std::make_shared<std::deque<Node>>();
  std::vector<Value> inputs_, outputs_;
  std::vector<OutputRequest> requests_;
  std::vector<Placement> placements_;  // by node id, as far as there are any
  std::shared_ptr<Symbols> symbols_ = std::make_shared<Symbols>();
  std::shared_ptr<std::vector<std::string>> lines_ = std::make_shared<std::vector<std::string>>();
};

// The result types of an operation; an Error if the operands do not fit it.
std::vector<Type> infer_types(Op op, std::span<const Value> inputs, const Attrs& attrs);

class GraphBuilder {
 public:
  GraphBuilder() = default;
  // A builder for the successor of `graph`: it shares its symbols and source lines.
  explicit GraphBuilder(const Graph& graph);
  explicit GraphBuilder(std::shared_ptr<Symbols> symbols) { graph_.symbols_ = std::move(symbols); }

  Value input(Type type) { return input(type, contiguous_strides(type.shape)); }
  Value input(Type type, Shape strides);
  Value emit(Op op, std::vector<Value> inputs, Attrs attrs = {});
  std::vector<Value> emit_all(Op op, std::vector<Value> inputs, Attrs attrs = {});
  void set_line(std::string line);  // for the nodes that follow
  void set_line_index(int32_t line) { line_ = line; }
  // What is not asked for is given as new, contiguous tensors.
  Graph finish(std::vector<Value> outputs, std::vector<OutputRequest> requests = {});
  Symbols& symbols() { return *graph_.symbols_; }
  const Graph& graph() const { return graph_; }

  // Shorthands; each leaves out what would do nothing.
  Value constant(Scalar value, DType dtype, Device device = {});
  Value full(const Shape& shape, Scalar value, DType dtype, Device device = {}) { return expand(constant(value, dtype, device), shape); }
  Value cast(Value x, DType dtype);
  Value reshape(Value x, Shape shape);
  Value permute(Value x, std::vector<int64_t> dims);
  // With leading dimensions added, as in PyTorch; sizes that are equal only by their hints are guarded.
  Value expand(Value x, const Shape& shape);
  Value slice(Value x, Shape starts, std::vector<int64_t> steps, Shape shape);
  Value reduce(Op op, Value x, std::vector<int64_t> dims, bool keep_dims = false);
  Value unary(Op op, Value x) { return emit(op, {x}); }
  // Operands are broadcast to a common shape; their element types must agree.
  Value binary(Op op, Value a, Value b);
  Value where(Value condition, Value a, Value b);
  Value dot(Value a, Value b, int64_t batch = 0) { return emit(Op::dot, {a, b}, {{Attr::batch, batch}}); }
  // The shape that broadcasting gives; unknown sizes are decided by their hints and guarded.
  Shape broadcast(const Shape& a, const Shape& b);

 private:
  Graph graph_;
  std::unordered_multimap<size_t, const Node*> shared_;
  int32_t line_ = -1;
};

// Rebuilds a graph node by node. `rule` sees each live node with its new inputs and may return replacement values; where it
// returns nothing the node is copied. Nodes that are dead before or after are dropped; inputs and effects stay.
using Rule = std::function<std::optional<std::vector<Value>>(GraphBuilder&, const Node& old, std::span<const Value> inputs)>;
Graph rewrite(const Graph& graph, const Rule& rule);

// Of what reads elements at positions: the dimensions of its result that are those of the positions, from the first to behind the last.
std::pair<size_t, size_t> dims_of_positions(const Node& n);

// Whether it gives one of its operands by their order, perhaps with another sign: rounding may as well come before as behind.
bool picks_by_order(Op op);
// Whether each element of the result is one of an operand, perhaps with another sign or type.
bool hands_on(const Node& n);
// By node: pointwise values that are tested for equality, as a gradient asks which elements were the largest. Whoever computes one again
// must find the same bits.
std::vector<bool> tested_for_equality(const Graph& graph);
// Those, and the ones of low precision from which a largest or least element is taken: the distance from it is a few of their roundings.
std::vector<bool> needed_as_rounded(const Graph& graph);

}  // namespace broach
