// Ingest: packing, sorting and merging edge records; text; compaction of ids; orders of nodes.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/records.h"
#include "ingest/compact.h"
#include "ingest/csc.h"
#include "ingest/merge.h"
#include "ingest/pack.h"
#include "ingest/permute.h"
#include "ingest/sort.h"
#include "ingest/text.h"
#include "ingest/visits.h"

namespace outcrop::bindings {
namespace {

using ingest::Order;

Order OrderOf(bool by_source) { return by_source ? Order::kTargetSource : Order::kTarget; }

size_t RecordBytes(bool wide, bool numbered) {
  return WithRecord(wide, numbered,
                    [](auto type) { return sizeof(typename decltype(type)::type); });
}

std::tuple<size_t, size_t, bool> PackEdges(Array1<const int64_t> sources,
                                           Array1<const int64_t> targets, int64_t num_nodes,
                                           bool undirected, bool drop_loops, int64_t first_number,
                                           Records out, bool wide, bool numbered) {
  Require(sources.size() == targets.size(), "sources and targets must be of one size");
  const ingest::PackOptions options{num_nodes, undirected, drop_loops};
  return WithRecord(wide, numbered, [&](auto type) {
    using Record = typename decltype(type)::type;
    const auto packed = ingest::Pack<Record>(Span(sources), Span(targets), options, first_number,
                                             RecordSpan<Record>(out));
    return std::tuple(packed.records, packed.edges, packed.bad_id);
  });
}

std::pair<size_t, bool> SortEdges(Records records, size_t count, Records scratch, bool by_source,
                                  bool wide, bool numbered) {
  return WithRecord(wide, numbered, [&](auto type) {
    using Record = typename decltype(type)::type;
    const auto sorted = ingest::Sort(RecordSpan<Record>(records, count),
                                     RecordSpan<Record>(scratch, count), OrderOf(by_source));
    return std::pair(sorted.records, sorted.in_scratch);
  });
}

// Merger of any record type; holds on to the arrays behind its windows.
class AnyMerger {
 public:
  AnyMerger(size_t runs, bool by_source, bool wide, bool numbered) : windows_(runs) {
    impl_ = WithRecord(wide, numbered, [&](auto type) -> std::unique_ptr<Impl> {
      return std::make_unique<ImplOf<typename decltype(type)::type>>(runs, OrderOf(by_source));
    });
  }

  void SetWindow(size_t run, Records window, size_t count, bool last) {
    Require(run < windows_.size(), "no such run");
    Require(impl_->WindowEmpty(run), "the run's window is not empty");
    Require(count > 0 || last, "a window that is not the last needs records");
    impl_->SetWindow(run, window, count, last);
    windows_[run] = {window, last};
  }

  bool WindowEmpty(size_t run) const {
    Require(run < windows_.size(), "no such run");
    return impl_->WindowEmpty(run);
  }

  size_t Merge(Records out) {
    for (size_t run = 0; run < windows_.size(); ++run) {
      Require(windows_[run].last || !impl_->WindowEmpty(run), "a run waits for its next window");
    }
    nb::gil_scoped_release unlocked;
    return impl_->Merge(out);
  }

 private:
  struct Impl {
    virtual ~Impl() = default;
    virtual void SetWindow(size_t run, const Records& window, size_t count, bool last) = 0;
    virtual bool WindowEmpty(size_t run) const = 0;
    virtual size_t Merge(const Records& out) = 0;
  };

  template <typename Record>
  struct ImplOf final : Impl {
    ImplOf(size_t runs, Order order) : merger(runs, order) {}
    void SetWindow(size_t run, const Records& window, size_t count, bool last) override {
      merger.SetWindow(run, RecordSpan<Record>(window, count), last);
    }
    bool WindowEmpty(size_t run) const override { return merger.WindowEmpty(run); }
    size_t Merge(const Records& out) override { return merger.Merge(RecordSpan<Record>(out)); }
    ingest::Merger<Record> merger;
  };

  struct Window {
    Records array;
    bool last = false;
  };

