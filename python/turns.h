// Turns that threads take in one program, where it writes objects of Python's.
//
// A compiled call writes such objects at its end, by what it read at its beginning, and runs without Python's lock between: what another
// thread wrote meanwhile would be lost. So it goes alone. It waits for other compiled calls, which end by themselves; where another thread
// is within the program's own code, which may wait for whatever it likes, it leaves the call to that code too. All members need the GIL.
#pragma once

#include <Python.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace broach {

class Turns {
 public:
  Turns() = default;
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // What is written: what the program holds, or some of the containers that it is given; nothing stands for any of them.
  struct Objects {
    bool state = true;
    std::optional<std::vector<PyObject*>> given;
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
  };

 public:
  // While it lives, this thread is in the program's own code. Waits for compiled calls that write the same.
  class OwnCode {
   public:
    OwnCode(Turns& turns, Objects objects);
    ~OwnCode() { turns_.end(turn_); }
    OwnCode(const OwnCode&) = delete;
    OwnCode& operator=(const OwnCode&) = delete;
    Met met() const { return turn_.met; }
    bool has_waited() const { return has_waited_; }

   private:
    Turns& turns_;
    Turn turn_;
    bool has_waited_ = false;
  };

  // While it lives, no other thread writes the same. Begin one only if `ask` said that it may go. `has_stand_ins`: what is written has
  // others' values meanwhile, which no thread may see.
  class Compiled {
   public:
    Compiled(Turns& turns, Objects objects, bool has_stand_ins = false)
        : turns_(turns), turn_{std::this_thread::get_id(), std::move(objects), true, has_stand_ins} {
      turns_.turns_.push_back(&turn_);
    }
    ~Compiled() { turns_.end(turn_); }
    Compiled(const Compiled&) = delete;
    Compiled& operator=(const Compiled&) = delete;

   private:
    Turns& turns_;
    Turn turn_;
  };

  // waited: for another one, so that everything is to be asked anew.
  enum class May : uint8_t { go, waited, not_now };
  May ask(const Objects& objects);
  // To be called before anything that is written is looked at.
  void wait_for_stand_ins();

 private:
  // False if there was none to wait for.
  bool wait_for_compiled(const Turn& turn);
  void wait_for_one();
  void end(const Turn& turn);

  std::vector<Turn*> turns_;  // under way
  std::mutex mutex_;
  std::condition_variable ended_;
  uint64_t compiled_ended_ = 0;  // guarded by the mutex too
};

}  // namespace broach
