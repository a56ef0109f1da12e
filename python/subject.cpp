// What is known of a program over all of its versions: where it writes, and what its next capture is given or looks for.
#include <pybind11/stl.h>

#include <algorithm>
#include <utility>

#include "support/error.h"
#include "version.h"

namespace py = pybind11;

namespace broach {

// Whether code that the program has run may read a list, and not only append to it.
static bool reads_list(const State& state, const StatePlace& place) {
  const py::error_scope of_the_program;
  py::object find = py::module_::import("broach._codes").attr("reads_list");
  const py::tuple names = py::cast(place.names);
  return !state.is_met_once(place) || std::ranges::any_of(state.entered(), [&](PyCodeObject* code) {
    const Owner whose = owner_of_file(code->co_filename);
    if (whose != Owner::user && whose != Owner::library) return false;
    return find(py::handle(reinterpret_cast<PyObject*>(code)), whose == Owner::user, names).cast<bool>();
  });
}

// A list that the program was only seen to append to, and that it reads now, is given to it as a whole from now on.
std::optional<Verdict> Subject::note_read_lists(const State& state) {
  std::optional<Verdict> out;
  for (StatePlace& place : places)
    if (place.kind == StatePlace::Kind::tail && reads_list(state, place)) {
      place.kind = StatePlace::Kind::whole;
      out = {Outcome::learnt, cat("reads ", place.path)};
    }
  return out;
}

static bool is_within_itself(PyObject* list) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i)
    if (PyList_GET_ITEM(list, i) == list) return true;
  return false;
}

// What cannot be written back as a result is left to eager: Dynamo writes of it what it understands (no metaclass, no cache of a function).
Verdict Subject::note_written(const State& state, const std::vector<State::Change>& changes) {
  auto left = [](const std::string& path, const char* what = "") {
    return Verdict{Outcome::spoilt, {cat("writes ", path, what), Fallback::eager}};
  };
  std::vector<StatePlace> found;
  for (const State::Change& c : changes) {
    auto place = state.place_of(c);
    if (!place) return left(c.path, state.is_deque(c) ? ", a deque" : "");
    if (place->kind == StatePlace::Kind::whole && is_within_itself(place->owner.get())) return left(c.path, ", a list within itself");
    if (place->kind == StatePlace::Kind::whole && !(place->names = state.names_of_grown(c)).empty() && !reads_list(state, *place))
      place->kind = StatePlace::Kind::tail;
    if (std::find(found.begin(), found.end(), *place) == found.end()) found.push_back(std::move(*place));
  }
  auto contains = [](const std::vector<StatePlace>& in, const StatePlace& p) { return std::find(in.begin(), in.end(), p) != in.end(); };
  for (StatePlace& place : found) {
    if (contains(places, place) || !has_room(1)) return left(place.path);
    (contains(written, place) ? places : written).push_back(place);
  }
  return {Outcome::learnt, cat("writes ", changes.front().path)};
}

// It has read values, and may have written the same ones as before.
std::optional<Verdict> Subject::note_read_values() {
  std::optional<Verdict> out;
  for (const StatePlace& place : written) {
    const bool is_new = std::ranges::find(places, place) == places.end();
    if (!is_new || !has_room(1) || !(PyFloat_CheckExact(place.value()) || PyLong_CheckExact(place.value()))) continue;
    places.push_back(place);
    out = {Outcome::learnt, cat("reads values, and has written ", place.path)};
  }
  return out;
}

bool Subject::has_room(size_t more) const {
  auto is_kept = [](const StatePlace& p) { return p.kind != StatePlace::Kind::gradient; };
  return static_cast<size_t>(std::ranges::count_if(places, is_kept)) + more <= kMostPlaces;
}

Verdict Subject::note_gradients(const std::vector<StatePlace>& met) {
  const std::string why = cat("reads or writes ", met.front().path);
  if (Function::is_capturing_symbols()) unsupported(why);  // what stands for its results is nobody's
  places.insert(places.end(), met.begin(), met.end());
  return {Outcome::learnt, why};
}

Verdict Subject::note_problems(const State& state) {
  constexpr size_t kMost = 32;
  const std::vector<Doubt> found = state.problems_of_names();
  if (found.empty() || doubts.size() + found.size() > kMost) return {Outcome::rejected, *state.strictest_problem()};
  for (const Doubt& d : found)
    if (std::ranges::none_of(doubts, [&](const Doubt& known) { return known.is_of(d.module.get(), d.name.get()); })) doubts.push_back(d);
  return {Outcome::learnt, found.front().reason.within("names what the next attempt looks for in what runs: ")};
}

Turns::Objects Subject::objects(std::optional<std::vector<PyObject*>> given, bool state) const {
  Turns::Objects out{this, state, std::nullopt, std::move(given)};
  if (written.empty() && !is_known) return out;
  out.owners.emplace();
  for (const auto* each : {&written, &places})
    for (const StatePlace& place : *each) out.owners->push_back(place.owner.get());
  return out;
}

}  // namespace broach
