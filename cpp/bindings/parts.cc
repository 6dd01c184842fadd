// Parts: a topology, list by list -> the part of each node, what is between parts, and their lists.
#include "layout/parts.h"

#include <nanobind/stl/pair.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "layout/fennel.h"

namespace outcrop::bindings {
namespace {

using layout::kPartMask;
using layout::kUnassigned;
using Assignment = Array1<uint32_t>;
using ConstAssignment = Array1<const uint32_t>;

template <typename T>
std::vector<T> Copied(const Array1<const T>& array) {
  return {array.data(), array.data() + array.size()};
}

// All nodes have a part below `parts`, or, of those that are not assigned, a group below `groups`.
void CheckAssigned(std::span<const uint32_t> assignment, size_t parts, size_t groups) {
  for (const uint32_t value : assignment) {
    const size_t most = (value & kUnassigned) != 0 ? groups : parts;
    if ((value & kPartMask) >= most) {
      throw nb::value_error(("no part or group " + std::to_string(value & kPartMask)).c_str());
    }
  }
}

layout::FennelLevel MakeLevel(Array1<const uint32_t> first_part, Array1<const double> degree,
                              Array1<const double> target, Array1<const uint64_t> most,
                              Array1<const double> seed_target, Array1<const uint64_t> most_seeds,
                              double gamma, uint64_t seed, bool bloom) {
  const auto firsts = Span(first_part);
  Require(firsts.size() >= 2 && firsts.front() == 0, "first_part must begin at 0 and have an end");
  Require(std::adjacent_find(firsts.begin(), firsts.end(), std::greater_equal<>()) == firsts.end(),
          "every group needs a part");
  Require(degree.size() + 1 == firsts.size(), "degree needs one for each group");
  Require(firsts.back() <= kPartMask, "at most 2^30 - 1 parts");
  const size_t parts = firsts.back();
  Require(target.size() == parts && most.size() == parts && seed_target.size() == parts &&
              most_seeds.size() == parts,
          "target, most, seed_target and most_seeds need one for each part");
  Require(std::isfinite(gamma) && gamma >= 1, "gamma must be at least 1");
  return {Copied(first_part),
          Copied(degree),
          Copied(target),
          Copied(seed_target),
          Copied(most),
          Copied(most_seeds),
          gamma,
          seed,
          bloom};
}

// Nodes must find room: what a group may have is at least what it has.
void CheckRoom(std::span<const uint32_t> assignment, const layout::FennelLevel& level) {
  std::vector<uint64_t> nodes(level.degree.size()), room(level.degree.size());
  const auto group_of = [&level](uint32_t part) {
    const auto after = std::upper_bound(level.first_part.begin(), level.first_part.end(), part);
    return static_cast<size_t>(after - level.first_part.begin()) - 1;
  };
  for (const uint32_t value : assignment) {
    const uint32_t part = value & kPartMask;
    ++nodes[(value & kUnassigned) != 0 ? part : group_of(part)];
  }
  for (uint32_t part = 0; part < level.most.size(); ++part) {
    room[group_of(part)] += level.most[part];
  }
  for (size_t group = 0; group < room.size(); ++group) {
    Require(nodes[group] <= room[group], "the parts of a group have too little room for its nodes");
  }
}

template <typename Index>
struct FennelHandle {
  Assignment assignment;
  layout::Fennel<Index> core;
};

// A pass over all lists: how many nodes and entries of what it is given it has used.
template <typename Index, typename Core>
std::pair<size_t, size_t> AddTo(Core& core, const Array1<const int64_t>& offsets,
                                const Array1<const Index>& entries) {
  Require(offsets.size() >= 1, "offsets need an end");
  nb::gil_scoped_release unlocked;
  const auto taken = core.Add(Span(offsets), Span(entries));
  return {taken.nodes, taken.entries};
}

template <typename Index, typename Handle, typename Class>
void BindPass(Class& bound) {
  bound
      .def(
          "add",
          [](Handle& self, Array1<const int64_t> offsets, Array1<const Index> entries) {
            return AddTo<Index>(self.core, offsets, entries);
          },
          nb::arg("offsets").noconvert(), nb::arg("entries").noconvert())
      .def_prop_ro("num_edges", [](const Handle& self) { return self.core.num_edges(); });
}

template <typename Index>
void BindFennel(nb::module_& m, const char* name) {
  using Handle = FennelHandle<Index>;
  auto bound = nb::class_<Handle>(m, name);
  bound.def(
      "__init__",
      [](Handle* self, Assignment assignment, Array1<const uint32_t> first_part,
         Array1<const double> degree, Array1<const double> target, Array1<const uint64_t> most,
         Array1<const double> seed_target, Array1<const uint64_t> most_seeds, double gamma,
         uint64_t seed, bool bloom) {
        auto level = MakeLevel(first_part, degree, target, most, seed_target, most_seeds, gamma,
                               seed, bloom);
        CheckAssigned(Span(assignment), level.most.size(), level.degree.size());
        CheckRoom(Span(assignment), level);
        new (self) Handle{assignment, {Span(assignment), std::move(level)}};
      },
      nb::arg("assignment").noconvert(), nb::arg("first_part").noconvert(),
      nb::arg("degree").noconvert(), nb::arg("target").noconvert(), nb::arg("most").noconvert(),
      nb::arg("seed_target").noconvert(), nb::arg("most_seeds").noconvert(), nb::arg("gamma"),
      nb::arg("seed"), nb::arg("bloom"));
  bound.def("restart", [](Handle& self) { self.core.Restart(); });
  BindPass<Index, Handle>(bound);
}

template <typename Index>
struct CountsHandle {
  ConstAssignment assignment;
  Array1<uint64_t> nodes, entries, inside;
  Array1<uint32_t> cross;
  layout::PartCounts<Index> core;
};

template <typename Index>
void BindCounts(nb::module_& m, const char* name) {
  using Handle = CountsHandle<Index>;
  auto bound = nb::class_<Handle>(m, name);
  bound.def(
      "__init__",
      [](Handle* self, ConstAssignment assignment, Array1<uint64_t> nodes, Array1<uint64_t> entries,
         Array1<uint64_t> inside, Array1<uint32_t> cross) {
        Require(entries.size() == nodes.size() && inside.size() == nodes.size(),
                "nodes, entries and inside need one for each part");
        Require(cross.size() == 0 || cross.size() == assignment.size(),
                "cross needs one for each node, or none");
        CheckAssigned(Span(assignment), nodes.size(), 0);
        new (self)
            Handle{assignment,
                   nodes,
                   entries,
                   inside,
                   cross,
                   {Span(assignment), {Span(nodes), Span(entries), Span(inside), Span(cross)}}};
      },
      nb::arg("assignment").noconvert(), nb::arg("nodes").noconvert(),
      nb::arg("entries").noconvert(), nb::arg("inside").noconvert(), nb::arg("cross").noconvert());
  BindPass<Index, Handle>(bound);
}

template <typename Index>
struct ListsHandle {
  ConstAssignment assignment;
  Array1<int64_t> first_node, first_entry;
  Array1<Index> nodes;
  Array1<int64_t> begins;
  Array1<Index> entries;
  layout::PartLists<Index> core;
};

template <typename Index>
void BindLists(nb::module_& m, const char* name) {
  using Handle = ListsHandle<Index>;
  auto bound = nb::class_<Handle>(m, name);
  bound.def(
      "__init__",
      [](Handle* self, ConstAssignment assignment, uint32_t first_part, Array1<int64_t> first_node,
         Array1<int64_t> first_entry, Array1<Index> nodes, Array1<int64_t> begins,
         Array1<Index> entries, int64_t entries_before) {
        Require(first_node.size() == first_entry.size(), "as many first nodes as first entries");
        Require(nodes.size() == begins.size(), "as many begins as nodes");
        new (self) Handle{assignment,
                          first_node,
                          first_entry,
                          nodes,
                          begins,
                          entries,
                          {Span(assignment),
                           first_part,
                           {Span(first_node), Span(first_entry), Span(nodes), Span(begins),
                            Span(entries), entries_before}}};
      },
      nb::arg("assignment").noconvert(), nb::arg("first_part"), nb::arg("first_node").noconvert(),
      nb::arg("first_entry").noconvert(), nb::arg("nodes").noconvert(),
      nb::arg("begins").noconvert(), nb::arg("entries").noconvert(), nb::arg("entries_before"));
  BindPass<Index, Handle>(bound);
}

}  // namespace

void BindParts(nb::module_& m) {
  m.def(
      "mark_seeds",
      [](Array1<const int64_t> ids, Assignment assignment) {
        CheckNodes(Span(ids), static_cast<int64_t>(assignment.size()));
        layout::MarkSeeds(Span(ids), Span(assignment));
      },
      nb::arg("ids").noconvert(), nb::arg("assignment").noconvert(), Unlocked());
  m.def(
      "unmark_seeds", [](Assignment assignment) { layout::UnmarkSeeds(Span(assignment)); },
      nb::arg("assignment").noconvert(), Unlocked());
  m.def(
      "make_groups", [](Assignment assignment) { layout::MakeGroups(Span(assignment)); },
      nb::arg("assignment").noconvert(), Unlocked());
  BindFennel<int32_t>(m, "Fennel32");
  BindFennel<int64_t>(m, "Fennel64");
  BindCounts<int32_t>(m, "PartCounts32");
  BindCounts<int64_t>(m, "PartCounts64");
  BindLists<int32_t>(m, "PartLists32");
  BindLists<int64_t>(m, "PartLists64");
}

}  // namespace outcrop::bindings