  std::vector<Window> windows_;
  std::unique_ptr<Impl> impl_;
};

template <typename Index>
std::pair<size_t, size_t> WriteCsc(ingest::CscWriter& writer, Records records, size_t count,
                                   Array1<Index> indices, std::optional<Array1<int64_t>> numbers,
                                   Array1<int64_t> indptr, bool wide, bool numbered) {
  Require(indices.size() >= count, "indices has too little room");
  Require(!numbers || numbers->size() >= count, "numbers has too little room");
  const std::span<int64_t> number_span = numbers ? Span(*numbers) : std::span<int64_t>();
  return WithRecord(wide, numbered, [&](auto type) {
    using Record = typename decltype(type)::type;
    const auto wrote = writer.Write(std::span<const Record>(RecordSpan<Record>(records, count)),
                                    Span(indices), number_span, Span(indptr));
    return std::pair(wrote.records, wrote.offsets);
  });
}

void BindCsc(nb::module_& m) {
  nb::class_<ingest::CscWriter> writer(m, "CscWriter");
  writer.def(nb::init<int64_t>(), nb::arg("num_nodes"))
      .def(
          "finish",
          [](ingest::CscWriter& self, Array1<int64_t> indptr) { return self.Finish(Span(indptr)); },
          nb::arg("indptr").noconvert())
      .def_prop_ro("num_edges", &ingest::CscWriter::num_edges);
  const auto def_write = [&]<typename Index>(std::type_identity<Index>) {
    writer.def("write", &WriteCsc<Index>, nb::arg("records").noconvert(), nb::arg("count"),
               nb::arg("indices").noconvert(), nb::arg("numbers").none().noconvert(),
               nb::arg("indptr").noconvert(), nb::arg("wide"), nb::arg("numbered"), Unlocked());
  };
  def_write(std::type_identity<int32_t>());
  def_write(std::type_identity<int64_t>());
}

void BindIdSet(nb::module_& m) {
  using ingest::IdSet;
  nb::class_<IdSet>(m, "IdSet")
      .def(nb::init<uint64_t>(), nb::arg("capacity"))
      .def(
          "add", [](IdSet& self, Array1<const int64_t> ids) { return self.Add(Span(ids)); },
          nb::arg("ids").noconvert(), Unlocked())
      .def(
          "add_new", [](IdSet& self, Array1<const int64_t> ids) { return self.AddNew(Span(ids)); },
          nb::arg("ids").noconvert(), Unlocked())
      .def("seal", &IdSet::Seal, Unlocked())
      .def(
          "relabel",
          [](const IdSet& self, Records records, size_t count, bool numbered) {
            if (numbered) {
              self.Relabel(RecordSpan<ingest::NumberedEdge<uint64_t>>(records, count));
            } else {
              self.Relabel(RecordSpan<ingest::Edge<uint64_t>>(records, count));
            }
          },
          nb::arg("records").noconvert(), nb::arg("count"), nb::arg("numbered"), Unlocked())
      .def(
          "list",
          [](const IdSet& self, uint64_t from, Array1<int64_t> out) {
            const size_t count = self.List(&from, Span(out));
            return std::pair(count, from);
          },
          nb::arg("from_id"), nb::arg("out").noconvert(), Unlocked())
      .def_static("memory_bytes", &IdSet::MemoryBytes, nb::arg("capacity"));
}

// Places are unsigned: one before the first is then large.
template <typename Place>
void ScatterRows(Array1<const uint8_t> rows, Array1<const Place> places, uint64_t first,
                 size_t row_bytes, Array1<uint8_t> out) {
  Require(row_bytes > 0 && rows.size() == places.size() * row_bytes,
          "rows needs one for each place");
  Require(out.size() % row_bytes == 0, "out must hold whole rows");
  ingest::ScatterRows(std::as_bytes(Span(rows)), Span(places), static_cast<Place>(first), row_bytes,
                      std::as_writable_bytes(Span(out)));
}

constexpr const char* kNoNode = "a list has what is no node";

template <typename Index>
void Meet(ingest::Visits& self, Array1<const Index> ids) {
  size_t looked_at = 0;
  {
    nb::gil_scoped_release unlocked;
    looked_at = self.Meet(Span(ids));
  }
  Require(looked_at == ids.size(), kNoNode);
}

template <typename Index>
std::pair<size_t, uint64_t> MeetRoots(ingest::Visits& self, Array1<const int64_t> roots,
                                      Array1<const int64_t> counts, Array1<const Index> lists) {
  Require(roots.size() == counts.size(), "counts needs one for each root");
  uint64_t total = 0;
  for (int64_t count : Span(counts)) {
    Require(count >= 0, "counts must be 0 or more");
    total += static_cast<uint64_t>(count);
  }
  Require(total == lists.size(), "lists must have as many entries as counts say");
  ingest::Visits::Roots met;
  {
    nb::gil_scoped_release unlocked;
    met = self.MeetRoots(Span(roots), Span(counts), Span(lists));
  }
  Require(!met.bad_id, kNoNode);
  return {met.done, met.begin};
}

void BindOrders(nb::module_& m) {
  using ingest::Visits;
  const auto def_scatter = [&]<typename Place>(std::type_identity<Place>) {
    m.def("scatter_rows", &ScatterRows<Place>, nb::arg("rows").noconvert(),
          nb::arg("places").noconvert(), nb::arg("first"), nb::arg("row_bytes"),
          nb::arg("out").noconvert(), Unlocked());
  };
  def_scatter(std::type_identity<uint32_t>());
  def_scatter(std::type_identity<uint64_t>());
  nb::class_<Visits> visits(m, "Visits");
  const auto def_meet = [&]<typename Index>(std::type_identity<Index>) {
    visits.def("meet", &Meet<Index>, nb::arg("ids").noconvert())
        .def("meet_roots", &MeetRoots<Index>, nb::arg("roots").noconvert(),
             nb::arg("counts").noconvert(), nb::arg("lists").noconvert());
  };
  visits.def(nb::init<uint64_t>(), nb::arg("num_nodes"))
      .def(
          "unmet",
          [](const Visits& self, Array1<const int64_t> ids, Array1<int64_t> out) {
            Require(out.size() >= ids.size(), "out has too little room");
            return self.Unmet(Span(ids), Span(out));
          },
          nb::arg("ids").noconvert(), nb::arg("out").noconvert(), Unlocked())
      .def(
          "list",
          [](const Visits& self, uint64_t first, Array1<int64_t> out) {
            return self.List(first, Span(out));
          },
          nb::arg("first"), nb::arg("out").noconvert(), Unlocked())
      .def_prop_ro("count", &Visits::count)
      .def_static("memory_bytes", &Visits::MemoryBytes, nb::arg("num_nodes"));
  def_meet(std::type_identity<int32_t>());
  def_meet(std::type_identity<int64_t>());
}

void BindText(nb::module_& m) {
  using ingest::LineError;
  using ingest::Parsed;
  nb::enum_<LineError>(m, "LineError")
      .value("NONE", LineError::kNone)
      .value("TOO_FEW_COLUMNS", LineError::kTooFewColumns)
      .value("NEGATIVE", LineError::kNegative)
      .value("NOT_A_NUMBER", LineError::kNotANumber)
      .value("EMPTY_COLUMN", LineError::kEmptyColumn)
      .value("TOO_LARGE", LineError::kTooLarge)
      .value("CARRIAGE_RETURN", LineError::kCarriageReturn);
  nb::class_<Parsed>(m, "Parsed")
      .def_ro("edges", &Parsed::edges)
      .def_ro("consumed", &Parsed::consumed)
      .def_ro("lines", &Parsed::lines)
      .def_ro("error", &Parsed::error);
  m.def(
      "parse_edges",
      [](Array1<const uint8_t> text, bool final, Array1<int64_t> sources, Array1<int64_t> targets) {
        return ingest::ParseEdges({reinterpret_cast<const char*>(text.data()), text.size()}, final,
                                  Span(sources), Span(targets));
      },
      nb::arg("text").noconvert(), nb::arg("final"), nb::arg("sources").noconvert(),
      nb::arg("targets").noconvert(), Unlocked());
}

}  // namespace

void BindIngest(nb::module_& m) {
  m.def("record_bytes", &RecordBytes, nb::arg("wide"), nb::arg("numbered"));
  m.def("pack_edges", &PackEdges, nb::arg("sources").noconvert(), nb::arg("targets").noconvert(),
        nb::arg("num_nodes"), nb::arg("undirected"), nb::arg("drop_loops"), nb::arg("first_number"),
        nb::arg("out").noconvert(), nb::arg("wide"), nb::arg("numbered"), Unlocked());
  m.def("sort_edges", &SortEdges, nb::arg("records").noconvert(), nb::arg("count"),
        nb::arg("scratch").noconvert(), nb::arg("by_source"), nb::arg("wide"), nb::arg("numbered"),
        Unlocked());
  nb::class_<AnyMerger>(m, "Merger")
      .def(nb::init<size_t, bool, bool, bool>(), nb::arg("runs"), nb::arg("by_source"),
           nb::arg("wide"), nb::arg("numbered"))
      .def("set_window", &AnyMerger::SetWindow, nb::arg("run"), nb::arg("window").noconvert(),
           nb::arg("count"), nb::arg("last"))
      .def("window_empty", &AnyMerger::WindowEmpty, nb::arg("run"))
      .def("merge", &AnyMerger::Merge, nb::arg("out").noconvert());
  BindCsc(m);
  BindIdSet(m);
  BindOrders(m);
  BindText(m);
}

}  // namespace outcrop::bindings
