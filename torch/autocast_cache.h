// Autocast keeps what it made of a weight until its outermost block ends. A capture that was given such a tensor would take it for one of
// the program's own, and not see the weight change.
#pragma once

namespace broach {

class WithoutAutocastCache {
 public:
  WithoutAutocastCache();
  ~WithoutAutocastCache();
  WithoutAutocastCache(const WithoutAutocastCache&) = delete;
  WithoutAutocastCache& operator=(const WithoutAutocastCache&) = delete;

  // The program of this thread's capture asks for the setting, or sets it, and is to find its own. The capture must be rejected.
  static void end_here();

 private:
  void end();

  const bool enabled_;
  WithoutAutocastCache* const outer_;
  bool is_over_ = false;
};

}  // namespace broach
