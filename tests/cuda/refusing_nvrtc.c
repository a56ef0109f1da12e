// NVRTC as it would be if it did not take some of our code: it refuses a program of which one kernel has all words of BROACH_TEST_REFUSED,
// and hands everything else on to the library that BROACH_TEST_NVRTC names.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef void* Program;
enum { kMost = 4096, kCompilationError = 6 };
static const char kLog[] = "refused";
static Program refused[kMost];
static int count = 0;

static void* real(const char* name) {
  static void* library = 0;
  if (!library) library = dlopen(getenv("BROACH_TEST_NVRTC"), RTLD_NOW | RTLD_LOCAL);
  return dlsym(library, name);
}

static int is_refused(Program program) {
  for (int i = 0; i < count; ++i)
    if (refused[i] == program) return 1;
  return 0;
}

// Kernels are divided by this word.
static int has_refused_kernel(const char* source) {
  static const char kKernel[] = "__global__";
  const char* at = strstr(source, kKernel);
  while (at) {
    const char* next = strstr(at + 1, kKernel);
    const size_t length = next ? (size_t)(next - at) : strlen(at);
    char* kernel = strndup(at, length);
    char* words = strdup(getenv("BROACH_TEST_REFUSED"));
    int all = 1;
    for (char* word = strtok(words, " "); word; word = strtok(0, " ")) all = all && strstr(kernel, word);
    free(words);
    free(kernel);
    if (all) return 1;
    at = next;
  }
  return 0;
}

int nvrtcVersion(int* major, int* minor) { return ((int (*)(int*, int*))real(__func__))(major, minor); }
int nvrtcCreateProgram(Program* out, const char* source, const char* name, int headers, const char* const* texts, const char* const* names) {
  typedef int (*Create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  const int result = ((Create)real(__func__))(out, source, name, headers, texts, names);
  if (result == 0 && count < kMost && has_refused_kernel(source)) refused[count++] = *out;
  return result;
}
int nvrtcCompileProgram(Program program, int options, const char* const* texts) {
  if (is_refused(program)) return kCompilationError;
  return ((int (*)(Program, int, const char* const*))real(__func__))(program, options, texts);
}
int nvrtcGetCUBINSize(Program program, size_t* bytes) { return ((int (*)(Program, size_t*))real(__func__))(program, bytes); }
int nvrtcGetCUBIN(Program program, char* out) { return ((int (*)(Program, char*))real(__func__))(program, out); }
int nvrtcGetProgramLogSize(Program program, size_t* bytes) {
  if (!is_refused(program)) return ((int (*)(Program, size_t*))real(__func__))(program, bytes);
  *bytes = sizeof kLog;
  return 0;
}
int nvrtcGetProgramLog(Program program, char* out) {
  if (!is_refused(program)) return ((int (*)(Program, char*))real(__func__))(program, out);
  memcpy(out, kLog, sizeof kLog);
  return 0;
}
int nvrtcDestroyProgram(Program* program) {
  for (int i = 0; i < count; ++i)
    if (refused[i] == *program) refused[i] = 0;
  return ((int (*)(Program*))real(__func__))(program);
}
