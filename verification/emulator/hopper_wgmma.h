// wgmma of the model: a warpgroup's, whole, in order. The sums of its threads are here while any is under way.
#pragma once
#include "hopper_model.h"

namespace hopper {

// TMA's and wgmma's permutation of the 16-byte words of an address: bits 4 and up flipped by bits 7 and up.
static uint32_t swizzled(uint32_t address, int bits) { return address ^ ((address >> 7 & ((1u << bits) - 1)) << 4); }

static float* half_values() {
  static float* values = [] {
    auto* made = new float[65536];
    for (int bits = 0; bits < 65536; bits++) {
      half value;
      value.bits = bits;
      made[bits] = value;
    }
    return made;
  }();
  return values;
}

static int row_of(int thread, int i) { return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8; }
static int column_of(int thread, int i) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

// Of a descriptor: where element (mn, k) lies. `across`: m or n is contiguous.
static uint32_t element_at(uint64_t descriptor, bool across, int mn, int k) {
  static const int log_width[4] = {4, 7, 6, 5};
  const int log = log_width[descriptor >> 62], width = 1 << log;
  const uint32_t start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
  const uint32_t stride = (descriptor >> 32 & 0x3fff) << 4;
  const uint32_t at = across ? mn / (width / 2) * leading + k / 8 * stride + k % 8 * width + mn % (width / 2) * 2
                             : mn / 8 * stride + mn % 8 * width + k * 2;
  return swizzled(start + at, log - 4);
}

static void read_operand(const Block& block, uint64_t descriptor, bool across, bool bf16, int extent, float* into) {
  const float* values = half_values();
  // Eight elements at a time: a word of 16 bytes, which a swizzle leaves together.
  for (int mn = 0; mn < extent; mn += across ? 8 : 1)
    for (int k = 0; k < 16; k += across ? 1 : 8) {
      const uint32_t word = element_at(descriptor, across, mn, k);
      float* to = &into[k * extent + mn];
      for (uint32_t at = word; at < word + 16; at += 2, to += across ? 1 : extent) {
        uint16_t bits = 0xffff;
        if (at + 2 <= block.size) memcpy(&bits, &block.async[at], 2);
        uint32_t wide = (uint32_t)bits << 16;
        if (bf16) memcpy(to, &wide, 4);
        else *to = values[bits];
      }
    }
}

void multiply(Block& block, int warpgroup, int until) {
  Warpgroup& group = block.warpgroups[warpgroup];
  static float a[16 * 64], b[16 * 256];
  for (; group.done < until; group.done++) {
    const Multiply& m = group.list[group.done];
    Sums& sums = group.sums[m.sums];
    read_operand(block, m.a, m.across_a, m.bf16, 64, a);
    read_operand(block, m.b, m.across_b, m.bf16, m.n, b);
    const int columns = m.n;  // that no store below may change it lets the compiler use vectors
    float* values = sums.values.data();
    if (!m.adds) std::fill(sums.values.begin(), sums.values.end(), 0.0f);
    for (int row = 0; row < 64; row++)
      for (int k = 0; k < 16; k++) {
        const float left = a[k * 64 + row];
        const float* right = b + k * columns;
        float* to = values + row * columns;
        for (int n = 0; n < columns; n++) to[n] += left * right[n];
      }
    if (m.half)
      for (float& value : sums.values) value = half(value);
    if (m.unfenced) std::fill(sums.values.begin(), sums.values.end(), NAN);
  }
  if (group.done < (int)group.list.size()) return;
  auto& list = state->multiplying;
  list.erase(std::remove(list.begin(), list.end(), std::make_pair(&block, warpgroup)), list.end());
}

// The value of a thread's registers moves here while wgmmas are under way, and what is in them means nothing.
static void hold(Sums& sums, int thread) {
  if (sums.held[thread]) return;
  sums.held[thread] = true;
  for (int i = 0; i < sums.n / 2; i++) {
    float& value = sums.values[row_of(thread, i) * sums.n + column_of(thread, i)];
    if (sums.half) value = ((const half*)sums.registers[thread])[i];
    else value = ((const float*)sums.registers[thread])[i];
  }
  memset(sums.registers[thread], 0xff, sums.n / 2 * (sums.half ? 2 : 4));
}

static void give_back(Sums& sums, int thread) {
  sums.held[thread] = false;
  for (int i = 0; i < sums.n / 2; i++) {
    const float value = sums.values[row_of(thread, i) * sums.n + column_of(thread, i)];
    if (sums.half) ((half*)sums.registers[thread])[i] = half(value);
    else ((float*)sums.registers[thread])[i] = value;
  }
}

void wgmma(void* registers, int n, bool half_sums, bool bf16, bool across_a, bool across_b, uint64_t a, uint64_t b,
           bool adds) {
  Fiber& fiber = self();
  const int number = fiber.thread / 128, thread = fiber.thread % 128;
  Warpgroup& group = block().warpgroups[number];
  if (fiber.issued == (int)group.list.size()) {
    size_t at = 0;
    while (at < group.sums.size() && group.sums[at].registers[thread] != registers) at++;
    if (at == group.sums.size()) group.sums.emplace_back();
    if (group.done == (int)group.list.size()) state->multiplying.emplace_back(&block(), number);
    group.list.push_back({a, b, n, half_sums, bf16, across_a, across_b, adds, false, (int)at, 0});
  }
  Multiply& mine = group.list[fiber.issued++];
  Sums& sums = group.sums[mine.sums];
  if (!sums.n) sums.n = n, sums.half = half_sums, sums.values.resize(64 * n);
  if (mine.a != a || mine.b != b || sums.n != n) fail("threads of a warpgroup differ about a wgmma");
  sums.registers[thread] = registers;
  hold(sums, thread);
  if (!fiber.fenced) mine.unfenced = true;
  if (++mine.issued < 128) return;
  wake(block());
  if (state->reads >= 1) multiply(block(), number, fiber.issued);
}

void wgmma_fence() { self().fenced = true; }
void wgmma_commit() { self().groups.push_back(self().issued); }

void wgmma_wait(int pending) {
  pause();
  Fiber& fiber = self();
  if ((int)fiber.groups.size() <= pending) return;
  const int number = fiber.thread / 128, thread = fiber.thread % 128;
  const int until = fiber.groups[fiber.groups.size() - 1 - pending];
  if (!until) return;
  Warpgroup& group = block().warpgroups[number];
  if (group.list[until - 1].issued < 128) pause(Fiber::wgmma, until);
  if (group.done < until) multiply(block(), number, until);
  // Sums that a later wgmma of this thread adds to stay under way.
  for (size_t at = 0; at < group.sums.size(); at++) {
    bool later = false;
    for (int i = until; i < fiber.issued; i++) later |= group.list[i].sums == (int)at;
    if (later || !group.sums[at].held[thread]) continue;
    give_back(group.sums[at], thread);
    fiber.fenced = false;
  }
}

}  // namespace hopper
