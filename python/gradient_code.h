// Python code that gradients run within a captured program: that of custom functions and of hooks. Eager's engine runs it while gradients
// are recorded, long before the program's caller asks for them, so it must leave nothing behind.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "capture.h"
#include "places.h"
#include "reference.h"
#include "state.h"

namespace broach {

// Why what a node runs besides a formula of torch's is no Python code; empty if it is. `hooks`, if given, get the functions of its hooks.
std::string why_no_python(torch::autograd::Node& node, bool is_formula, std::vector<Ref>* hooks = nullptr);

class PythonGradients : public GradientCode {
 public:
  // `state`: what the program reads. `reached`: what it was given and has given. `places`: where it keeps values from call to call.
  PythonGradients(const State& state, const std::vector<StatePlace>& places, std::vector<PyObject*> reached);

  std::string obstacle(torch::autograd::Node& node, bool is_formula, size_t results) override;
  std::string run(const std::function<void()>& engine) override;
  std::shared_ptr<const ReadByCode> read() const override;
  // What the code itself reads: it runs later than the program, and goes by what is there then.
  const std::shared_ptr<State>& own_state() const { return own_; }

 private:
  Ref hide_places() const;

  const State& state_;
  std::shared_ptr<State> own_;
  const std::vector<StatePlace>& places_;
  std::vector<PyObject*> reached_;
  std::vector<Ref> hooks_, contexts_;
  bool goes_by_layout_ = false;
};

}  // namespace broach
