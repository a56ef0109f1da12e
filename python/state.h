// What a captured program read of Python's state, and whether it is still so.
//
// A State holds a snapshot of every mutable object that the program could reach by names that its code mentions: module
// trees, plain objects, dicts, lists, closures, globals, defaults, classes. On a call, one pass over a flat array of words
// (dict versions, list lengths and elements, cells) says whether anything was touched; only what was touched is compared
// with the snapshot. All members need the GIL.
#pragma once

#include "attempts.h"
#include "cpython.h"
#include "places.h"
#include "reference.h"
#include "types.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace broach {

// Something that cannot be watched, and the name in a module by which code finds it.
struct Doubt {
  bool is_of(PyObject* dict, PyObject* its_name) const { return module.get() == dict && name.get() == its_name; }

  Ref module, name;  // the module's dict
  Reason reason;
};

// The hooks that a module calls as its state is asked for or set.
inline constexpr const char* kHooksOfState[] = {"_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
                                                "_load_state_dict_post_hooks"};

class State {
 public:
  State() = default;
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Leaves a place out of the state; before anything is watched.
  void leave_out(const StatePlace& place);
  // Does not look at what these names stand for; before anything is watched. Whoever says so sees to it that no code finds them.
  void leave_out(const std::vector<Doubt>& doubts) { doubts_ = doubts; }
  const std::vector<Doubt>& doubts() const { return doubts_; }
  // The program reads or writes the gradient of a tensor. False where that is no leaf that the state holds.
  bool meets_gradient(PyObject* tensor);
  // The same of those that got another one since the run began.
  void meet_new_gradients();
  // The gradients that were met and are none of the places left out.
  const std::vector<StatePlace>& gradients() const { return gradients_; }
  void watch(PyObject* root, const std::string& name);
  // Of a value, and of what tuples, lists and dicts of it hold, the objects that `other` has come across.
  void watch_known(const State& other, PyObject* root, const std::string& name);
  // To be called before a program's code runs: watches the globals, builtins and imported modules that it names, its closure and
  // its defaults. Of torch's code it watches what the names stand for, and not what that consists of.
  void enter(PyCodeObject* code, PyObject* globals, PyFunctionObject* function);
  // A function without arguments whose answer is part of the state (how many threads there are).
  // `its_own`: one that the program may itself have changed for a while, as torch's code does; it is then left out.
  void watch_answer(PyObject* function, bool its_own = false);
  // Globals of a library's module that C code reads.
  void watch_globals(const char* module, std::initializer_list<const char*> names);

  // One value that differs from the snapshot. `key` is null where there is none.
  struct Change {
    int node;
    Ref key, before, now;  // `before` and `now` are null where no single value changed
    std::string path;
  };
  // Everything that changed since it was watched: what the program wrote.
  std::vector<Change> changes() const;
  // What stands for numbers in what a run wrote becomes these numbers, also within new containers: the run is over.
  void settle_numbers(const std::vector<Change>& changes) const;
  // Where the program may have written a changed value to; nothing if a write there cannot be repeated.
  std::optional<StatePlace> place_of(const Change& change) const;
  // Of a list that has only got longer, and that code finds in one way alone: the names of that way. Empty for any other.
  std::vector<std::string> names_of_grown(const Change& change) const;
  // Whether nothing else that was visited leads to a list, or to what holds it.
  bool is_met_once(const StatePlace& place) const;
  bool is_deque(const Change& change) const { return nodes_[static_cast<size_t>(change.node)].kind == Kind::sequence; }
  // Takes the present as the snapshot's.
  void stamp();
  // Puts back what was written since. False where something cannot be.
  bool restore() const;
  // Values of one node, as they are now where those of the snapshot are put back for a while.
  struct Present {
    size_t node;
    std::vector<Ref> keys, values;
  };
  // Puts back all that changed; nothing, and all is as before, where something cannot be.
  std::optional<std::vector<Present>> put_back_for_a_while();
  void put_forward(std::vector<Present> present);
  // Whether what was read is as it was: where nothing was touched since, no value is compared.
  bool holds(std::string* why);

