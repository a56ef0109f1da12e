// The passes over a program, one list of them: all that changes a graph before the schedule.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/capabilities.h"
#include "passes/module.h"
#include "passes/partition.h"

namespace broach {

// Of a stage that runs in parts, between which its caller may use what is given, and write to what was read.
struct Parts {
  std::vector<size_t> gives;  // by output: the part that gives it
  // By input: the last part that may read it; what no output of a part needs is left to later ones. Empty: there is no such caller, and
  // each operation stays where it was in the graph's order.
  std::vector<size_t> reads;
};

// What the passes may know beside the program.
struct PassContext {
  std::vector<bool> constant;  // by input of the program: its elements are the same from call to call
  bool freeze = true;          // what depends on those alone may be computed once
  bool strict = false;         // every result is rounded as eager rounds it
  bool fuse = true;            // several operations may be computed at once
  const Capabilities* capabilities = &all_capabilities();
  std::optional<Joint> joint = {};  // of a program that computes gradients too
  Parts parts = {};                 // in which a stage runs; empty: as one
  std::vector<bool> decides = {};   // by output of the program: it says which way the program goes, before anything is written
};

struct Pass {
  const char* name;
  const char* does;  // one sentence
  std::function<void(Module&, const PassContext&)> run;
  bool is_needed = false;  // for a right answer: cannot be left out
};

// In the order in which they run: all, or those from this one on.
std::span<const Pass> passes(std::string_view first = {});

// An Error that lists the passes that can be left out where one of the names is none of them.
void check_pass_names(const std::vector<std::string>& names);

// Runs these passes but those named; times each in seconds, and shows `observe` what each gave. The verifier runs in between where
// `verifies()` (support/bug.h).
void run_passes(std::span<const Pass> passes, Module& module, const PassContext& context, const std::vector<std::string>& disabled,
                std::vector<std::pair<std::string, double>>* seconds, const std::function<void(const char*, const Module&)>& observe);

// By node: whether its results will lie channels last, as the target wants those of convolutions.
std::vector<bool> lie_channels_last(const Graph& graph, const Capabilities& capabilities);

// Whether a convolution's weight has to be laid anew for a library that wants its channels side by side.
bool is_laid_anew(const Graph& graph, const Value& weight);

// By output of a graph: in which of at most so many parts, of about equal bytes, it can be given, if they run in the graph's order.
std::vector<size_t> parts_by_readiness(const Graph& graph, size_t most);

// Of the stage of gradients, with nothing given to anybody in between: what was saved for one part can go, all at once, before the
// gradients of the next get memory. `asked`: so many; 0: the more the more is saved, where the gradients are large beside that. None where
// there is no such stage, or one part is all.
Parts parts_for_memory(const Module& module, int asked = 0);

// By input of a graph that runs in parts: the last that reads it.
std::vector<size_t> last_readers(const Graph& graph, const Parts& parts);

// ---- the passes themselves ----

// Each graph that is compiled together with the program.
using Rewrite = Graph(const Graph&, const PassContext&);
// The stages that take the place of one that runs in every call; none: it stays.
using Divide = std::vector<Stage>(Module&, const Stage&, const PassContext&);
#define PASS(name, function, on, ...) on function;
#include "passes/passes.def"
#undef PASS

}  // namespace broach
