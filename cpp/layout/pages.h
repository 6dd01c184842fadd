// Pages: what is read of a segment, page by page, in any selection -> a checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "disk/file.h"

namespace outcrop::layout {

// XXH64 of a page, or of several as one. REQUIRES: page.size() is a multiple of 32.
uint64_t PageChecksum(std::span<const std::byte> page, uint64_t seed);

// Runs of pages that follow each other in `bytes`: counts[i] pages from number firsts[i] on.
// Each page's checksum has its number as the seed, so that a page in another's place is noticed.
// REQUIRES: as many pages as counts name.

// The sum of all checksums, modulo 2^64: pages may be added in any selection and order.
uint64_t SumOfPages(std::span<const std::byte> bytes, std::span<const int64_t> firsts,
                    std::span<const int64_t> counts);
// The checksum of each of the pages from number `first` on.
void ChecksumPages(std::span<const std::byte> bytes, uint64_t first, std::span<uint64_t> out);

}  // namespace outcrop::layout
