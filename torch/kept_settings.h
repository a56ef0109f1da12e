// Settings of torch.
#pragma once

#include <memory>

namespace broach {

// Those that a program depends on without naming them, to be set again where a run that counts for nothing has set others.
class KeptSettings {
 public:
  KeptSettings();
  ~KeptSettings();
  KeptSettings(const KeptSettings&) = delete;
  KeptSettings& operator=(const KeptSettings&) = delete;
  void put_back() const;

 private:
  struct Values;
  const std::unique_ptr<const Values> values_;
};

}  // namespace broach
