#include "kept_weights.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace broach {

const char* name_of(KeptWeight::Why why) {
  switch (why) {
    case KeptWeight::Why::computed_once: return "computed once";
    case KeptWeight::Why::measured: return "measured";
    case KeptWeight::Why::being_measured: return "being measured";
    case KeptWeight::Why::not_measured: return "not measured";
  }
  return "";
}

std::vector<KeptWeights> grouped(const std::vector<KeptWeight>& kept) {
  std::map<std::tuple<std::string, KeptWeight::Why, double, double>, KeptWeights> groups;
  std::set<const void*> counted;
  for (const KeptWeight& k : kept) {
    const PackingGain gain = k.gain.value_or(PackingGain{});
    KeptWeights& group = groups[{k.text, k.why, gain.packed, gain.unpacked}];
    group.what = k.text, group.why = name_of(k.why);
    ++group.count;
    if (counted.insert(k.address).second) group.bytes += k.bytes;
    group.seconds += gain.packed, group.seconds_unpacked += gain.unpacked;
  }
  std::vector<KeptWeights> out;
  for (auto& [key, group] : groups) out.push_back(std::move(group));
  std::ranges::stable_sort(out, std::ranges::greater(), &KeptWeights::bytes);
  return out;
}

}  // namespace broach
