#include "turns.h"

#include <algorithm>
#include <utility>

namespace broach {

namespace {

// Whether one of these containers may be among those.
bool share(const Turns::Objects& a, const Turns::Objects& b) {
  auto is_none = [](const Turns::Objects& o) { return o.given && o.given->empty(); };
  if (is_none(a) || is_none(b)) return false;
  if (!a.given || !b.given) return true;
  return std::ranges::any_of(*a.given, [&](PyObject* o) { return std::ranges::find(*b.given, o) != b.given->end(); });
}

}  // namespace

Turns::OwnCode::OwnCode(Turns& turns, Objects objects)
    : turns_(turns), turn_{std::this_thread::get_id(), std::move(objects), false, false} {
  while (turns_.wait_for_compiled(turn_)) has_waited_ = true;
  for (Turn* other : turns_.turns_) {
    if (other->thread == turn_.thread) continue;
    const bool given = share(other->objects, turn_.objects);
    for (Turn* t : {other, &turn_}) t->met = {true, t->met.given || given};
  }
  turns_.turns_.push_back(&turn_);
}

Turns::May Turns::ask(const Objects& objects) {
  const Turn turn{std::this_thread::get_id(), objects, true, false};
  if (wait_for_compiled(turn)) return May::waited;
  auto is_in_the_way = [&](const Turn* t) {
    return t->thread != turn.thread && ((t->objects.state && objects.state) || share(t->objects, objects));
  };
  return std::ranges::any_of(turns_, is_in_the_way) ? May::not_now : May::go;
}

bool Turns::wait_for_compiled(const Turn& turn) {
  auto is_in_the_way = [&](const Turn* t) {
    return t->is_compiled && t->thread != turn.thread && ((t->objects.state && turn.objects.state) || share(t->objects, turn.objects));
  };
  if (std::ranges::none_of(turns_, is_in_the_way)) return false;
  wait_for_one();
  return true;
}

void Turns::wait_for_stand_ins() {
  auto is_in_the_way = [](const Turn* t) { return t->has_stand_ins && t->thread != std::this_thread::get_id(); };
  while (std::ranges::any_of(turns_, is_in_the_way)) wait_for_one();
}

void Turns::wait_for_one() {
  const uint64_t seen = compiled_ended_;
  PyThreadState* thread = PyEval_SaveThread();
  {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return compiled_ended_ != seen; });
  }
  PyEval_RestoreThread(thread);
}

void Turns::end(const Turn& turn) {
  std::erase(turns_, &turn);
  if (!turn.is_compiled) return;
  {
    std::lock_guard lock(mutex_);
    ++compiled_ended_;
  }
  ended_.notify_all();
}

}  // namespace broach
