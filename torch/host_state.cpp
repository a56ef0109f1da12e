#include "host_state.h"

#include <ATen/ops/_local_scalar_dense.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <sstream>
#include <utility>

#include "capture.h"
#include "support/error.h"
#include "trace/separate_inputs.h"

namespace broach {

bool trains(const Capture& capture) {
  const bool is_known = !capture.has_run_backward() || capture.runs_known_backwards();
  if (is_known && !capture.gives_histories()) return false;
  const bool may = capture.has_run_backward() || capture.writes_inputs();  // a tensor that is written may get a history
  return may && capture.differentiates() && (need_gradients(capture.lifted()) || need_gradients(capture.given()));
}

Verdict HostState::unclear(int most, const std::string& reason) {
  if (++unclear_in_a_row_ >= most) return {Outcome::unsupported, reason};
  return {
      Outcome::unclear,
      "the program keeps a tensor, writes to one that it is given or holds, or draws random numbers beside others: its next run will show "
      "whether it does the same each time"};
}

namespace {

std::string given_to(const Capture& capture) {
  std::string out;
  for (const at::Tensor& t : capture.inputs())
    if (t.defined()) out += cat(t.dtype().name(), t.is_leaf() ? " leaf" : "", t.requires_grad() ? " with gradients;" : ";");
  for (const at::Tensor& t : capture.lifted()) out += t.defined() && t.requires_grad() ? "1" : "0";
  for (const c10::ScalarType t : Autocast::now().types) out += cat(";", static_cast<int>(t));
  out += cat(c10::GradMode::is_enabled() ? " with gradients" : "", c10::InferenceMode::is_enabled() ? " for inference;" : ";");
  for (const ValueRead& r : capture.trace().reads) out += cat(str(r.value), ";");
  return out;
}

// Where in their memory the inputs begin is another place in every call: a row of a batch, a batch of a data set.
Trace from_inputs_on(const Trace& recorded) {
  Trace trace = with_separate_inputs(recorded).value_or(recorded);
  std::map<int32_t, SymInt> begins;  // by storage
  for (TensorId i : trace.inputs)
    begins.emplace(trace.tensors[static_cast<size_t>(i)].storage, trace.tensors[static_cast<size_t>(i)].offset);
  for (TraceTensor& t : trace.tensors)
    if (auto begin = begins.find(t.storage); begin != begins.end()) t.offset = t.offset - begin->second;
  return trace;
}

// The recording but for sizes that depend on data, and the tensors that it holds; gradients and arguments' bases are others in every step.
std::string done_by(const Capture& capture) {
  std::istringstream trace(from_inputs_on(capture.trace()).str());
  std::string out;
  for (std::string line; std::getline(trace, line);)
    if (!line.starts_with("symbol ") && !line.starts_with("guard ")) out += line + "\n";
  const size_t given = capture.facts().size() - capture.lifted().size();
  for (size_t i = 0; i < capture.lifted().size(); ++i) {
    const at::Tensor& t = capture.lifted()[i];
    if (capture.is_written_number(t)) {
      const c10::complex<double> number = at::_local_scalar_dense(t).toComplexDouble();
      out += cat(number.real(), " ", number.imag(), "\n");
    } else if (!capture.facts()[given + i].companion_of) out += cat(static_cast<const void*>(t.unsafeGetTensorImpl()), "\n");
  }
  return out;
}

void take_numbers(const std::string& text, std::string& rest, std::vector<double>& numbers) {
  for (const char* at = text.c_str(); *at;) {
    if (*at < '0' || *at > '9') {
      rest += *at++;
      continue;
    }
    char* end = nullptr;
    numbers.push_back(std::strtod(at, &end));
    rest += '#';
    at = end;
  }
}

std::vector<double> numbers_of(const CallSizes& call) {
  std::vector<double> out(call.floats);
  for (const auto* lists : {&call.sizes, &call.strides})
    for (const std::vector<int64_t>& list : *lists) out.insert(out.end(), list.begin(), list.end());
  out.insert(out.end(), call.ints.begin(), call.ints.end());
  return out;
}

}  // namespace

// A position in a cache, or a learning rate, is another one in each call: what a call does with it is the same where each number of its
// recording that differs from run to run lies on a line over one that it was given: the offset of a row, the end of a prefix.
bool HostState::follows_from_what_is_given(const Run& last) const {
  constexpr size_t kFewest = 3;  // two always lie on a line
  std::vector<const Run*> runs{&last};
  for (const Run& r : before_)
    if (r.given == last.given && r.rest == last.rest && r.numbers.size() == last.numbers.size() && r.sizes.has_form_of(last.sizes))
      runs.push_back(&r);
  if (runs.size() < kFewest) return false;
  std::vector<std::vector<double>> given;
  for (const Run* r : runs) given.push_back(numbers_of(r->sizes));
  auto lies_over = [&](size_t n, size_t g) {
    auto other = std::ranges::find_if(given, [&](const auto& numbers) { return numbers[g] != given[0][g]; });
    if (other == given.end()) return false;
    const double start = given[0][g], first = runs[0]->numbers[n];
    const double slope = (runs[static_cast<size_t>(other - given.begin())]->numbers[n] - first) / ((*other)[g] - start);
    for (size_t r = 0; r < runs.size(); ++r) {
      const double expected = first + slope * (given[r][g] - start), is = runs[r]->numbers[n];
      if (std::abs(is - expected) > 1e-12 * std::max(std::abs(is), std::abs(first))) return false;
    }
    return true;
  };
  for (size_t n = 0; n < last.numbers.size(); ++n) {
    bool is_explained = std::ranges::all_of(runs, [&](const Run* r) { return r->numbers[n] == last.numbers[n]; });
    for (size_t g = 0; !is_explained && g < given[0].size(); ++g) is_explained = lies_over(n, g);
    if (!is_explained) return false;
  }
  return true;
}

Verdict HostState::judge(const Capture& capture, const std::string& kept, CallSizes sizes) {
  // What it keeps the first time may be a cache that it finds filled from then on.
  if (!kept.empty()) return unclear(2, cat("the program keeps ", kept, ": a replay would leave there what the first run found"));
  if (!writes_alike_ && capture.writes_inputs()) {
    if (capture.differentiable().empty() && trains(capture))
      return {Outcome::unsupported, "the program trains: it writes to tensors that it holds and computes gradients"};
    Run run{std::move(sizes), given_to(capture), {}, {}};
    std::string rest;
    take_numbers(done_by(capture), rest, run.numbers);
    run.rest = digest(rest.data(), rest.size());
    auto before = std::ranges::find_if(before_, [&](const Run& r) { return r.sizes == run.sizes && r.given == run.given; });
    if (before == before_.end() && !follows_from_what_is_given(run)) {
      before_.push_back(std::move(run));
      return unclear(kMostRuns,
                     "the program writes to tensors that it is given or holds, and its calls do not show whether it does the same in each: "
                     "no two had the same sizes and numbers");
    }
    if (before != before_.end() && !(before->rest == run.rest && before->numbers == run.numbers))
      return {
          Outcome::unsupported,
          "the program writes to tensors that it is given or holds, and did so otherwise in two runs: it depends on state of its host code"};
    before_.clear();
    writes_alike_ = true;
  }
  unclear_in_a_row_ = 0;
  return {};
}

}  // namespace broach
