// Reading text forms, which consist of lines: a position in a line, and the parts of the grammar that the forms share.
#pragma once

#include <cctype>
#include <charconv>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "support/error.h"

namespace broach {

inline bool is_word_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// A position in one line of the text.
struct Cursor {
  std::string_view line;
  size_t number;  // of the line, from 1
  size_t at = 0;

  template <class... Args>
  [[noreturn]] void fail_at(size_t position, const Args&... args) const {
    fail("line ", number, ", column ", position + 1, ": ", args...);
  }
  // Gives what `f` gives; an error of it gets this position.
  template <class F>
  auto placed(size_t position, const F& f) const {
    try {
      return f();
    } catch (const Error& e) {
      fail_at(position, e.what());
    }
  }
  void skip() {
    while (at < line.size() && line[at] == ' ') ++at;
  }
  bool ends() {
    skip();
    return at == line.size();
  }
  char peek() {
    skip();
    return at < line.size() ? line[at] : '\0';
  }
  bool accept(std::string_view s) {
    skip();
    // A word is not the beginning of a longer word.
    bool longer = is_word_char(s.back()) && at + s.size() < line.size() && is_word_char(line[at + s.size()]);
    if (line.substr(at, s.size()) != s || longer) return false;
    at += s.size();
    return true;
  }
  void expect(std::string_view s) {
    if (accept(s)) return;
    fail_at(at, "expected '", s, "', found ", at < line.size() ? cat("'", line.substr(at, 12), "'") : "the end of the line");
  }
  // A letter that digits follow.
  void expect_char(char c) {
    if (peek() != c)
      fail_at(at, "expected '", c, "', found ", at < line.size() ? cat("'", line.substr(at, 12), "'") : "the end of the line");
    ++at;
  }
  std::string_view word() {
    skip();
    size_t start = at;
    while (at < line.size() && is_word_char(line[at])) ++at;
    if (at == start) fail_at(at, "expected a name");
    return line.substr(start, at - start);
  }
  // What a number is made of: digits, a sign before them or after an exponent, and the words inf and nan.
  std::string_view number_text() {
    skip();
    size_t end = at;
    while (end < line.size() &&
           (is_word_char(line[end]) || line[end] == '.' || ((line[end] == '-' || line[end] == '+') && (end == at || line[end - 1] == 'e'))))
      ++end;
    return line.substr(at, end - at);
  }
  bool at_double() {
    std::string_view t = number_text();
    if (t.starts_with("nan") || t == "inf" || t == "-inf") return true;
    size_t digit = t.starts_with('-') ? 1 : 0;
    return digit < t.size() && std::isdigit(static_cast<unsigned char>(t[digit])) && t.find_first_of(".e") != t.npos;
  }
  template <class T>
  T number_as(const char* what) {
    std::string_view t = number_text();
    T value{};
    auto [end, error] = std::from_chars(t.data(), t.data() + t.size(), value);
    if (error != std::errc() || end != t.data() + t.size()) fail_at(at, "expected ", what, ", found '", t, "'");
    at += t.size();
    return value;
  }
  int64_t digits() {
    size_t end = at;
    while (end < line.size() && std::isdigit(static_cast<unsigned char>(line[end]))) ++end;
    int64_t value = 0;
    if (std::from_chars(line.data() + at, line.data() + end, value).ec != std::errc()) fail_at(at, "expected a number");
    at = end;
    return value;
  }
  int64_t integer() { return number_as<int64_t>("an integer"); }
  double floating();
  // The name of an element type.
  DType dtype() {
    size_t start = (skip(), at);
    std::string_view name = word();
    return placed(start, [&] { return parse_dtype(name); });
  }
  bool boolean() {
    if (accept("true")) return true;
    expect("false");
    return false;
  }
  std::string quoted();
  template <class F>
  auto list(std::string_view open, std::string_view close, const F& item) {
    std::vector<decltype(item())> out;
    expect(open);
    if (accept(close)) return out;
    do out.push_back(item());
    while (accept(","));
    expect(close);
    return out;
  }
};

// What `f` finds wrong is said to be wrong with `part`.
template <class F>
void verify_part(const std::string& part, const F& f) {
  try {
    f();
  } catch (const Error& e) {
    fail(part, ": ", e.what());
  }
}

// One line after the other. `lines` is counted from the first, so that a part of a text names its lines in the whole.
class TextParser {
 protected:
  TextParser(std::string_view text, std::shared_ptr<Symbols> symbols, size_t lines = 0)
      : symbols_(std::move(symbols)), text_(text), number_(lines) {}
  ~TextParser() = default;

  // Calls `line` for each line that says something, cut off its comment; what it leaves unread is an error.
  void for_each_line(const std::function<void()>& line);
  // Where the text ends too early.
  template <class... Args>
  [[noreturn]] void fail_at_end(const Args&... args) const {
    fail("line ", number_ + 1, ", column 1: ", args...);
  }
  // Reads a line that declares a symbol, a number of the host or a guard; false for any other.
  bool declaration();

  SymInt expression();
  Shape shape() {
    return c_.list("[", "]", [&] { return expression(); });
  }
  Op op();
  Type type();
  Device device();
  Scalar scalar();
  ExternArg argument();
  void attribute(Op op, Attrs& attrs);  // dims=[1]
  std::vector<ExternCall::Bind> binds();
  HostFloats::Id float_id();
  // The position of the line's comment in a list of all that were met, or -1; a new one is given to `add`.
  int32_t line_index(const std::function<void(const std::string&)>& add);

  // The lines behind this one that begin with `first` or are indented, and how many lines lie before them.
  std::pair<std::string_view, size_t> block(std::string_view first);

  Cursor c_{{}, 0};
  std::optional<std::string> comment_;
  std::shared_ptr<ExternCall> call_;  // the last that was read, whose results are for the caller to say
  std::shared_ptr<Symbols> symbols_;
  // Whether an expression may mention it.
  std::function<bool(SymbolId)> declares_ = [this](SymbolId id) { return id < symbols_->infos().size(); };

 private:
  void next_line();
  std::optional<std::string> take_comment();
  void symbol();
  std::pair<std::string, int64_t> field_of_symbol();
  void guard();
  void host_float();
  HostFloats::Step float_step();
  void decision(bool answer);
  ExternArg opaque();
  std::shared_ptr<ExternCall> call();
  AttrValue attribute_value(Attr a);
  Relation relation();

  std::string_view text_;
  size_t next_ = 0;    // where in the text the next line begins
  size_t number_ = 0;  // of the lines that were read
  std::vector<std::shared_ptr<const void>> opaque_;
  std::unordered_map<std::string, int32_t> lines_;
};

}  // namespace broach
