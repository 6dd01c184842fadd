// Slots: rows of a cache -> their places in a batch, and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gather/rows.h"
#include "parallel/pool.h"

namespace outcrop::gather {

// Row slots[i] of `cached`, decoded -> out[i]; entries below zero are left alone.
// REQUIRES: slots are within `cached`, out has a row for each.
void GatherSlots(const RowArray& cached, std::span<const int32_t> slots, parallel::Pool& pool,
                 std::span<float> out);

// Rows of a batch as they are stored -> out, decoded, where slots[i] is below zero.
void DecodeMisses(const RowArray& stored, std::span<const int32_t> slots, parallel::Pool& pool,
                  std::span<float> out);

// Row positions[i] of `source` -> row slots[i] of `cached`. REQUIRES: slots differ.
void UpdateSlots(const std::byte* source, size_t row_bytes, std::span<const uint32_t> positions,
                 std::span<const uint32_t> slots, parallel::Pool& pool, std::byte* cached);

}  // namespace outcrop::gather
