// One version of a callable: what the arguments of a call look like, the state that the program then read, and its compiled programs by
// sizes.
#pragma once

#include "ambient.h"
#include "attempts.h"
#include "cpython.h"
#include "form.h"
#include "function.h"
#include "state.h"
#include "turns.h"
#include "writes.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace broach {

// Whether these are numbers of one type, or tuples of such.
bool are_numbers_alike(PyObject* a, PyObject* b);

constexpr size_t kMostPlaces = 32;  // that a program writes computed values to

// The program of a callable, and what its captures have found out.
struct Subject {
  Ref program;
  Ref in_parts;                  // runs it eagerly where its gradients are not compiled
  bool has_checkpoints = false;  // which captured runs then take for regions
  // What torch.compiler.is_compiling() is in captured runs: as in eager, until that keeps a program that asks from being recorded, and as
  // under torch.compile then; never again once the program has raised because of it.
  enum class SaysCompiling : uint8_t { no, yes, never } says_compiling = SaysCompiling::no;
  std::vector<StatePlace> written, places;  // where captured runs wrote once, and where they did so again: kept values
  std::vector<Doubt> doubts;                // what names lead to that cannot be watched: captured runs look whether they find any of these
  std::shared_ptr<AttemptLog> log = std::make_shared<AttemptLog>();
  // What its runs may write, of which these are the containers.
  Turns::Objects objects(std::optional<std::vector<PyObject*>> given, bool state = true) const;
  bool reaches_lock = false;  // and may wait for other threads
  bool is_known = false;      // what it writes: a recording has come to something

  // Of a run that met what cannot be watched.
  Verdict note_problems(const State& state);
  // Gradients that it reads or writes, which are given to the next attempts like arguments.
  Verdict note_gradients(const std::vector<StatePlace>& met);
  // Lists that a run may have read, of which those before were only seen to append.
  std::optional<Verdict> note_read_lists(const State& state);
  // Of a run that reads values, which wrote numbers before.
  std::optional<Verdict> note_read_values();
  // Whether computed values may be kept in so many more places.
  bool has_room(size_t more) const;
  // Writes of a run; what the program writes once it may not write again (a cache that is filled), what it writes again is repeated.
  Verdict note_written(const State& state, const std::vector<State::Change>& changes);
};

class Version;
struct ResultForm;

// A call under way on this thread.
struct Pending {
  Subject* subject;
  Version* version;
  Arguments arguments;
  Leaves leaves;
  Ref result;  // of a run of the program itself on the caller's own arguments
  enum class Ran : uint8_t { compiled, eagerly, captured, nothing } ran = Ran::compiled;
  Verdict verdict;                        // of a capture
  bool copies = false;                    // the arguments are copies: the program's own places are not to be touched
  bool is_trial = false;                  // the program itself is not to run: nothing ran if no compiled code stands for the call
  int runs = 0;                           // of the program, for this call
  Ref numpy_random;                       // before the first of them, where the program is watched
  int signal = 0;                         // within whose handler the last run on stand-ins raised: it comes again in the next
  Reason written_again;                   // what eager would write once more for gradients
  bool has_effects = false;               // its run may have done something that cannot be put back
  bool may_go_otherwise = false;          // by what it asked, and nothing else speaks against it
  bool met_checkpoint = false;            // that ran as without a capture
  bool may_have_lock = false;             // held one while its run was watched
  bool waited = false;                    // for other threads' writes, before its own run: what it was matched with may have changed
  const Turns::OwnCode* since = nullptr;  // its arguments were looked at; null where it was matched in a turn of its own
  std::vector<Ref> alive;                 // that goes after the turn
  std::vector<Shallow> replaced;          // likewise
  std::optional<Turns::Compiled> turn;    // of a version that writes
  static constexpr const char* kMetCheckpoint = "it has checkpoints, which the next attempt runs once";

  // The one on this thread whose program runs; null if there is none.
  static Pending* current();

