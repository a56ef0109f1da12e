// The text form of a schedule, printed, parsed and verified. Symbols as in a graph, one line a buffer, the buffers of the outputs, and
// then the steps; behind a launch stands its kernel:
//
//   buffer m0 : f32[2, 70] strides [70, 1] elements 140 input 0
//   buffer m1 : f32[2, 70] strides [70, 1] elements 140 output 0
//   outputs [1]
//   launch [0, 1] starts [0, 70] numbers [bits 4607182418800017408, input 3] reads [0] writes [1]  # model.py:3
//   kernel symbols 0 parameters 2
//     ...
//   contraction dot(batch=0) : (f32[2, 3], f32[3, 4]) -> (f32[2, 4]) of f32[2, 3] m0[0][3, 1], f32[3, 4] m1[0][4, 1] weights [-1, 1]
//     bias f32[4] m2[0][1] then relu then add with f32[2, 4] m3[0][4, 1] side 1 f32[2, 4] m4[0][4, 1] into f32[2, 4] m5[0][4, 1] reads ..
//   routine sort(...) : (..) -> (..) of .. into .., none reads [0] writes [1]
//   call extern_call(call=...) : (..) -> (..) of .. into [3, -1] reads [0] writes [3]
//   copy m1 to m2 reads [1] writes [2] on cuda:0
//
// (A step that writes an input although a later one may fail ends with `early`.)
// (A contraction is one line. `m0[2][3, 1]` is what lies in m0 from element 2 on, by its strides.) A result that nobody reads is `none`, and -1 among buffers.
#include <algorithm>

#include "ir/parse.h"
#include "ir/text.h"
#include "schedule/schedule.h"

namespace broach {

// ---- printing ----

namespace {

constexpr const char* kBufferKinds[] = {"input", "output", "arena", "external"};

template <class T>
std::string numbers_text(const std::vector<T>& numbers) {
  std::string out;
  for (const T& n : numbers) out += cat(out.empty() ? "" : ", ", n);
  return cat("[", out, "]");
}

std::string types_text(const std::vector<Type>& types) {
  std::string out;
  for (const Type& t : types) out += (out.empty() ? "" : ", ") + t.str();
  return cat("(", out, ")");
}

class SchedulePrinter {
 public:
  explicit SchedulePrinter(const Schedule& schedule) : s_(schedule) {}

  std::string run() {
    std::string out = text_of(*s_.graph->symbols());
    for (size_t i = 0; i < s_.buffers.size(); ++i) out += cat("buffer m", i, " : ", buffer(s_.buffers[i]), "\n");
    out += cat("outputs ", numbers_text(s_.output_buffers), "\n");
    for (const Step& s : s_.steps) out += step(s);
    return out;
  }

 private:
  static std::string buffer(const Buffer& b) {
    return cat(b.type.str(), " strides ", list_text(b.strides), " elements ", b.elements, " ", kBufferKinds[static_cast<size_t>(b.kind)],
               b.index < 0 ? "" : cat(" ", b.index), b.version ? cat(" version ", b.version) : "");
  }

  std::string step(const Step& s) {
    std::string out = std::visit([&](const auto& work) { return text(work); }, s.work);
    out += cat(" reads ", numbers_text(s.reads), " writes ", numbers_text(s.writes));
    if (s.device != Device{}) out += " on " + s.device.str();
    if (s.early) out += " early";
    out += comment_text(s_.graph->lines(), s.line) + "\n";
    auto k = std::get_if<KernelStep>(&s.work);
    return k ? out + k->kernel->str() : out;
  }

  static std::string text(const Operand& o) {
    return cat(o.type.str(),
               o.place.buffer < 0 ? " none" : cat(" m", o.place.buffer, "[", o.place.offset, "]", list_text(o.place.strides)));
  }
  static std::string text(const std::vector<Operand>& operands) {
    std::string out;
    for (const Operand& o : operands) out += (out.empty() ? "" : ", ") + text(o);
    return out;
  }
  std::string text(const Operation& o) {
    return cat(name_of(o.op), "(", text_of(o.attrs, opaque_), ") : ", types_text(o.operands), " -> ", types_text(o.results));
  }
  std::string of(const Operation& o, const std::vector<Operand>& operands) {
    return cat(text(o), operands.empty() ? "" : " of ", text(operands));
  }

