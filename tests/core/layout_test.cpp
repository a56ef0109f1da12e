// Where values lie in memory.
#include <doctest/doctest.h>

#include <random>

#include "passes/passes.h"
#include "random_graph.h"
#include "run_compiled.h"
#include "trace/layout.h"
#include "trace/trace.h"

using namespace broach;

namespace {

// A product whose rows are odd, what is computed of it, and two products with that.
const std::string kOddRows = R"(%0 = input(index=0) : bf16[64, 2048]
%1 = input(index=1) : bf16[2048, 4099]
%2 = input(index=2) : bf16[4099, 2048]
%3 = dot(%0, %1, batch=0) : bf16[64, 4099]
%4 = cast(%3, dtype=f32) : f32[64, 4099]
%5 = reduce_max(%4, dims=[1]) : f32[64]
%6 = reshape(%5, shape=[64, 1]) : f32[64, 1]
%7 = expand(%6, shape=[64, 4099]) : f32[64, 4099]
%8 = sub(%4, %7) : f32[64, 4099]
%9 = cast(%8, dtype=bf16) : bf16[64, 4099]
%10 = dot(%9, %2, batch=0) : bf16[64, 2048]
%11 = permute(%9, dims=[1, 0]) : bf16[4099, 64]
%12 = dot(%11, %0, batch=0) : bf16[4099, 2048]
return %10, %12
)";

Module laid_out(const std::string& text, int64_t row_bytes) {
  Capabilities capabilities = all_capabilities();
  capabilities.row_bytes = row_bytes;
  Module m(std::make_shared<const Graph>(Graph::parse(text)));
  PassContext context;
  context.capabilities = &capabilities;
  run_passes(passes("separate_outputs"), m, context, {}, nullptr, nullptr);
  m.verify();
  return m;
}

std::string strides_of(const Module& m, size_t node) {
  std::string out;
  for (const SymInt& s : m.stages[0].graph->strides({&m.stages[0].graph->nodes()[node], 0})) out += cat(out.empty() ? "" : " ", s);
  return out;
}

}  // namespace

TEST_CASE("layouts: rows of large products begin where the target wants them") {
  CHECK(strides_of(laid_out(kOddRows, 0), 3) == "4099 1");
  const Module m = laid_out(kOddRows, 16);
  CHECK(strides_of(m, 3) == "4104 1");
  CHECK(strides_of(m, 9) == "4104 1");
  CHECK(strides_of(m, 8) == "4099 1");   // nobody's operand
  CHECK(strides_of(m, 12) == "2048 1");  // which is an output, and whose rows are whole
}

TEST_CASE("layouts: an output that may lie anywhere has whole rows, also where it is a product with its dimensions regrouped") {
  for (const bool free : {false, true}) {
    const std::string text = cat(R"(%0 = input(index=0) : bf16[64, 2048]
%1 = input(index=1) : bf16[2048, 4099]
%2 = dot(%0, %1, batch=0) : bf16[64, 4099]
%3 = reshape(%2, shape=[4, 16, 4099]) : bf16[4, 16, 4099]
%4 = exp(%3) : bf16[4, 16, 4099]
return %4, %3)",
                                 free ? " free\n" : "\n");
    const Module m = laid_out(text, 16);
    CHECK(strides_of(m, 2) == (free ? "4104 1" : "4099 1"));
    CHECK(strides_of(m, 3) == (free ? "65664 4104 1" : "65584 4099 1"));
    CHECK(m.stages[0].graph->requests()[1].strides == m.stages[0].graph->strides(m.stages[0].graph->outputs()[1]));
    const Schedule s = make_schedule(m.stages[0].graph, {});
    s.verify();
    const Buffer& given = s.buffers[static_cast<size_t>(s.output_buffers[1])];
    CHECK(given.strides == m.stages[0].graph->requests()[1].strides);
    CHECK(given.type.shape.size() == 3);
  }
}

TEST_CASE("layouts: rows are not apart where a view would need a copy") {
  const Module m = laid_out(R"(%0 = input(index=0) : bf16[64, 2048]
%1 = input(index=1) : bf16[2048, 4099]
%2 = input(index=2) : i64[5]
%3 = dot(%0, %1, batch=0) : bf16[64, 4099]
%4 = reshape(%3, shape=[262336]) : bf16[262336]
%5 = take(%4, %2, dim=0) : bf16[5]
return %5
)",
                            16);
  CHECK(strides_of(m, 3) == "4099 1");
}

