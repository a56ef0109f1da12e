// Tests in text files: what is given, and what must come of it.
//
//     case: what it shows
//     constant: 1 2            (inputs that are the same from call to call; may be missing)
//     gradients: 1             (outputs that are computed later, with the last input; may be missing)
//     parts: 0 1               (by output: the part of the graph that gives it; may be missing)
//     reads: 0 1               (by input: the last part that may read it; if missing, each may)
//     decides: 0               (outputs that say which way the program goes)
//     <what is given>
//     becomes:                 (or "stays", and nothing behind it)
//     <what must come of it>
//
// With BROACH_TEST_RECORD=1 what came of it is written into the files instead.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace broach::testing {

struct TextCase {
  std::string title, constant, gradients, parts, reads, decides, before, after;
};

inline std::vector<TextCase> read_cases(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<TextCase> out;
  bool behind = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("case: ")) {
      out.push_back({line.substr(6), "", "", "", "", "", "", ""});
      behind = false;
    } else if (line.starts_with("constant: ")) {
      out.back().constant = line.substr(10);
    } else if (line.starts_with("gradients: ")) {
      out.back().gradients = line.substr(11);
    } else if (line.starts_with("parts: ")) {
      out.back().parts = line.substr(7);
    } else if (line.starts_with("reads: ")) {
      out.back().reads = line.substr(7);
    } else if (line.starts_with("decides: ")) {
      out.back().decides = line.substr(9);
    } else if (line == "becomes:" || line == "stays") {
      behind = true;
      if (line == "stays") out.back().after = out.back().before;
    } else if (!line.empty() && !out.empty()) {
      (behind ? out.back().after : out.back().before) += line + "\n";
    }
  }
  return out;
}

inline void write_cases(const std::filesystem::path& path, const std::vector<TextCase>& cases) {
  std::ofstream file(path);
  for (const TextCase& c : cases) {
    file << (&c == cases.data() ? "" : "\n") << "case: " << c.title << "\n";
    if (!c.constant.empty()) file << "constant: " << c.constant << "\n";
    if (!c.gradients.empty()) file << "gradients: " << c.gradients << "\n";
    if (!c.parts.empty()) file << "parts: " << c.parts << "\n";
    if (!c.reads.empty()) file << "reads: " << c.reads << "\n";
    if (!c.decides.empty()) file << "decides: " << c.decides << "\n";
    file << c.before << (c.after == c.before ? "stays\n" : "becomes:\n" + c.after);
  }
}

inline bool records() { return std::getenv("BROACH_TEST_RECORD") != nullptr; }

}  // namespace broach::testing