  std::string text(const KernelStep& k) const {
    std::string out = "launch " + numbers_text(k.buffers);
    Shape symbols;
    for (SymbolId id : k.symbols) symbols.push_back(SymInt::symbol(id));
    if (!symbols.empty()) out += " symbols " + list_text(symbols);
    if (!k.starts.empty()) out += " starts " + numbers_text(k.starts);
    if (k.numbers.empty()) return out;
    std::string numbers;
    for (const KernelNumber& n : k.numbers)
      numbers += cat(numbers.empty() ? "" : ", ", n.input < 0 ? cat("bits ", n.bits) : cat("input ", n.input));
    return cat(out, " numbers [", numbers, "]");
  }
  std::string text(const ContractionStep& c) {
    std::string out = cat("contraction ", of(c.operation, c.operands), " weights ", numbers_text(c.weight_inputs));
    if (c.bias) out += " bias " + text(*c.bias);
    for (const Epilogue& e : c.epilogue) out += cat(" then ", name_of(e.op), e.operand ? " with " + text(*e.operand) : "");
    for (const auto& side : c.side_results) out += cat(" side ", side.before, " ", text(side.result));
    return cat(out, " into ", text(c.result));
  }
  std::string text(const RoutineStep& r) { return cat("routine ", of(r.operation, r.operands), " into ", text(r.results)); }
  std::string text(const ExternStep& e) { return cat("call ", of(e.operation, e.operands), " into ", numbers_text(e.results)); }
  std::string text(const CopyStep& c) const { return cat("copy m", c.from, " to m", c.to); }

  const Schedule& s_;
  OpaqueNumbers opaque_;
};

}  // namespace

std::string Schedule::str() const { return SchedulePrinter(*this).run(); }

// ---- parsing ----

namespace {

class ScheduleParser : TextParser {
 public:
  explicit ScheduleParser(std::string_view text) : TextParser(text, std::make_shared<Symbols>()), lines_(symbols_) {}

  Schedule parse() {
    bool has_outputs = false;
    for_each_line([&] {
      if (!has_outputs && declaration()) return;
      if (c_.accept("outputs")) has_outputs = true, s_.output_buffers = buffers();
      else if (has_outputs) step();
      else if (c_.accept("buffer")) buffer();
      else c_.fail_at(c_.at, "expected 'buffer' or 'outputs'");
    });
    if (!has_outputs) fail_at_end("the schedule ends without outputs");
    s_.graph = std::make_shared<const Graph>(lines_.finish({}));
    return std::move(s_);
  }

 private:
  int integer(int64_t low, int64_t limit) {
    size_t start = (c_.skip(), c_.at);
    int64_t n = c_.integer();
    if (n < low || n >= limit) c_.fail_at(start, "expected a number from ", low, " to ", limit - 1, ", found ", n);
    return static_cast<int>(n);
  }
  static constexpr int64_t kMost = int64_t{1} << 30;
  int count() { return static_cast<int>(s_.buffers.size()); }
  // Those that are declared, and -1 where one may be missing.
  std::vector<int> buffers(int64_t low = 0) {
    return c_.list("[", "]", [&] { return integer(low, count()); });
  }
  int buffer_name() {
    c_.expect_char('m');
    return integer(0, count());
  }

  void buffer() {
    size_t start = (c_.skip(), c_.at);
    c_.expect_char('m');
    if (c_.digits() != count()) c_.fail_at(start, "expected buffer m", count());
    c_.expect(":");
    Buffer b{};
    b.type = type();
    c_.expect("strides");
    b.strides = shape();
    c_.expect("elements");
    b.elements = expression();
    size_t kind_start = (c_.skip(), c_.at);
    auto kind = std::find(std::begin(kBufferKinds), std::end(kBufferKinds), c_.word());
    if (kind == std::end(kBufferKinds)) c_.fail_at(kind_start, "expected input, output, arena or external");
    b.kind = static_cast<Buffer::Kind>(kind - kBufferKinds);
    if (std::isdigit(static_cast<unsigned char>(c_.peek()))) b.index = integer(0, kMost);
    if (c_.accept("version")) b.version = integer(0, kMost);
    s_.buffers.push_back(std::move(b));
  }

