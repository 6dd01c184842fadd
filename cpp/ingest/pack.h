// Pack: source and target ids as they come -> edge records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace outcrop::ingest {

struct PackOptions {
  int64_t num_nodes = 0;    // ids must be below it
  bool undirected = false;  // each edge that is no self loop also gets its reverse
  bool drop_loops = false;
};

struct Packed {
  size_t records = 0;   // written
  size_t edges = 0;     // taken from the input
  bool bad_id = false;  // edge number `edges` has an id that is negative or not below num_nodes
};

// Takes edges until the input ends, fewer than two records fit, or an id is bad.
// Edge i of the input is numbered first_number + i; a reverse has the number of its edge.
template <typename Record>
Packed Pack(std::span<const int64_t> sources, std::span<const int64_t> targets,
            const PackOptions& options, int64_t first_number, std::span<Record> out);

}  // namespace outcrop::ingest
