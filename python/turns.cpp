#include "turns.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace broach {

namespace {

constexpr std::chrono::seconds kLongest(10);  // longer than recordings take

bool meet(const std::vector<PyObject*>& a, const std::vector<PyObject*>& b) {
  return std::ranges::any_of(a, [&](PyObject* o) { return std::ranges::find(b, o) != b.end(); });
}

bool share_state(const Turns::Objects& a, const Turns::Objects& b) {
  return a.state && b.state && (a.program == b.program || !a.owners || !b.owners || meet(*a.owners, *b.owners));
}

bool share_given(const Turns::Objects& a, const Turns::Objects& b) {
  if (a.given && b.given) return meet(*a.given, *b.given);
  auto has_some = [](const Turns::Objects& o) { return !o.given || !o.given->empty(); };
  return a.program == b.program && has_some(a) && has_some(b);
}

bool share(const Turns::Objects& a, const Turns::Objects& b) { return share_state(a, b) || share_given(a, b); }

}  // namespace

// Never freed: calls may be under way while the process ends. A process that is forked off has none of the other threads.
Turns& Turns::get() {
  static Turns* turns = new Turns;
  [[maybe_unused]] static const int is_registered = pthread_atfork(nullptr, nullptr, [] { turns = new Turns; });
  return *turns;
}

Turns::OwnCode::OwnCode(Objects objects) : turn_{std::this_thread::get_id(), std::move(objects), false, false} {
  while (get().wait_for_compiled(turn_)) has_waited_ = true;
  for (Turn* other : get().turns_) {
    if (other->thread == turn_.thread) continue;
    const bool state = share_state(other->objects, turn_.objects), given = share_given(other->objects, turn_.objects);
    for (Turn* t : {other, &turn_}) t->met = {t->met.state || state, t->met.given || given};
  }
  get().turns_.push_back(&turn_);
}

Turns::May Turns::ask(const Objects& objects) {
  const Turn turn{std::this_thread::get_id(), objects, true, false};
  if (wait_for_compiled(turn)) return May::waited;
  auto is_other = [&](const Turn* t) { return t->thread != turn.thread && share(t->objects, objects); };
  return std::ranges::any_of(turns_, is_other) ? May::not_now : May::go;
}

bool Turns::wait_for_compiled(const Turn& turn) {
  if (std::ranges::none_of(turns_, [&](const Turn* t) { return is_in_the_way(*t) && share(t->objects, turn.objects); })) return false;
  wait_for_one();
  return true;
}

void Turns::wait_for_stand_ins(const std::function<Objects()>& objects) {
  auto has_some = [this](const Turn* t) { return t->has_stand_ins && is_in_the_way(*t); };
  if (std::ranges::none_of(turns_, has_some)) return;
  const Objects own = objects();
  while (std::ranges::any_of(turns_, [&](const Turn* t) { return has_some(t) && share(t->objects, own); })) wait_for_one();
}

void Turns::wait_for_one() {
  const uint64_t seen = compiled_ended_;
  bool has_ended = false;
  PyThreadState* thread = PyEval_SaveThread();
  {
    std::unique_lock lock(mutex_);
    has_ended = ended_.wait_for(lock, kLongest, [&] { return compiled_ended_ != seen; });
  }
  PyEval_RestoreThread(thread);
  for (Turn* t : turns_)
    if (!has_ended && compiled_ended_ == seen && t->has_stand_ins && is_in_the_way(*t)) t->is_passed = true;
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
