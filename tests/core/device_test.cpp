// Programs over a device whose memory the host cannot address, beside what lies with the host.
#include <doctest/doctest.h>

#include "compile.h"
#include "trace/functionalize.h"

namespace broach {

namespace {

const char* kProgram =
    "input t0: f32[4]@cuda:0 strides [1] offset 0 storage 0\n"
    "input t1: f32[] strides [] offset 0 storage 1\n"
    "t2: f32[4]@cuda:0 strides [1] offset 0 storage 2 = aten::mul.Tensor(t0, t1)\n"
    "t3: f32[] strides [] offset 0 storage 3 = aten::neg(t1)\n"
    "return t2, t3\n";

}  // namespace

TEST_CASE("devices: a number of the host's is copied to a device that cannot read it") {
  const Target& other = *reference_target();
  set_target(DeviceKind::cuda, &other);
  const CompiledTrace compiled = compile_trace(Trace::parse(kProgram), {false, false}, Targets(), nullptr, {});
  set_target(DeviceKind::cuda, nullptr);
  const Executable& main = *compiled.executables.at(0);
  const Schedule& s = main.schedule();
  s.verify();

  const Device cuda{DeviceKind::cuda, 0};
  ErrorFlag errors;
  const SerialThreads threads;
  const RunContext run{.device = cuda, .memory = &other.memory(), .errors = &errors, .threads = &threads};
  const MemoryLease x(other.memory(), 64, nullptr), y(other.memory(), 64, nullptr);
  const float values[4] = {1, 2, 3, 4};
  float number = 3, negative = 0, result[4] = {};
  other.copy(x.data(), values, sizeof values, false, run);
  Frame frame;
  frame.threads = &threads;
  frame.data.assign(s.buffers.size(), nullptr);
  for (size_t b = 0; b < s.buffers.size(); ++b)
    if (s.buffers[b].kind == Buffer::Kind::input) frame.data[b] = s.buffers[b].index == 0 ? static_cast<void*>(x.data()) : &number;
  frame.data[static_cast<size_t>(s.output_buffers[0])] = y.data();
  frame.data[static_cast<size_t>(s.output_buffers[1])] = &negative;
  main.run(frame);
  other.copy(result, y.data(), sizeof result, true, run);
  for (int i = 0; i < 4; ++i) CHECK(result[i] == 3 * values[i]);
  CHECK(negative == -3);
  CHECK(s.copies > 0);
}

TEST_CASE("devices: what a target has not is a call of the library's, and nothing of it is left") {
  Capabilities few = all_capabilities();
  std::erase_if(few.routines, [](const auto& routine) { return routine.first == Op::scatter; });
  const Program p = functionalize(Trace::parse("input t0: i64[48]@cuda:0 strides [1] offset 0 storage 0\n"
                                               "input t1: i64[48]@cuda:0 strides [1] offset 0 storage 1\n"
                                               "t2: i64[48]@cuda:0 strides [1] offset 0 storage 2 = aten::clone(t1, none)\n"
                                               "t2: i64[48]@cuda:0 strides [1] offset 0 storage 2 = "
                                               "aten::index_put_(t2, {t0}?, t1, false) mutates t2\n"
                                               "return t2\n"),
                                  {.capabilities = &few, .device = {DeviceKind::cuda, 0}});
  REQUIRE(p.graph->outputs().size() == 1);  // the index is checked by the call
  const Node& call = *p.graph->outputs()[0].node;
  CHECK(call.op == Op::extern_call);
  CHECK(!call.has_effect());
  std::vector<bool> is_read(p.graph->nodes().size());
  for (const Node& n : p.graph->nodes())
    for (const Value& v : n.inputs) is_read[v.node->id] = true;
  for (const Node& n : p.graph->nodes()) CHECK((n.op != Op::scatter || !is_read[n.id]));
}

TEST_CASE("devices: the position of an only element lies where the element does") {
  const Program p = functionalize(Trace::parse("input t0: f32[1]@cuda:0 strides [1] offset 0 storage 0\n"
                                               "t1: i64[]@cuda:0 strides [] offset 0 storage 1 = aten::argmax(t0, none, false)\n"
                                               "return t1\n"),
                                  {});
  for (const Node& n : p.graph->nodes()) CHECK(n.op != Op::extern_call);
  CHECK(p.graph->outputs()[0].type().device == Device{DeviceKind::cuda, 0});
}

}  // namespace broach
