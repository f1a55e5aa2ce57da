// Global memory between blocks in the model: sums and flags, seen by others behind a release, and dependent kernels.
#pragma once
#include "hopper_model.h"

namespace hopper {

static void poisoned(float& a, float& b, float& c, float& d) { a = b = c = d = NAN; }

static void apply(Fiber& fiber, size_t until) {
  for (; fiber.applied < until; fiber.applied++) {
    const Write& write = fiber.log[fiber.applied];
    memcpy(write.to, write.values, 16);
    state->shown[write.to] = ++state->now;
  }
}

// All that happened before, of this thread and of those that it met.
void show_all(Fiber& fiber) {
  for (size_t i = 0; i < fiber.known.size(); i++) apply(fiber.block->fibers[i], fiber.known[i]);
  apply(fiber, fiber.log.size());
}

void fence_gpu() {
  show_all(self());
  self().acquired = state->now;
}

void store_global(const void* to, float a, float b, float c, float d) {
  self().log.push_back({(float*)to, {a, b, c, d}});
}

void load_global(float& a, float& b, float& c, float& d, const void* from) {
  const auto shown = state->shown.find(from);
  if (shown == state->shown.end() || shown->second > self().acquired) return poisoned(a, b, c, d);
  const float* values = (const float*)from;
  a = values[0], b = values[1], c = values[2], d = values[3];
}

void store_flag(const void* to, uint32_t value, bool release) {
  pause();
  if (release) show_all(self());
  *(uint32_t*)to = value;
  state->flags++;
  wake_all();
}

uint32_t load_flag(const void* from, bool acquire) {
  pause();
  // Asking again makes no difference until some flag has changed.
  if (!*(const uint32_t*)from) pause(Fiber::flag, state->flags);
  const uint32_t value = *(const uint32_t*)from;
  if (acquire) self().acquired = state->now;
  return value;
}

void launch_dependents() {
  if (!block().triggered) state->progress[block().kernel].triggered++;
  block().triggered = state->changed = true;
  pause();
}

void wait_for_kernel() {
  pause(Fiber::grid);
  self().acquired = state->now;
}

}  // namespace hopper