  void step() {
    Step s;
    if (c_.accept("launch")) s.work = launch(), ++s_.kernels;
    else if (c_.accept("contraction")) s.work = contraction(), ++s_.contractions;
    else if (c_.accept("routine")) s.work = plain<RoutineStep>([&] { return operands(); }), ++s_.routines;
    else if (c_.accept("call")) s.work = plain<ExternStep>([&] { return buffers(-1); }), ++s_.externs;
    else if (c_.accept("copy")) s.work = copy(), ++s_.copies;
    else c_.fail_at(c_.at, "expected a step: launch, contraction, routine, call or copy");
    c_.expect("reads");
    s.reads = buffers();
    c_.expect("writes");
    s.writes = buffers();
    if (c_.accept("on")) s.device = device();
    s.early = c_.accept("early");
    s.line = line_index([&](const std::string& line) { lines_.set_line(line); });
    if (auto k = std::get_if<KernelStep>(&s.work)) {
      if (!c_.ends()) c_.fail_at(c_.at, "unexpected '", c_.line.substr(c_.at, 12), "'");
      auto [text, lines] = block("kernel");
      k->kernel = std::make_shared<const Kernel>(Kernel::parse(text, lines));
    }
    s_.steps.push_back(std::move(s));
  }

  KernelStep launch() {
    KernelStep k;
    k.buffers = buffers();
    if (c_.accept("symbols"))
      for (const SymInt& e : shape()) {
        if (!e.as_symbol()) c_.fail_at(c_.at, "expected a list of symbols");
        k.symbols.push_back(*e.as_symbol());
      }
    if (c_.accept("starts")) k.starts = c_.list("[", "]", [&] { return c_.integer(); });
    if (c_.accept("numbers")) k.numbers = c_.list("[", "]", [&] { return number(); });
    return k;
  }
  KernelNumber number() {
    if (c_.accept("input")) return {0, integer(0, kMost)};
    c_.expect("bits");
    return {c_.integer(), -1};
  }

  Operand operand() {
    Operand o{type(), {}};
    if (c_.accept("none")) return o.place.strides = contiguous_strides(o.type.shape), o;
    c_.expect_char('m');
    o.place.buffer = static_cast<int>(c_.digits());
    if (o.place.buffer < 0 || o.place.buffer >= count()) c_.fail_at(c_.at, "there is no buffer m", o.place.buffer);
    c_.expect("[");
    o.place.offset = expression();
    c_.expect("]");
    o.place.strides = shape();
    return o;
  }
  std::vector<Operand> operands() {
    std::vector<Operand> out;
    do out.push_back(operand());
    while (c_.accept(","));
    return out;
  }
  std::vector<Type> types() {
    return c_.list("(", ")", [&] { return type(); });
  }
  // An operation and what it is of.
  Operation operation(std::vector<Operand>& of) {
    Operation o{{op(), {}}, {}, {}};
    call_ = nullptr;
    c_.expect("(");
    if (!c_.accept(")")) {
      do attribute(o.op, o.attrs);
      while (c_.accept(","));
      c_.expect(")");
    }
    c_.expect(":");
    o.operands = types();
    c_.expect("->");
    o.results = types();
    if (call_) call_->results = o.results;
    if (c_.accept("of")) of = operands();
    return o;
  }

  ContractionStep contraction() {
    ContractionStep c{};
    c.operation = operation(c.operands);
    c_.expect("weights");
    c.weight_inputs = c_.list("[", "]", [&] { return c_.integer(); });
    if (c_.accept("bias")) c.bias = operand();
    while (c_.accept("then")) {
      Epilogue e{op(), {}};
      if (c_.accept("with")) e.operand = operand();
      c.epilogue.push_back(std::move(e));
    }
    while (c_.accept("side")) {
      auto before = static_cast<size_t>(integer(0, kMost));
      c.side_results.push_back({before, operand()});
    }
    c_.expect("into");
    c.result = operand();
    return c;
  }
  template <class Work, class F>
  Work plain(const F& results) {
    Work w{};
    w.operation = operation(w.operands);
    c_.expect("into");
    w.results = results();
    return w;
  }
  CopyStep copy() {
    CopyStep c;
    c.from = buffer_name();
    c_.expect("to");
    c.to = buffer_name();
    return c;
  }

  Schedule s_;
  GraphBuilder lines_;
};

}  // namespace

Schedule Schedule::parse(std::string_view text) { return ScheduleParser(text).parse(); }

// ---- verifying ----

namespace {

class ScheduleVerifier {
 public:
  explicit ScheduleVerifier(const Schedule& schedule) : s_(schedule) {}

  void run() const {
    for (size_t i = 0; i < s_.buffers.size(); ++i) verify_part(cat("schedule, m", i), [&] { buffer(s_.buffers[i]); });
    for (int b : s_.output_buffers) verify_part("schedule, the outputs", [&] { known(b); });
    for (size_t i = 0; i < s_.steps.size(); ++i) verify_part(cat("schedule, step ", i), [&] { step(s_.steps[i]); });
  }

