// The text form: what is printed reads back as the same graph, and errors name line and column.
#include <doctest/doctest.h>

#include <set>

#include "random_graph.h"
#include "support/error.h"
#include "trace/trace.h"

using namespace broach;

namespace {

std::string error_of(std::string_view text) {
  try {
    Graph::parse(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

bool same(const Graph& a, const Graph& b) {
  auto values = [](const std::vector<Value>& v) {
    std::vector<std::pair<uint32_t, uint32_t>> out;
    for (const Value& x : v) out.emplace_back(x.node->id, x.index);
    return out;
  };
  bool ok = a.nodes().size() == b.nodes().size() && values(a.inputs()) == values(b.inputs()) &&
            values(a.outputs()) == values(b.outputs()) && a.symbols()->guards() == b.symbols()->guards();
  for (size_t i = 0; ok && i < a.nodes().size(); ++i) {
    const Node &x = a.nodes()[i], &y = b.nodes()[i];
    ok = x.op == y.op && values(x.inputs) == values(y.inputs) && x.results == y.results && x.attrs.size() == y.attrs.size();
    ok = ok && (x.line < 0 ? y.line < 0 : y.line >= 0 && a.lines()[static_cast<size_t>(x.line)] == b.lines()[static_cast<size_t>(y.line)]);
    for (const auto& [key, value] : x.attrs)
      if (auto call = std::get_if<std::shared_ptr<const ExternCall>>(&value)) ok = ok && **call == y.call();
      else if (key != Attr::value) ok = ok && y.attrs.at(key) == value;
      else ok = ok && str(std::get<Scalar>(value)) == str(y.get<Scalar>(key));
  }
  return ok;
}

void round_trip(const Graph& g) {
  std::string text = g.str();
  INFO(text);
  Graph back = Graph::parse(text);
  back.verify();
  CHECK(back.str() == text);
  CHECK(same(g, back));
}

}  // namespace

TEST_CASE("text: a graph reads as one expects") {
  GraphBuilder b;
  SymInt s0 = b.symbols().fresh({5, 2, 0, 1});
  b.symbols().add_guard({s0, Relation::ne, 4});
  Value x = b.input({DType::f32, {2, s0}, {}});
  b.set_line("model.py:12");
  Value y = b.binary(Op::add, x, x);
  b.set_line("model.py:13  # \"twice\"\\");
  Value z = b.reduce(Op::reduce_sum, y, {1});
  Graph g = b.finish({z, y});
  CHECK(g.str() ==
        "symbol s0(hint=5, min=2, input=0, dim=1)\n"
        "guard s0 != 4\n"
        "%0 = input(index=0) : f32[2, s0]\n"
        "%1 = add(%0, %0) : f32[2, s0]  # model.py:12\n"
        "%2 = reduce_sum(%1, dims=[1]) : f32[2]  # model.py:13  # \\\"twice\\\"\\\\\n"
        "return %2, %1\n");
  round_trip(g);
}

TEST_CASE("text: written by hand, with spaces, comments and ids of one's own") {
  Graph g = Graph::parse(
      "# a comment\n\n"
      "  %7=input( index=0 ):f32[4]   # C:\\x \"quoted\" \\n0\n"
      "%9 = neg(%7) : f32[4]\n"
      "return %9");
  CHECK(g.nodes().size() == 2);
  CHECK(g.lines()[0] == "C:\\x \"quoted\" \n0");
  CHECK(g.nodes()[1].line == -1);
  round_trip(g);
}

TEST_CASE("text: scalars of every kind") {
  GraphBuilder b;
  std::vector<Value> out;
  for (double d : {0.0, -0.0, 0.1, 1e300, 5e-324, -1e-7, 1e22, double(INFINITY), -double(INFINITY), double(NAN), 3.0})
    out.push_back(b.emit(Op::scalar, {}, {{Attr::value, Scalar(d)}, {Attr::dtype, DType::f64}}));
  for (int64_t i : {int64_t{0}, int64_t{-7}, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    out.push_back(b.emit(Op::scalar, {}, {{Attr::value, Scalar(i)}, {Attr::dtype, DType::i64}}));
    out.push_back(b.emit(Op::size, {}, {{Attr::expr, SymInt(i)}}));
  }
  for (bool v : {false, true}) out.push_back(b.emit(Op::scalar, {}, {{Attr::value, Scalar(v)}, {Attr::dtype, DType::b1}}));
  out.push_back(b.emit(Op::scalar, {}, {{Attr::value, Scalar(std::complex<double>(-0.5, INFINITY))}, {Attr::dtype, DType::c64}}));
  CHECK(out[0] != out[1]);
  Graph g = b.finish(out);
  round_trip(g);
  CHECK(g.str().find("value=0.1,") != std::string::npos);
}

TEST_CASE("text: devices and element types") {
  GraphBuilder b;
  std::vector<Value> out;
  for (DType t : {DType::u8, DType::i8, DType::i16, DType::i32, DType::i64, DType::f16, DType::f32, DType::f64, DType::c32, DType::c64,
                  DType::c128, DType::b1, DType::bf16, DType::opaque})
    out.push_back(b.input({t, {1, 2}, {}}));
  for (Device d : {Device{DeviceKind::cuda, 1}, Device{DeviceKind::cuda, -1}, Device{DeviceKind::cpu, 0}, Device{DeviceKind::meta, -1},
                   Device{DeviceKind::other, 2}})
    out.push_back(b.input({DType::f32, {}, d}));
  Graph g = b.finish(out);
  round_trip(g);
  CHECK(g.str().find("f32[]@cuda:1\n") != std::string::npos);
}

TEST_CASE("text: extern calls with every kind of argument") {
  GraphBuilder b;
  SymInt s0 = b.symbols().fresh({5, 2, 0, 0}), s1 = b.symbols().fresh({3, 0, -1, -1});
  Value x = b.input({DType::f32, {s0, 4}, {}}), y = b.input({DType::i64, {}, {}});
  auto call = std::make_shared<ExternCall>();
  call->schema = "mine::op.\"over\\load\"\n#";
  call->args = {{},
                {ExternArg::Input{1}},
                {ExternArg::InputNumber{0}},
                {ExternArg::Inputs{{0, -1, 1}, true}},
                {ExternArg::Inputs{{}, false}},
                {s0 + 3 * s1 - 1},
                {SymInt(3)},
                {SymInt(-3)},
                {Scalar(int64_t{3})},
                {Scalar(int64_t{-3})},
                {Scalar(3.0)},
                {Scalar(-double(INFINITY))},
                {Scalar(double(NAN))},
                {Scalar(1e-30)},
                {Scalar(true)},
                {Scalar(false)},
                {Scalar(std::complex<double>(1, -2))},
                {std::string("a \"b\" # \x01 \xc3\xa9")},
                {std::string()},
                {Shape{1, s0}},
                {Shape{}},
                {std::vector<double>{1.5, NAN}},
                {std::vector<double>{}},
                {ExternArg::Bools{true, false}},
                {ExternArg::Bools{}},
                {min(s0, s1)},
                {floordiv(s0, 2)}};
  call->results = {{DType::f32, {s1, 2}, {}}, {DType::i64, {s0}, {}}};
  call->result_strides = {{2, 1}, {s1}};
  auto many = b.emit_all(Op::extern_call, {x, y}, {{Attr::call, std::shared_ptr<const ExternCall>(call)}});
  auto silent = std::make_shared<ExternCall>();
  silent->schema = "print";
  silent->effect = true;
  b.emit_all(Op::extern_call, {}, {{Attr::call, std::shared_ptr<const ExternCall>(silent)}});
  auto single = std::make_shared<ExternCall>(*silent);
  single->results = {{DType::f32, {}, {}}};
  Value one = b.emit(Op::extern_call, {}, {{Attr::call, std::shared_ptr<const ExternCall>(single)}});
  Graph g = b.finish({many[1], many[0], one});
  round_trip(g);
}

// An object of the host is known by its number alone.
TEST_CASE("text: extern calls with objects, and what they need of their operands") {
  auto generator = std::make_shared<const int>(1), other = std::make_shared<const int>(2);
  auto call = std::make_shared<ExternCall>();
  call->schema = "o";
  call->args = {{ExternArg::Input{0}}, {ExternArg::Opaque{generator}}, {ExternArg::Opaque{other}}, {ExternArg::Opaque{generator}}};
  call->results = {{DType::f32, {}, {}}};
  call->mutated = {0};
  call->contiguous = {0, 1};
  call->binds = {{0, -1, 2}};
  GraphBuilder b;
  b.symbols().fresh({5, 2, -1, -1});
  Value x = b.input({DType::f32, {}, {}});
  Graph g = b.finish({b.emit(Op::extern_call, {x}, {{Attr::call, std::shared_ptr<const ExternCall>(call)}})});
  const std::string text = g.str();
  CHECK(text.find("call=\"o\"($0, <opaque 0>, <opaque 1>, <opaque 0>) mutates [0] contiguous [0, 1] binds [[s0, -1, 2]]) : f32[]\n") !=
        std::string::npos);
  Graph back = Graph::parse(text);
  CHECK(back.str() == text);
  const ExternCall& read = back.outputs()[0].node->call();
  CHECK(read.args[1] == read.args[3]);
  CHECK(!(read.args[1] == read.args[2]));
  CHECK(read.mutated == call->mutated);
  CHECK(read.contiguous == call->contiguous);
  CHECK(error_of("%0 = extern_call(call=\"o\"(<opaque 1>)) : f32[]") == "line 1, column 35: expected an opaque object up to 0");
}

TEST_CASE("text: numbers of the host") {
  GraphBuilder b;
  SymInt s0 = b.symbols().fresh({5, 2, 0, 0});
  HostFloats& f = b.symbols().floats;
  using Op = HostFloats::Op;
  const auto x = f.given(1, 0.1), n = f.size(s0 * 2, 10, false), late = f.size(s0, 5, true), e = f.element(-0.0);
  const auto sum = f.compute(Op::add, x, n), quotient = f.compute(Op::div, n, e == 0 ? x : x);
  f.ask(sum, Relation::lt, f.constant(3));
  f.apply(0, quotient);
  f.compute(Op::neg, late);
  f.fix(x);
  f.ask(e, Relation::eq, x);
  Graph g = b.finish({});
  CHECK(g.str().find("float f0 = given(1, hint=0.1)\nfloat f1 = size(2*s0, hint=10.0)\nfloat f2 = size(s0, hint=5.0, late)\n") !=
        std::string::npos);
  CHECK(g.str().find("fails f4 < f6\n") != std::string::npos);
  CHECK(g.str().find("fixed f0\n") != std::string::npos);
  Graph back = Graph::parse(g.str());
  CHECK(back.str() == g.str());
  const HostFloats& read = back.symbols()->floats;
  CHECK(read.text() == f.text());
  CHECK(read.deferred().size() == f.deferred().size());
  for (HostFloats::Id i = 0; i < f.count(); ++i) CHECK(read.is_deferred(i) == f.is_deferred(i));
  CHECK(error_of("float f1 = given(0, hint=0.1)") == "line 1, column 7: expected float f0");
  CHECK(error_of("float f0 = neg(f0, hint=0.1)") == "line 1, column 16: expected a float that is declared above, found 'f0'");
  CHECK(error_of("float f0 = foo(3, hint=0.1)") == "line 1, column 12: unknown computation 'foo'");
}

TEST_CASE("text: random graphs round-trip") {
  std::set<Op> seen;
  for (uint32_t seed = 0; seed < 700; ++seed) {
    CAPTURE(seed);
    testing::Options options;
    options.symbolic = seed % 2;
    options.contractions = true;
    options.routines = true;
    Graph g = testing::random_graph(seed, options);
    g.verify();
    for (const Node& n : g.nodes()) seen.insert(n.op);
    round_trip(g);
  }
  // Primitives that the generator leaves out are few and known.
  std::string missing;
  for (int i = 0; i <= static_cast<int>(Op::extern_call); ++i)
    if (!seen.contains(static_cast<Op>(i))) missing += std::string(" ") + name_of(static_cast<Op>(i));
  CHECK(missing ==
        " zero tan acosh hardsigmoid copy place is_nan fma bitcast update sum_rows add_rows attention attention_gradient extern_call");
}

TEST_CASE("text: attention round-trips") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {1, 2, 3, 4}, {}});
  round_trip(b.finish(b.emit_all(Op::attention, {x, x, x}, {{Attr::scale, Scalar(0.1)}, {Attr::causal, int64_t{1}}})));
}

TEST_CASE("text: where nodes are placed, and what is asked of outputs") {
  const std::string text = R"(%0 = input(index=0) : f32[4, 8] strides [1, 4]
%1 = input(index=1) : f32[8, 4]
%2 = dot(%0, %1, batch=0) : f32[4, 4]
%3 = relu(%2) : f32[4, 4] within %2 strides [1, 4]
%4 = update(%0, %3, starts=[0, 0]) : f32[4, 8] in %0 early
%5 = sort(%3, dim=0, descending=0, stable=0) : (f32[4, 4], i64[4, 4]) strides ([1, 4], [4, 1])
%6 = reshape(%3, shape=[16]) : f32[16] in %3
%7 = copy(%4, index=0) : f32[4, 8]
return %7 into 0, %5.0 strides [1, 4], %5.1, %6
)";
  const Graph g = Graph::parse(text);
  g.verify();
  CHECK(g.str() == text);
  CHECK(g.strides({&g.nodes()[5], 0}) == Shape{1, 4});
  CHECK(g.requests()[0].into_input == 0);
  auto error_with = [&](const std::string& part, const std::string& by) {
    try {
      Graph::parse(std::string(text).replace(text.find(part), part.size(), by)).verify();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  CHECK(error_with("within %2", "within %1") == "node %3 (relu): is computed within %1, which is no contraction");
  CHECK(error_with("%5.1, %6", "%5.1, %2") == "node %3 (relu): is computed within %2 and follows nothing there");
  CHECK(error_with("in %0 early", "in %5 early") == "line 5, column 51: a value that is not defined above");
  CHECK(error_with("in %3", "in %2") == "node %6 (reshape): cannot lie in %2");
  CHECK(error_with("([1, 4], [4, 1])", "([1, 4])") == "node %5 (sort): has strides of 1 results");
  CHECK(error_with("strides [1, 4]\n", "strides [4]\n") == "node %0 (input): 1 strides of f32[4, 8]");
  CHECK(error_with("into 0", "into 2") == "an output is written into input 2, which there is not");
}

TEST_CASE("text: errors name line and column") {
  const std::string x = "%0 = input(index=0) : f32[2]\n";
  auto error = [&](const std::string& line) { return error_of(x + line + "\nreturn %0\n"); };
  CHECK(error_of(x) == "line 2, column 1: the graph ends without a return");
  CHECK(error("%1 = foo(%0) : f32[2]") == "line 2, column 6: unknown operation 'foo'");
  CHECK(error("%1 = neg(%5) : f32[2]") == "line 2, column 10: a value that is not defined above");
  CHECK(error("%1 = neg(%0.1) : f32[2]") == "line 2, column 10: a node with 1 results has no result 1");
  CHECK(error("%0 = neg(%0) : f32[2]") == "line 2, column 1: %0 is defined twice");
  CHECK(error("%1 = neg(%0) : f32[3]") == "line 2, column 16: neg gives f32[2], not f32[3]");
  CHECK(error("%1 = neg(%0) : f33[2]") == "line 2, column 16: unknown element type \"f33\"");
  CHECK(error("%1 = neg(%0) : (f32[2], f32[2])") == "line 2, column 16: neg has 1 results, not 2");
  CHECK(error("%1 = neg(%0) : f32[2] x") == "line 2, column 23: unexpected 'x'");
  CHECK(error("%1 = neg(%0 : f32[2]") == "line 2, column 13: expected ')', found ': f32[2]'");
  CHECK(error("%1 = neg(%0, dims=[1]) : f32[2]") == "line 2, column 14: neg has no attribute 'dims'");
  CHECK(error("%1 = reduce_sum(%0, dims=[0], dims=[0]) : f32[]") == "line 2, column 31: attribute dims is given twice");
  CHECK(error("%1 = reduce_sum(%0, dims=[x]) : f32[]") == "line 2, column 27: expected an integer, found 'x'");
  CHECK(error("%1 = reduce_sum(%0, dims=[1]) : f32[]") == "line 2, column 6: reduce_sum: f32[2] has no dimension 1");
  CHECK(error("%1 = reduce_sum(%0) : f32[]") == "line 2, column 6: reduce_sum: attribute dims is missing or of another type");
  CHECK(error("%1 = size(expr=s0) : i64[]") == "line 2, column 16: symbol s0 is not declared");
  CHECK(error("%1 = size(expr=2 +) : i64[]").starts_with("line 2, column 16: symbolic integer: "));
  CHECK(error("%1 = input(index=0) : i64[]") == "line 2, column 6: expected input(index=1) with one type");
  CHECK(error("%1 = extern_call(call=\"x) : i64[]") == "line 2, column 23: a string without an end");
  CHECK(error("%1 = cast(%0, dtype=q) : f32[2]") == "line 2, column 21: unknown element type \"q\"");
  CHECK(error("%1 = add(%0) : f32[2]") == "line 2, column 6: add: 1 operands, expected 2");
  CHECK(error("symbol s1(hint=1)") == "line 2, column 8: expected symbol s0, found 's1'");
  CHECK(error("symbol s0(size=1)") == "line 2, column 11: a symbol has no 'size'");
  CHECK(error("guard 1 > 2") == "line 2, column 9: expected ==, !=, < or <=");
  CHECK(error("return %0") == "line 3, column 1: text after the return");
  CHECK(error("nonsense").starts_with("line 2, column 1: expected '%', found 'nonsense'"));
  CHECK(error("%99999999999999999999 = neg(%0) : f32[2]") == "line 2, column 2: expected a number");
}

TEST_CASE("text: a damaged graph is an error and never a crash") {
  testing::Options options;
  options.symbolic = true;
  const std::string text = testing::random_graph(11, options).str();
  std::mt19937 random(1);
  int errors = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = text;
    for (int k = 0; k < 2; ++k) {
      size_t at = random() % damaged.size();
      if (random() % 2) damaged.erase(at, 1 + random() % 4);
      else damaged[at] = "%()[]:=,.#\"s0-9\n"[random() % 16];
    }
    try {
      Graph::parse(damaged).verify();
    } catch (const Error& e) {
      CHECK(std::string(e.what()).starts_with("line "));
      ++errors;
    }
  }
  CHECK(errors > 1000);
}

TEST_CASE("text: a trace, one op a line") {
  Trace t;
  SymInt s0 = t.symbols->fresh({5, 2, 0, 0});
  t.tensors = {{{DType::f32, {s0, 2}, {}}, {2, 1}, 0, 0}, {{DType::f32, {s0}, {}}, {2}, 1, 0}};
  t.inputs = {0};
  t.outputs = {1, kNoTensor};
  t.lines = {"f.py:3"};
  t.ops.push_back({"aten::select.int", {{Arg::Tensor{0}}, {SymInt(1)}, {SymInt(1)}}, {1}, {}, true, false, 0});
  t.ops.push_back({"aten::add_.Scalar",
                   {{Arg::Tensor{1}}, {Scalar(2.0)}, {Arg::Number{int64_t{3}}}, {Arg::Tensors{{0, kNoTensor}, true}}, {}},
                   {1},
                   {1},
                   false,
                   true,
                   -1});
  const std::string text = t.str();
  CHECK(text ==
        "symbol s0(hint=5, min=2, input=0, dim=0)\n"
        "input t0: f32[s0, 2] strides [2, 1] offset 0 storage 0\n"
        "t1: f32[s0] strides [2] offset 1 storage 0 = aten::select.int(t0, 1, 1) view  # f.py:3\n"
        "t1: f32[s0] strides [2] offset 1 storage 0 = aten::add_.Scalar(t1, 2.0, number 3, {t0, none}?, none) mutates t1 effect\n"
        "return t1, none\n");
  t.verify();
  CHECK(Trace::parse(text).str() == text);
}

namespace {

const std::string kTrace =
    "symbol s0(hint=5, min=2, input=0, dim=0)\n"
    "float f0 = given(0, hint=0.1)\n"
    "input t0: f32[s0, 2]@cuda:1 strides [2, 1] offset s0 + 1 storage 0\n"
    "input t3: f64[] strides [] offset 0 storage -2\n"
    "tensor t4: c64[2] strides [1] offset 0 storage 7 conj neg\n"
    "numbers f0\n"
    "t1: f32[s0] strides [2] offset 1 storage 0 = aten::select.int(t0, 1, 1) view  # f.py:3\n"
    "t2: f32[s0] strides [1] offset 0 storage 1, none = \"my::op\"(t1, number 0.1 of t3, number 3 = s0 - 2, undefined, none, "
    "{t0, none}?, true, [s0], \"text\", <opaque 0>, <opaque 0>) mutates t1 binds [[s0, -1, 0]] effect\n"
    "read input 1 is 0.5\n"
    "read t2 is true  # f.py:4\n"
    "return t1, none\n";

std::string error_of_trace(const std::string& part, const std::string& by) {
  std::string text = kTrace;
  try {
    Trace::parse(text.replace(text.find(part), part.size(), by)).verify();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("text: a trace reads back as it was printed") {
  Trace t = Trace::parse(kTrace);
  t.verify();
  CHECK(t.str() == kTrace);
  CHECK(t.tensors[4].conj);
  CHECK(std::get<Arg::Number>(t.ops[1].args[2].value).symbol.has_value());
  CHECK(std::get<Arg::Tensor>(t.ops[1].args[3].value).id == kNoTensor);
  CHECK(std::holds_alternative<std::monostate>(t.ops[1].args[4].value));
  CHECK(t.reads[1].line == 1);
}

TEST_CASE("text: errors of a trace name the line, or the part") {
  CHECK(error_of_trace("return t1, none\n", "") == "line 11, column 1: the trace ends without a return");
  CHECK(error_of_trace("storage 0\n", "\n") == "line 3, column 58: expected 'storage', found the end of the line");
  CHECK(error_of_trace("aten::select.int(t0", "select(t0") == "line 7, column 46: expected an op, found 'select'");
  CHECK(error_of_trace("tensor t4", "tensor t5") == "line 12, column 1: t4 is not declared");
  CHECK(error_of_trace("t2: f32[s0]", "t0: f32[s0]") == "line 8, column 3: t0 is described otherwise above");
  CHECK(error_of_trace("numbers f0", "numbers f1") == "line 6, column 9: expected a float that is declared above, found 'f1'");
  CHECK(error_of_trace("select.int(t0", "select.int(t2") == "trace, aten::select.int: t2 is no input and no result before it");
  CHECK(error_of_trace("read input 1", "read input 2") == "trace, a value read: is of no input and no tensor");
}

TEST_CASE("text: a damaged trace is an error and never a crash") {
  std::mt19937 random(1);
  int errors = 0;
  for (int i = 0; i < 2000; ++i) {
    const size_t at = random() % kTrace.size();
    errors += error_of_trace(kTrace.substr(at, 1 + random() % 4), std::string(random() % 2, "t0:,[]=\n"[random() % 8])) != "no error";
  }
  CHECK(errors > 1000);
}
