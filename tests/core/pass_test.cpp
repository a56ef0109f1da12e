// Each pass against text files, one for each function: graphs before and after it, and graphs in which it must do nothing. What it gives must
// also compute the same, by the reference interpreter. With BROACH_TEST_RECORD=1 the results are written into the files instead.
//
//     case: what it shows
//     constant: 1 2            (inputs that are the same from call to call; may be missing)
//     <graph>
//     becomes:                 (or "stays", and nothing behind it)
//     <text of the module>
#include "passes/passes.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "random_graph.h"
#include "support/error.h"

using namespace broach;

namespace {

struct Case {
  std::string title, constant, before, after;
  bool stays = false;
};

// A pass that runs again has the file of its first time.
std::filesystem::path file_of(const Pass& pass) {
  std::string name = pass.name;
  return std::filesystem::path(BROACH_TESTS) / "core" / "passes" / cat(name.substr(0, name.find("_again")), ".txt");
}

std::vector<Case> cases_of(const Pass& pass) {
  std::ifstream file(file_of(pass));
  std::vector<Case> out;
  bool behind = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("case: ")) {
      out.push_back({line.substr(6), "", "", "", false});
      behind = false;
    } else if (line.starts_with("constant: ")) {
      out.back().constant = line.substr(10);
    } else if (line == "becomes:" || line == "stays") {
      behind = true;
      out.back().stays = line == "stays";
    } else if (!line.empty() && !out.empty()) {
      (behind ? out.back().after : out.back().before) += line + "\n";
    }
  }
  return out;
}

Module module_of(const Case& c) {
  Graph g = Graph::parse(c.before);
  std::vector<OutputRequest> requests;
  for (const Value& v : g.outputs()) requests.push_back({contiguous_strides(v.shape()), -1});
  return {std::make_shared<const Graph>(std::move(g)), std::move(requests), nullptr, nullptr};
}

PassContext context_of(const Case& c, const Graph& g) {
  PassContext context{std::vector<bool>(g.inputs().size()), true, false};
  std::istringstream numbers(c.constant);
  for (size_t i; numbers >> i;) context.constant.at(i) = true;
  return context;
}

void check_same_results(const Graph& before, const Module& after) {
  std::vector<HostTensor> inputs = broach::testing::random_inputs(before, 7), given = inputs;
  if (after.prologue)
    for (HostTensor& t : interpret(*after.prologue, inputs)) given.push_back(std::move(t));
  auto want = interpret(before, inputs), have = interpret(*after.graph, given);
  REQUIRE(want.size() == have.size());
  for (size_t i = 0; i < want.size(); ++i) CHECK(broach::testing::first_difference(have[i], want[i], 1e-4, 1e-5) == "");
}

bool has_calls(const Graph& g) {
  return std::any_of(g.nodes().begin(), g.nodes().end(), [](const Node& n) { return n.op == Op::extern_call; });
}

void record(const Pass& pass, const std::vector<Case>& cases) {
  std::ofstream file(file_of(pass));
  for (const Case& c : cases) {
    file << (&c == cases.data() ? "" : "\n") << "case: " << c.title << "\n";
    if (!c.constant.empty()) file << "constant: " << c.constant << "\n";
    file << c.before << (c.stays ? "stays\n" : cat("becomes:\n", c.after));
  }
}

void check_pass(const Pass& pass) {
  std::vector<Case> cases = cases_of(pass);
  const bool records = std::getenv("BROACH_TEST_RECORD") != nullptr;
  bool changes = false, does_nothing = false;
  for (Case& c : cases) {
    INFO(std::string(pass.name), ": ", c.title);
    Module m = module_of(c);
    auto before = m.graph;
    CHECK(before->str() == c.before);  // as it is printed
    pass.run(m, context_of(c, *before));
    m.verify();
    const bool same = m.str() == before->str();
    if (records) {
      c.stays = same;
      c.after = same ? "" : m.str();
    }
    CHECK(m.str() == (c.stays ? c.before : c.after));
    if (!m.segments && !has_calls(*m.graph)) check_same_results(*before, m);
    (same ? does_nothing : changes) = true;
  }
  if (records) record(pass, cases);
  INFO(std::string(pass.name), " has a case that it changes, and one in which it must do nothing");
  CHECK(changes);
  CHECK(does_nothing);
}

}  // namespace

TEST_CASE("passes: every row of the list does what its file says") {
  for (const Pass& pass : passes()) check_pass(pass);
}
