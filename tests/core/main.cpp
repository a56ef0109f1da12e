#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  setenv("BROACH_VERIFY", "1", 0);
  return doctest::Context(argc, argv).run();
}