  // To be called once everything was visited.
  void find_weakly_held();
  // What was met that cannot be watched; empty if the snapshot is complete.
  const std::vector<Reason>& problems() const { return problems_; }
  // The first of those that leave least to Dynamo; null if there are none.
  const Reason* strictest_problem() const;
  // The same by the names in modules that lead to them; empty if to one of them none does.
  std::vector<Doubt> problems_of_names() const;
  std::vector<std::string> describe() const;
  bool knows(PyObject* o) const { return known_.contains(o); }
  bool holds_tensor(const c10::TensorImpl* t) const { return tensors_.contains(t); }
  std::vector<at::Tensor> tensors() const;
  // Tensors that were written since `stamp`, by name.
  std::vector<std::string> written() const;
  // A run begins: what tensors' requires_grad and gradients are then is what `restore` puts back.
  void note_gradients();
  void forget_gradients();  // once no run can be taken back
  // A tensor whose requires_grad was set since, by name; empty if there is none.
  std::string changed_gradients() const;
  // From now on `holds` looks at what Python code may read of a tensor without an operation. `is_guarded`: whether the recording keeps the
  // sizes of one, so that only its requires_grad is left.
  void watch_tensors(const std::function<bool(const at::Tensor&)>& is_guarded);
  // Whether a lock is within the program's reach.
  bool holds_lock() const { return holds_lock_; }
  size_t size() const { return nodes_.size(); }
  bool has_entered(PyCodeObject* code) const { return entered_.contains(code); }
  const std::unordered_set<PyCodeObject*>& entered() const { return entered_; }
  // Whether it is a class whose body has run.
  bool has_made_class(PyObject* o) const;
  // Whether code of an operation, which runs while the program's is recorded, finds something that the program looks at, and that can be
  // another one by then or stand for another: the name of it; empty if it finds nothing such.
  std::string shared_with(PyCodeObject* code, PyObject* globals, PyFunctionObject* function) const;

  int traverse(visitproc visit, void* arg) const;
  // A dict has announced a change.
  void touched(int node) {
    if (std::find(touched_.begin(), touched_.end(), node) == touched_.end()) touched_.push_back(node);
  }

 private:
  // names: of a dict, some keys only; cache: of functools.lru_cache, likewise those that it had; fields: attributes written in C;
  // answer: what a function gives.
  enum class Kind {
    dict,
    names,
    cache,
    ordered,
    list,
    set,
    sequence,
    cell,
    function,
    instance,
    mro,
    context,
    weak,
    buffer,
    fields,
    answer
  };
  struct Node {
    Kind kind;
    Ref object;
    int parent;
    std::string label;
    bool module_dict = false;            // the instance dict of an nn.Module
    bool its_own = false, left = false;  // answer: may be left out, and is
    bool of_torch = false;               // part of an object of torch's that is no module
    Ref type;                            // whose class dict it is
    const std::unordered_set<std::string>* unwatched = nullptr;
    std::vector<Ref> keys, values;
    std::vector<Ref> order;         // of a dict with places that are left out: all its keys
    std::vector<Py_ssize_t> slots;  // instance: offsets of the slots
    PyObject** place = nullptr;     // instance: where its dict is
    uint32_t first = 0, words = 0;
    bool every_call = false;
  };
  struct Word {
    const void* at;
    uint64_t expected;
  };

