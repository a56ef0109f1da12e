// Turns that threads take in programs that write objects of Python's.
//
// A compiled call writes such objects at its end, by what it read at its beginning, and runs without Python's lock between: what another
// thread wrote meanwhile would be lost. So it goes alone. It waits for other compiled calls, which end by themselves; where another thread
// is within the program's own code, which may wait for whatever it likes, it leaves the call to that code too. All members need the GIL.
#pragma once

#include <Python.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace broach {

class Turns {
 public:
  // Those of the process.
  static Turns& get();

  // What is written: what a program holds, in these owners, or some of the containers that it is given; nothing stands for any of them.
  struct Objects {
    const void* program;
    bool state;
    std::optional<std::vector<PyObject*>> owners, given;
  };
  // Other threads in the program's own code, which may write the same.
  struct Met {
    bool state = false, given = false;
  };

 private:
  struct Turn {
    std::thread::id thread;
    Objects objects;
    bool is_compiled, has_stand_ins;
    Met met = {};
    bool is_passed = false;  // others wait no more
  };

 public:
  // While it lives, this thread is in the program's own code. Waits for compiled calls that write the same.
  class OwnCode {
   public:
    explicit OwnCode(Objects objects);
    ~OwnCode() { get().end(turn_); }
    OwnCode(const OwnCode&) = delete;
    OwnCode& operator=(const OwnCode&) = delete;
    Met met() const { return turn_.met; }
    bool has_waited() const { return has_waited_; }

   private:
    Turn turn_;
    bool has_waited_ = false;
  };

  // While it lives, no other thread writes the same. Begin one only if `ask` said that it may go. `has_stand_ins`: what is written has
  // others' values meanwhile, which no thread may see; it is the program's own code that runs then, and should that wait for another thread
  // after all (in a destructor), which waits for it, the other one goes on after a while.
  class Compiled {
   public:
    explicit Compiled(Objects objects, bool has_stand_ins = false)
        : turn_{std::this_thread::get_id(), std::move(objects), true, has_stand_ins} {
      get().turns_.push_back(&turn_);
    }
    ~Compiled() { get().end(turn_); }
    // Whether another thread has gone on beside it.
    bool is_passed() const { return turn_.is_passed; }
    Compiled(const Compiled&) = delete;
    Compiled& operator=(const Compiled&) = delete;

   private:
    Turn turn_;
  };

  // waited: for another one, so that everything is to be asked anew.
  enum class May : uint8_t { go, waited, not_now };
  May ask(const Objects& objects);
  // To be called before anything that is written is looked at. `objects` are asked for only where there are some.
  void wait_for_stand_ins(const std::function<Objects()>& objects);

 private:
  Turns() = default;
  // False if there was none to wait for.
  bool wait_for_compiled(const Turn& turn);
  bool is_in_the_way(const Turn& t) const { return t.is_compiled && !t.is_passed && t.thread != std::this_thread::get_id(); }
  void wait_for_one();
  void end(const Turn& turn);

  std::vector<Turn*> turns_;  // under way
  std::mutex mutex_;
  std::condition_variable ended_;
  uint64_t compiled_ended_ = 0;  // guarded by the mutex too
};

}  // namespace broach
