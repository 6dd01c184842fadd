// Cache: policies that plan ahead.
#include "bindings/bindings.h"
#include "cache/belady.h"
#include "cache/lru.h"
#include "cache/node_table.h"
#include "cache/static_slots.h"

namespace outcrop::bindings {
namespace {

using cache::Belady;
using cache::Changes;
using cache::Lru;

uint32_t CheckSlots(uint64_t slots) {
  Require(slots < uint64_t{1} << 31, "slots must be below 2^31");
  return static_cast<uint32_t>(slots);
}

// A policy as Python holds it, with the changes of its last step, which views look at.
class BeladyHandle {
 public:
  BeladyHandle(int64_t num_nodes, uint64_t slots, bool goes_on)
      : num_nodes_(num_nodes), belady_(num_nodes, CheckSlots(slots), goes_on) {}

  uint32_t Mark(Array1<const int64_t> nodes) {
    Require(turned_ && batches_ == 0, "mark before a superbatch begins");
    CheckNodes(Span(nodes), num_nodes_);
    return belady_.Mark(Span(nodes));
  }

  void Begin(uint32_t batches, int64_t expected_nodes) {
    Require(batches < 0xFFFFFFFF, "too many batches");
    Require(expected_nodes >= 0, "expected_nodes must not be negative");
    belady_.Begin(batches, expected_nodes);
    batches_ = batches;
    turned_ = false;
    at_ = batches;
  }

  void LookBack(uint32_t t, Array1<const int64_t> nodes, Array1<uint32_t> next) {
    Require(!turned_ && t + 1 == at_, "look back from the last batch to the first");
    Require(next.size() == nodes.size(), "next must be as long as nodes");
    CheckNodes(Span(nodes), num_nodes_);
    belady_.LookBack(t, Span(nodes), Span(next));
    at_ = t;
  }

  void TurnAround() {
    Require(!turned_ && at_ == 0, "all batches must have been looked at");
    belady_.TurnAround();
    turned_ = true;
  }

  bool Fill(uint32_t t, Array1<const int64_t> nodes) {
    Require(turned_ && at_ == 0 && t < batches_, "fill between turn_around and the first step");
    CheckNodes(Span(nodes), num_nodes_);
    return belady_.Fill(t, Span(nodes));
  }

  void Step(uint32_t t, Array1<const int64_t> nodes, Array1<const uint32_t> next,
            Array1<int32_t> slots) {
    Require(turned_ && t == at_ && t < batches_, "steps go from the first batch to the last");
    Require(next.size() == nodes.size() && slots.size() == nodes.size(),
            "next and slots must be as long as nodes");
    CheckNodes(Span(nodes), num_nodes_);
    bool after = true;
    for (uint32_t use : Span(next)) {
      after &= (use > t && use <= batches_) || use == outcrop::cache::Belady::kTwin;
    }
    Require(after, "a next use must be after its batch");
    belady_.Step(t, Span(nodes), Span(next), Span(slots), changes_);
    ++at_;
  }

  void End() {
    belady_.End();
    Expect();
  }
  void Clear() {
    belady_.Clear();
    Expect();
  }
  void Restore(Array1<const int64_t> nodes) {
    Expect();
    belady_.Restore(Span(nodes));
  }
  std::span<const int64_t> nodes() const { return belady_.nodes(); }
  const Changes& changes() const { return changes_; }

 private:
  // Nothing but another Begin.
  void Expect() {
    batches_ = at_ = 0;
    turned_ = true;
  }

  const int64_t num_nodes_;
  Belady belady_;
  Changes changes_;
  uint32_t batches_ = 0, at_ = 0;
  bool turned_ = true;
};

class LruHandle {
 public:
  LruHandle(int64_t num_nodes, uint64_t slots)
      : num_nodes_(num_nodes), lru_(num_nodes, CheckSlots(slots)) {}

  void Step(Array1<const int64_t> nodes, Array1<int32_t> slots) {
    Require(slots.size() == nodes.size(), "slots must be as long as nodes");
    CheckNodes(Span(nodes), num_nodes_);
    lru_.Step(Span(nodes), Span(slots), changes_);
  }

  void Clear() { lru_.Clear(); }
  void Restore(Array1<const int64_t> nodes) { lru_.Restore(Span(nodes)); }
  std::span<const int64_t> nodes() const { return lru_.nodes(); }
  const Changes& changes() const { return changes_; }