TEST_CASE("layouts: rows apart give what dense ones do") {
  const Targets targets;
  if (!targets.has({}) || !targets.on({}).capabilities().contraction(Op::dot, DType::bf16)) return;  // no LLVM or no oneDNN
  const Graph g = Graph::parse(kOddRows);
  // Of whole numbers whose sums f32 holds, so that no order of summation shows.
  auto inputs = testing::random_inputs(g, 3);
  std::mt19937 random(3);
  for (HostTensor& t : inputs)
    for (int64_t i = 0; i < t.numel(); ++i) t.set(i, static_cast<double>(random() % 3) - 1);
  std::vector<std::vector<HostTensor>> results;
  for (int64_t row_bytes : {0, 16}) {
    const Module m = laid_out(kOddRows, row_bytes);
    Executable executable(make_schedule(m.stages[0].graph, {}), targets, {}, nullptr);
    const Schedule& s = executable.schedule();
    Frame frame;
    SerialThreads threads;
    frame.threads = &threads;
    frame.data.assign(s.buffers.size(), nullptr);
    auto in = inputs;
    for (size_t b = 0; b < s.buffers.size(); ++b)
      if (s.buffers[b].kind == Buffer::Kind::input) frame.data[b] = in[static_cast<size_t>(s.buffers[b].index)].bytes.data();
    auto& out = results.emplace_back();
    for (const Value& v : g.outputs())
      out.push_back({v.type(), std::vector<std::byte>(static_cast<size_t>(v.type().numel().constant() * size_of(v.dtype())))});
    for (size_t i = 0; i < out.size(); ++i) frame.data[static_cast<size_t>(s.output_buffers[i])] = out[i].bytes.data();
    executable.run(frame);
  }
  for (size_t i = 0; i < results[0].size(); ++i) CHECK(testing::first_difference(results[1][i], results[0][i], 0, 0) == "");
}

namespace {

// The results of the last operation of a trace, which is known in numbers, in symbols; "none" if they do not follow from its operands.
std::string in_symbols(const std::string& operation) {
  const Trace t = Trace::parse(
      "symbol s0(hint=3, min=2, input=0, dim=0)\nsymbol s1(hint=40, min=2, input=0, dim=2)\nsymbol s2(hint=7, min=2, input=1, dim=2)\n"
      "input t0: f32[s0, 4, s1, 16]@cuda:0 strides [64*s1, 16*s1, 16, 1] offset 0 storage 0\n"
      "input t1: f32[s0, 4, s2, 16]@cuda:0 strides [64*s2, 16*s2, 16, 1] offset 0 storage 1\n"
      "input t2: f32[s0, 4, s2, 24]@cuda:0 strides [96*s2, 24*s2, 24, 1] offset 0 storage 2\n" +
      operation + "\nreturn t0\n");
  const TraceOp& op = t.ops.back();
  std::vector<TraceTensor> seen;
  for (TensorId r : op.results) seen.push_back(t.tensors[static_cast<size_t>(r)]);
  const auto found = symbolic_results(t, op, seen);
  if (!found) return "none";
  std::string out;
  for (const TraceTensor& r : *found) out += cat(out.empty() ? "" : ", ", r.type.str());
  return out;
}

}  // namespace

TEST_CASE("layouts: sizes of torch's attention for GPUs") {
  const std::string out = "t3: f32[3, 4, 40, 24]@cuda:0 strides [3840, 24, 96, 1] offset 0 storage 3, ",
                    seed = "t5: i64[]@cuda:0 strides [] offset 0 storage 5, t6: i64[]@cuda:0 strides [] offset 0 storage 6",
                    efficient = " = aten::_scaled_dot_product_efficient_attention(t0, t1, t2, none, true, 0.0, false, none)";
  CHECK(in_symbols(out + "t4: f32[3, 4, 64]@cuda:0 strides [256, 64, 1] offset 0 storage 4, " + seed + efficient) ==
        "f32[s0, 4, s1, 24]@cuda:0, f32[s0, 4, 32*floordiv(s1 + 31, 32)]@cuda:0, i64[]@cuda:0, i64[]@cuda:0");
  CHECK(in_symbols(out + "t4: f32[3, 4, 0]@cuda:0 strides [1, 1, 1] offset 0 storage 4, " + seed + efficient) ==
        "f32[s0, 4, s1, 24]@cuda:0, f32[s0, 4, 0]@cuda:0, i64[]@cuda:0, i64[]@cuda:0");
  CHECK(in_symbols(out + "t4: f32[3, 4, 41]@cuda:0 strides [164, 41, 1] offset 0 storage 4, " + seed + efficient) == "none");
  CHECK(in_symbols("t3: f32[3, 4, 40, 16]@cuda:0 strides [2560, 640, 16, 1] offset 0 storage 3, "
                   "t4: f32[3, 4, 7, 16]@cuda:0 strides [448, 16, 64, 1] offset 0 storage 4, "
                   "t5: f32[3, 4, 7, 24]@cuda:0 strides [672, 168, 24, 1] offset 0 storage 5 = "
                   "aten::_scaled_dot_product_flash_attention_backward(t0, t0, t1, t2, t0, t0, none, none, 40, 7, 0.0, false, none, none, "
                   "none)") == "f32[s0, 4, s1, 16]@cuda:0, f32[s0, 4, s2, 16]@cuda:0, f32[s0, 4, s2, 24]@cuda:0");
}
