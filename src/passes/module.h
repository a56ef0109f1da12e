// A program as stages that are joined by value slots: graphs with what they take and what they give.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace broach {

// Holds a value that outlives a stage, or goes into the program or out of it.
struct Slot {
  Type type;
  Shape strides;
};

struct Stage {
  enum class Runs : uint8_t {
    once,           // and again where a constant that it takes has changed
    in_call,        // in every call
    for_sizes,      // in every call: one call of the host's library, which finds out sizes, known to the stages behind it
    for_gradients,  // once gradients of a call are asked for: only what these need of it, which is compiled then
  };
  Runs runs = Runs::in_call;
  std::shared_ptr<const Graph> graph;
  std::vector<size_t> takes, gives;  // slots, by input and by output of the graph

  // Whether it is compiled together with the program.
  bool is_compiled() const { return runs == Runs::once || runs == Runs::in_call; }
};

struct Module {
  Module() = default;
  explicit Module(std::shared_ptr<const Graph> graph);  // of one stage

  size_t inputs = 0;            // the first slots are the program's inputs
  std::vector<Slot> slots;      // of those that no stage takes or gives, nothing is said
  std::vector<Stage> stages;    // in the order in which they run
  std::vector<size_t> outputs;  // slots
  int64_t saved_bytes = 0;      // of what is kept for gradients in memory of its own, at the sizes' hints

  size_t new_slot(Type type, Shape strides);
  // Another graph of this stage, which gives the same.
  void set_graph(Stage& stage, Graph graph);
  // The text of a module of one stage is its graph's. Otherwise:
  //
  //   inputs 2
  //   stage once [1] -> [3]
  //     %0 = input(index=0) : f32[4]
  //     %1 = exp(%0) : f32[4]
  //     return %1
  //   stage in_call [0, 3] -> [2]
  //     ...
  //   outputs [2]
  std::string str() const;
  static Module parse(std::string_view text);
  // Throws an Error that names the stage where what it takes is not what was given.
  void verify() const;
};

}  // namespace broach