 private:
  const int64_t num_nodes_;
  Lru lru_;
  Changes changes_;
};

class StaticSlotsHandle {
 public:
  StaticSlotsHandle(int64_t num_nodes, Array1<const int64_t> nodes)
      : num_nodes_(num_nodes), slots_(num_nodes, Checked(num_nodes, nodes)) {}

  void Find(Array1<const int64_t> nodes, Array1<int32_t> slots) const {
    Require(slots.size() == nodes.size(), "slots must be as long as nodes");
    CheckNodes(Span(nodes), num_nodes_);
    slots_.Find(Span(nodes), Span(slots));
  }

 private:
  static std::span<const int64_t> Checked(int64_t num_nodes, const Array1<const int64_t>& nodes) {
    CheckSlots(nodes.size());
    CheckNodes(Span(nodes), num_nodes);
    return Span(nodes);
  }

  const int64_t num_nodes_;
  const cache::StaticSlots slots_;
};

template <typename Handle>
void BindContents(nb::class_<Handle>& bound) {
  bound.def("clear", &Handle::Clear, Unlocked())
      .def("restore", &Handle::Restore, nb::arg("nodes").noconvert(), Unlocked())
      .def_prop_ro("nodes",
                   [](nb::handle_t<Handle> self) {
                     return ViewOf<int64_t>(nb::cast<Handle&>(self).nodes(), self);
                   })
      .def_prop_ro("in_positions",
                   [](nb::handle_t<Handle> self) {
                     return ViewOf<uint32_t>(nb::cast<Handle&>(self).changes().positions, self);
                   })
      .def_prop_ro("in_slots", [](nb::handle_t<Handle> self) {
        return ViewOf<uint32_t>(nb::cast<Handle&>(self).changes().slots, self);
      });
}

}  // namespace

void BindCache(nb::module_& m) {
  nb::class_<BeladyHandle> belady(m, "Belady");
  belady
      .def(nb::init<int64_t, uint64_t, bool>(), nb::arg("num_nodes"), nb::arg("slots"),
           nb::kw_only(), nb::arg("goes_on"))
      .def("mark", &BeladyHandle::Mark, nb::arg("nodes").noconvert(), Unlocked())
      .def("begin", &BeladyHandle::Begin, nb::arg("batches"), nb::arg("expected_nodes"), Unlocked())
      .def("look_back", &BeladyHandle::LookBack, nb::arg("t"), nb::arg("nodes").noconvert(),
           nb::arg("next").noconvert(), Unlocked())
      .def("turn_around", &BeladyHandle::TurnAround, Unlocked())
      .def("fill", &BeladyHandle::Fill, nb::arg("t"), nb::arg("nodes").noconvert(), Unlocked())
      .def("step", &BeladyHandle::Step, nb::arg("t"), nb::arg("nodes").noconvert(),
           nb::arg("next").noconvert(), nb::arg("slots").noconvert(), Unlocked())
      .def("end", &BeladyHandle::End, Unlocked())
      .def_ro_static("slot_bytes", &Belady::kSlotBytes);
  BindContents(belady);
  nb::class_<LruHandle> lru(m, "Lru");
  lru.def(nb::init<int64_t, uint64_t>(), nb::arg("num_nodes"), nb::arg("slots"))
      .def("step", &LruHandle::Step, nb::arg("nodes").noconvert(), nb::arg("slots").noconvert(),
           Unlocked())
      .def_ro_static("slot_bytes", &Lru::kSlotBytes);
  BindContents(lru);
  nb::class_<StaticSlotsHandle>(m, "StaticSlots")
      .def(nb::init<int64_t, Array1<const int64_t>>(), nb::arg("num_nodes"),
           nb::arg("nodes").noconvert())
      .def("find", &StaticSlotsHandle::Find, nb::arg("nodes").noconvert(),
           nb::arg("slots").noconvert(), Unlocked())
      .def_static("bytes", &cache::StaticSlots::Bytes, nb::arg("num_nodes"), nb::arg("slots"));
  m.def("node_table_bytes", &cache::NodeTable::Bytes, nb::arg("num_nodes"), nb::arg("expected"));
  m.def("small_table_bytes", [] { return cache::NodeTable::kSmallBytes; });
  m.def("touched_table_bytes", &cache::NodeTable::TouchedBytes, nb::arg("num_nodes"),
        nb::arg("touched"));
}

}  // namespace outcrop::bindings