 private:
  void size(const SymInt& e) const { check(s_.graph->symbols()->declares(e), e, " has a symbol that is not declared"); }
  void buffer(const Buffer& b) const {
    for (const SymInt& e : b.type.shape) size(e);
    for (const SymInt& e : b.strides) size(e);
    size(b.elements);
  }
  void known(int b) const { check(b >= 0 && static_cast<size_t>(b) < s_.buffers.size(), "there is no buffer m", b); }
  static void listed(int b, const std::vector<int>& list, const char* what) {
    check(std::find(list.begin(), list.end(), b) != list.end(), what, " m", b, ", which is not among the buffers that it ", what);
  }

  void step(const Step& s) const {
    for (int b : s.reads) known(b);
    for (int b : s.writes) known(b);
    check(s.line < static_cast<int32_t>(s_.graph->lines().size()), "its line is none of the graph");
    std::visit([&](const auto& work) { this->work(work, s); }, s.work);
  }
  void place(const Operand& o, const std::vector<int>& list, const char* what) const {
    known(o.place.buffer);
    listed(o.place.buffer, list, what);
    check(o.place.strides.size() == o.type.shape.size(), o.place.strides.size(), " strides of ", o.type.str());
    size(o.place.offset);
    for (const SymInt& e : o.place.strides) size(e);
  }

  void work(const KernelStep& k, const Step& s) const {
    k.kernel->verify();
    check(k.buffers.size() == k.kernel->buffers.size(), "the kernel has ", k.kernel->buffers.size(), " buffers, not ", k.buffers.size());
    check(k.symbols.size() == static_cast<size_t>(k.kernel->symbols), "the kernel has ", k.kernel->symbols, " symbols");
    check(k.numbers.size() == static_cast<size_t>(k.kernel->parameters), "the kernel has ", k.kernel->parameters, " parameters");
    check(k.starts.empty() || k.starts.size() == k.buffers.size(), "it begins in ", k.starts.size(), " buffers");
    for (int b : k.buffers) known(b);
    for (SymbolId id : k.symbols) size(SymInt::symbol(id));
    for (const KernelExpr& e : k.kernel->exprs)
      if (e.kind == KernelExpr::Kind::load) listed(k.buffers[static_cast<size_t>(e.access.buffer)], s.reads, "reads");
    for (const KernelStore& store : k.kernel->stores) listed(k.buffers[static_cast<size_t>(store.access.buffer)], s.writes, "writes");
  }
  void work(const ContractionStep& c, const Step& s) const {
    check(c.operands.size() == c.weight_inputs.size(), "it has ", c.operands.size(), " operands");
    for (const Operand& o : c.operands) place(o, s.reads, "reads");
    if (c.bias) place(*c.bias, s.reads, "reads");
    for (const Epilogue& e : c.epilogue)
      if (e.operand) place(*e.operand, s.reads, "reads");
    for (const auto& side : c.side_results) {
      check(side.before <= c.epilogue.size(), "a value is stored before operation ", side.before, " of ", c.epilogue.size());
      place(side.result, s.writes, "writes");
    }
    place(c.result, s.writes, "writes");
  }
  void work(const RoutineStep& r, const Step& s) const {
    for (const Operand& o : r.operands) place(o, s.reads, "reads");
    for (const Operand& o : r.results)
      if (o.place.buffer >= 0) place(o, s.writes, "writes");
  }
  void work(const ExternStep& e, const Step& s) const {
    for (const Operand& o : e.operands) place(o, s.reads, "reads");
    for (int b : e.results)
      if (b >= 0) known(b), listed(b, s.writes, "writes");
  }
  void work(const CopyStep& c, const Step&) const { known(c.from), known(c.to); }

  const Schedule& s_;
};

}  // namespace

void Schedule::verify() const {
  ScheduleVerifier(*this).run();
  verify_writes();
}

void Schedule::verify_writes() const {
  std::vector<bool> is_written;
  for (const Buffer& b : buffers) {
    const auto elements = b.elements.maybe_constant();
    is_written.push_back(b.kind == Buffer::Kind::input || elements == 0);
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    for (int b : steps[i].reads)
      check(is_written[static_cast<size_t>(b)], "schedule, step ", i, ": reads m", b, ", which nobody has written");
    for (int b : steps[i].writes) is_written[static_cast<size_t>(b)] = true;
  }
  for (int b : output_buffers) check(b < 0 || is_written[static_cast<size_t>(b)], "schedule, the outputs: nobody writes m", b);
}

}  // namespace broach