  // What a value leads to: visit.cpp.
  void visit(PyObject* value, int parent, const std::string& label);
  bool visit_builtin(PyObject* o, PyTypeObject* native, int parent, const std::string& label);
  void visit_builtin_method(PyObject* o, int parent, const std::string& label);
  void visit_native(PyObject* o, PyTypeObject* native, int parent, const std::string& label);
  void visit_type(PyTypeObject* type, int parent, const std::string& label);
  void visit_class_dicts(PyTypeObject* type);
  void visit_class_dict(PyTypeObject* type);
  void visit_class_value(PyObject* value, int parent, const std::string& label);
  void visit_class_function(PyObject* f, int parent, const std::string& label);
  void visit_instance(PyObject* o, int parent, const std::string& label, int self_node);
  void visit_tensor(PyObject* t, int parent, const std::string& label);
  void visit_function(PyObject* f, int parent, const std::string& label);
  void watch_annotations(PyObject* names, int parent);
  void visit_module(PyObject* module, PyObject* name);
  static bool may_name(PyCodeObject* code, PyObject* name);
  static bool may_be_given(PyCodeObject* code, PyObject* module);
  void visit_module_names(PyObject* module, PyCodeObject* code, bool named);
  void visit_cache(PyObject* wrapper, int parent, const std::string& label);
  void visit_referents(PyObject* o, int parent, const std::string& label);
  void visit_queued();
  // Whether a name that is not there could come later, and how far a value is looked into.
  enum class Names { all, all_shallow, found, shallow };
  void watch_names(PyObject* dict, PyObject* names, const std::string& label, Names which);
  void watch_entries(PyObject* container, int parent, const std::string& label);
  void watch_imports(PyCodeObject* code, PyObject* globals);
  void watch_all_modules(PyCodeObject* code);
  void watch_builtins(PyCodeObject* code, PyObject* globals);
  int node_of(Kind kind, PyObject* o, int parent, const std::string& label);
  void has_seen(PyObject* o);
  void problem(PyObject* o, int parent, const std::string& label, Reason what);
  void add_problem(Reason why);
  void visit_named(PyObject* dict, PyObject* name, const std::function<void()>& visit);
  bool is_doubted(PyObject* dict, PyObject* name) const;
  int add(Kind kind, PyObject* o, int parent, std::string label);
  std::string name_within(const Node& holder, PyObject* o) const;
  int times_met(PyObject* o) const;
  void fill(int node);
  void note_order(Node& n) const;
  void children(int node);
  bool read(const Node& n, std::vector<Ref>& keys, std::vector<Ref>& values) const;
  bool read_dict(const Node& n, std::vector<Ref>& keys, std::vector<Ref>& values) const;
  bool same(Node& n, bool take, std::string* why) const;
  void add_words(Node& n);
  bool take_words(const Node& n);
  size_t first_changed(size_t word) const;
  bool put_back(const Node& n) const;
  bool put_back_class(const Node& n) const;
  bool put_back_function(const Node& n) const;
  bool is_left_out(PyObject* owner, PyObject* key) const;
  std::string path(int node) const;
  std::string path(const Node& n, size_t position) const;

  std::vector<Node> nodes_;
  std::vector<int> queue_;
  std::unordered_map<PyObject*, int> known_;  // by object; instance dicts and class dicts too
  std::unordered_map<PyObject*, int> names_;  // by dict of globals, or of modules
  std::unordered_map<PyObject*, int> met_;    // lists and dicts: from how many values they were visited
  struct PairHash {
    size_t operator()(const std::pair<PyObject*, PyObject*>& p) const {
      return std::hash<PyObject*>()(p.first) * 31 + std::hash<PyObject*>()(p.second);
    }
  };
  std::unordered_set<std::pair<PyObject*, PyObject*>, PairHash> named_;  // globals and names in them; null for all of a module
  std::unordered_set<PyObject*> asked_;                                  // functions whose answers are watched
  std::unordered_set<PyObject*> candidates_;  // functions that were there before the run without having been watched
  std::unordered_set<PyCodeObject*> entered_, made_here_;
  std::unordered_map<PyObject*, std::unordered_set<PyObject*>> modules_;  // with the names by which code finds them
  struct Held {
    at::Tensor tensor;
    std::string path;
    int64_t version;
    bool requires_grad;                  // when it was found, or a later run began
    std::optional<at::Tensor> gradient;  // the same, until the run is over
    int64_t version_of_gradient = 0;     // the same
  };
  static at::Tensor gradient_of(const at::Tensor& t) { return t.is_leaf() ? t.grad() : at::Tensor(); }
  std::unordered_map<const c10::TensorImpl*, Held> tensors_;
  // Of a tensor of `tensors_`.
  struct TensorFacts {
    TensorFacts(const Held& held, bool is_guarded);
    bool hold() const;
    const Held* held;
    bool requires_grad, is_leaf, is_guarded;
    c10::ScalarType dtype;
    std::vector<int64_t> sizes, strides;
  };
  std::vector<TensorFacts> facts_;
  std::vector<std::pair<PyObject*, std::string>> weak_;
  std::vector<Ref> keep_;
  std::vector<Word> words_;
  std::vector<int> every_call_;
  std::vector<Reason> problems_;
  std::vector<Doubt> doubts_, named_problems_;
  PyObject *dict_ = nullptr, *name_ = nullptr;  // by which code finds what is being visited
  bool holds_lock_ = false;
  bool in_library_ = false;   // code of Python's own library is entered
  std::vector<int> touched_;  // nodes of dicts that have changed since they were last compared
  std::vector<StatePlace> left_out_, gradients_;
  std::unordered_set<PyObject*> met_gradients_;                 // whose gradients are in these lists
  std::unordered_set<const c10::TensorImpl*> given_gradients_;  // of tensors whose gradients are places: a run has others there
};

}  // namespace broach
