#include "operations.h"

#include <ATen/core/function_schema.h>

#include <algorithm>
#include <vector>

namespace broach {

namespace {

// Torch gives callbacks no argument of ours, and carries them to its own threads, each of which has operations of its own.
thread_local std::vector<const at::RecordFunction*> under_way;

bool computes_tensors(const at::RecordFunction* f) {
  auto schema = f->operator_schema();
  if (!schema || schema->getNamespace() != "aten") return false;
  const auto& returns = schema->returns();
  auto is_number = [](const c10::Argument& r) {
    auto kind = r.type()->kind();
    return kind == c10::TypeKind::NumberType || kind == c10::TypeKind::BoolType || kind == c10::TypeKind::IntType ||
           kind == c10::TypeKind::FloatType;
  };
  return returns.empty() || !std::all_of(returns.begin(), returns.end(), is_number);
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& f) {
  under_way.push_back(&f);
  return nullptr;
}

void end(const at::RecordFunction&, at::ObserverContext*) {
  if (!under_way.empty()) under_way.pop_back();
}

}  // namespace

OperationsUnderWay::OperationsUnderWay()
    : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::FUNCTION}))) {}

OperationsUnderWay::~OperationsUnderWay() {
  at::removeCallback(handle_);
  under_way.clear();
}

std::string OperationsUnderWay::innermost() {
  auto found = std::find_if(under_way.rbegin(), under_way.rend(), computes_tensors);
  return found == under_way.rend() ? "" : (*found)->name();
}

}  // namespace broach