  // No other attempt will fare better.
  void reject(Reason why);
  // A run on stand-ins, whose results and writes nobody can make of what they are, is taken back; another one is rejected.
  void take_back_or_reject(Reason why);
};

class Version : public std::enable_shared_from_this<Version> {
 public:
  Version(Subject& subject, const std::vector<bool>& constant, const ProgramOptions& options)
      : function([this](at::TensorList inputs, c10::SymIntArrayRef ints,
                        c10::ArrayRef<c10::SymFloat> floats) { return run_program(inputs, ints, floats); },
                 constant, options, subject.log) {}

  // Begins to watch what calls depend on besides their arguments.
  void watch(const Subject& subject);
  // Whether it stands for calls of such arguments and settings, whose leaves it adds.
  bool fits(const Arguments& a, const AmbientSettings& settings, Leaves& leaves) const {
    return ambient == settings && (!goes_by_handled_ || cpython::handled_exception().get() == handled_.get()) && form.match(a, leaves) &&
           holds_the_same(leaves);
  }
  // Whether what it and its gradients read is as it was when it was captured.
  bool reads_the_same(std::string* why) const;
  // What its calls write, of which these are the containers; nothing if they write none.
  std::optional<Turns::Objects> writes(const Leaves& leaves) const;
  // Runs it; afterwards `p` says what happened.
  PyObject* run(Pending& p);
  // The program itself with other tensors and numbers for those of a call, for its results: where gradients are differentiated.
  std::vector<at::Tensor> run_again(at::TensorList inputs, at::IntArrayRef ints, at::ArrayRef<double> floats);

  ArgumentsForm form;
  AmbientSettings ambient = {};
  Function::Modes modes;                                    // under those settings, where they are watched
  std::shared_ptr<State> state;                             // null: nothing but the arguments counts
  std::vector<std::shared_ptr<State>> states_of_gradients;  // what Python code of gradients reads, of each recording
  Function function;

 private:
  class Given;
  Function::Results run_program(at::TensorList inputs, c10::SymIntArrayRef ints, c10::ArrayRef<c10::SymFloat> floats);
  Function::Results run_once(Pending& p, at::TensorList inputs, c10::SymIntArrayRef ints, c10::ArrayRef<c10::SymFloat> floats);
  void say_compiling_next(Pending& p) const;
  Ref run_watched(Pending& p, const Given& given, const std::vector<Shallow>& before);
  Ref run_again(Pending& p, const Given& given, const std::vector<Shallow>& before, bool may_depend_on_it);
  bool has_written(const std::vector<Shallow>& before, const Given& given) const;
  Function::Results described(PyObject* result, at::TensorList inputs, const std::vector<Shallow>& before, const Given& given, Pending& p);
  void differentiate(const Function::Results& results, PyObject* result, const Given& given);
  Ref made_of(Function::Results results, Pending& p) const;
  bool is_of_state(PyObject* container) const;
  // Whether the program reads by itself an argument in whose place it was given another tensor, or a container that is a copy.
  bool reads_replaced(const Leaves& leaves, at::TensorList inputs) const;
  bool holds_the_same(const Leaves& leaves) const;
  void note_own(const Leaves& leaves);

  void take_turn(Pending& p, std::optional<Turns::OwnCode>& own);
  void note_writes(const ResultForm& made, const Given& given, Turns::Met met, Pending& p);

  bool writes_state_ = false, writes_arguments_ = false;  // in any recording
  bool goes_by_handled_ = false;                          // by the exception that the caller handled when it was captured, of this type
  Ref handled_;
  std::shared_ptr<const ProgramAgain> again_;
  Subject* subject_ = nullptr;  // of the callable, which has this version
  // An argument may be a tensor or container that the program also reaches by itself: then it must be that one, as it was when
  // captured.
  bool noted_own_ = false;
  std::vector<const c10::TensorImpl*> own_tensors_;  // for each input, null unless it was one of the state's
  std::vector<const PyObject*> own_containers_;      // likewise
};

}  // namespace broach
