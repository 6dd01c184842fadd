// Disk: files, the engine, and transfers that Python can wait for.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/file_handle.h"
#include "disk/engine.h"
#include "disk/error.h"
#include "disk/memory.h"
#include "disk/uring.h"
#include "threads/home.h"

namespace outcrop::bindings {
namespace {

using disk::Access;
using disk::Engine;
using disk::EngineKind;
using disk::EngineOptions;
using disk::ExtentList;
using disk::FaultOptions;
using disk::File;
using disk::Throttle;
using disk::Transfer;

using Ids = Array1<const int64_t>;

// A transfer together with the arrays that it reads from or writes to.
class Pending {
 public:
  Pending(std::shared_ptr<Transfer> transfer, nb::tuple arrays)
      : transfer_(std::move(transfer)), arrays_(std::move(arrays)) {}

  Pending(Pending&&) = default;

  ~Pending() {
    if (!transfer_) return;  // moved from
    if (getpid() != process_) {
      // In a forked child nothing moves, and locks may be held by threads that are gone: the
      // transfer is left as it is, never destroyed.
      [[maybe_unused]] const auto* abandoned = new auto(std::move(transfer_));
      return;
    }
    nb::gil_scoped_release unlocked;
    transfer_->Cancel();
    while (!transfer_->done()) {
      try {
        transfer_->Wait();
      } catch (...) {  // nobody waits for this one: what it met is of no interest
      }
    }
  }

  void Wait() {
    CheckProcess();
    for (bool done = false; !done;) {
      {
        nb::gil_scoped_release unlocked;
        done = transfer_->WaitFor(std::chrono::milliseconds(50));
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();  // Ctrl-C
    }
  }

  void Cancel() {
    CheckProcess();
    transfer_->Cancel();
  }

  bool done() const {
    CheckProcess();
    return transfer_->done();
  }

 private:
  void CheckProcess() const {
    if (getpid() == process_) return;
    throw threads::Forked("this transfer belongs to another process: start one after fork");
  }

  std::shared_ptr<Transfer> transfer_;
  nb::tuple arrays_;
  pid_t process_ = getpid();
};

void CheckRange(const Ids& values, int64_t limit, const char* what) {
  for (int64_t value : Span(values)) {
    if (value < 0 || value >= limit) {
      throw nb::value_error((std::string(what) + " must be 0 to " + std::to_string(limit - 1) +
                             " (got " + std::to_string(value) + ")")
                                .c_str());
    }
  }
}

std::byte* BytesOf(const Bytes& array) { return static_cast<std::byte*>(array.data()); }

// ids, places -> extents; checks everything that the core takes for granted.
ExtentList RowExtents(const File& file, uint64_t base, const Ids& ids,
                      const std::optional<Ids>& places, std::byte* memory, uint64_t memory_bytes,
                      uint64_t row_bytes) {
  if (row_bytes == 0) throw nb::value_error("rows need at least one byte each");
  const std::span<const int64_t> id_span = Span(ids);
  if (!std::is_sorted(id_span.begin(), id_span.end())) {
    throw nb::value_error("row ids must be ascending");
  }
  if (!id_span.empty() && id_span.front() < 0) {
    throw nb::value_error(
        ("row ids must not be negative (got " + std::to_string(id_span.front()) + ")").c_str());
  }
  const uint64_t size = file.size();
  const uint64_t rows = size < base ? 0 : (size - base) / row_bytes;
  if (!id_span.empty() && static_cast<uint64_t>(id_span.back()) >= rows) {
    const uint64_t beyond = base + rows * row_bytes;  // the last id may be too large to multiply
    throw disk::IoError(disk::Stage::kRead, ENODATA, file.path(), beyond, row_bytes,
                        "row " + std::to_string(id_span.back()) +
                            " is beyond the end of the file, which has " + std::to_string(rows) +
                            " rows of " + std::to_string(row_bytes) + " B");
  }
  const uint64_t room = memory_bytes / row_bytes;
  std::span<const int64_t> place_span;
  if (places) {
    place_span = Span(*places);
    if (place_span.size() != id_span.size()) {
      throw nb::value_error("places needs one entry per id");
    }
    CheckRange(*places, static_cast<int64_t>(room), "places");
  } else if (room < id_span.size()) {
    throw nb::value_error(("out has room for " + std::to_string(room) + " rows (got " +
                           std::to_string(id_span.size()) + " ids)")
                              .c_str());
  }
  return ExtentList::Rows(base, row_bytes, id_span, place_span, memory);
}

ExtentList RangeExtents(const Ids& offsets, const Ids& lengths, const Ids& places,
                        std::byte* memory, uint64_t memory_bytes) {
  if (offsets.size() != lengths.size() || offsets.size() != places.size()) {
    throw nb::value_error("offsets, lengths and places must be of one size");
  }
  constexpr int64_t kMost = int64_t{1} << 62;
  CheckRange(offsets, kMost, "offsets");
  CheckRange(lengths, kMost, "lengths");
  const auto room = static_cast<int64_t>(memory_bytes);
  for (size_t i = 0; i < places.size(); ++i) {
    const int64_t place = places.data()[i], length = lengths.data()[i];
    if (place < 0 || place > room || length > room - place) {
      throw nb::value_error(("an extent of " + std::to_string(length) + " B at place " +
                             std::to_string(place) + " does not fit into memory of " +
                             std::to_string(memory_bytes) + " B")
                                .c_str());
    }
  }
  return ExtentList::Ranges(Span(offsets), Span(lengths), Span(places), memory);
}

Pending ReadExtents(Engine& engine, const FileHandle& handle, Ids offsets, Ids lengths, Ids places,
                    Bytes out) {
  auto transfer =
      engine.Read(handle.file, RangeExtents(offsets, lengths, places, BytesOf(out), out.nbytes()));
  return {std::move(transfer), nb::make_tuple(offsets, lengths, places, out)};
}

Pending ReadRows(Engine& engine, const FileHandle& handle, uint64_t base, uint64_t row_bytes,
                 Ids ids, std::optional<Ids> places, Bytes out) {
  ExtentList extents =
      RowExtents(*handle.file, base, ids, places, BytesOf(out), out.nbytes(), row_bytes);
  auto transfer = engine.Read(handle.file, std::move(extents));
  return {std::move(transfer), nb::make_tuple(ids, places, out)};
}

Pending WriteExtents(Engine& engine, const FileHandle& handle, Ids offsets, Ids lengths, Ids places,
                     ConstBytes source) {
  // The core moves bytes both ways through one pointer; a write only reads from it.
  auto* memory = static_cast<std::byte*>(const_cast<void*>(source.data()));
  auto transfer =
      engine.Write(handle.file, RangeExtents(offsets, lengths, places, memory, source.nbytes()));
  return {std::move(transfer), nb::make_tuple(offsets, lengths, places, source)};
}

// Zeroed, page-aligned memory that goes back to the system when the array is freed.
nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> AlignedZeros(uint64_t bytes) {
  auto* memory = new disk::AlignedMemory(bytes);
  nb::capsule owner(memory, [](void* p) noexcept { delete static_cast<disk::AlignedMemory*>(p); });
  static uint8_t nothing;
  auto* data = bytes == 0 ? &nothing : reinterpret_cast<uint8_t*>(memory->data());
  return {data, {static_cast<size_t>(bytes)}, owner};
}

void BindFile(nb::module_& m) {
  nb::enum_<Access>(m, "Access")
      .value("AUTO", Access::kAuto)
      .value("DIRECT", Access::kDirect)
      .value("BUFFERED", Access::kBuffered);
  nb::class_<FileHandle>(m, "File")
      .def_static(
          "open",
          [](const std::string& path, Access access) {
            return FileHandle{File::OpenForRead(path, access)};
          },
          nb::arg("path"), nb::arg("access"), Unlocked())
      .def_static(
          "open_for_update",
          [](const std::string& path, Access access) {
            return FileHandle{File::OpenForUpdate(path, access)};
          },
          nb::arg("path"), nb::arg("access"), Unlocked())
      .def_static(
          "create",
          [](const std::string& path, uint64_t bytes, Access access) {
            return FileHandle{File::Create(path, bytes, access)};
          },
          nb::arg("path"), nb::arg("bytes"), nb::arg("access"), Unlocked())
      .def_prop_ro("path", [](const FileHandle& self) { return self.file->path(); })
      .def_prop_ro("size", [](const FileHandle& self) { return self.file->size(); })
      .def_prop_ro("direct", [](const FileHandle& self) { return self.file->direct(); })
      .def_prop_ro("writable", [](const FileHandle& self) { return self.file->writable(); })
      .def_prop_ro("offset_align", [](const FileHandle& self) { return self.file->offset_align(); })
      .def_prop_ro("memory_align", [](const FileHandle& self) { return self.file->memory_align(); })
      .def(
          "reserve", [](FileHandle& self, uint64_t bytes) { self.file->Reserve(bytes); },
          nb::arg("bytes"), Unlocked())
      .def(
          "truncate", [](FileHandle& self, uint64_t bytes) { self.file->Truncate(bytes); },
          nb::arg("bytes"), Unlocked())
      .def("sync", [](FileHandle& self) { self.file->Sync(); }, Unlocked());
}

void BindFaults(nb::module_& m) {
  nb::class_<FaultOptions>(m, "FaultOptions")
      .def(nb::init<>())
      .def_rw("fail_read_at", &FaultOptions::fail_read_at)
      .def_rw("fail_write_at", &FaultOptions::fail_write_at)
      .def_rw("fail_count", &FaultOptions::fail_count)
      .def_rw("error", &FaultOptions::error)
      .def_rw("short_every", &FaultOptions::short_every)
      .def_rw("delay_us", &FaultOptions::delay_us)
      .def_rw("reorder", &FaultOptions::reorder)
      .def_rw("seed", &FaultOptions::seed);
}

void BindThrottle(nb::module_& m) {
  nb::class_<Throttle>(m, "Throttle")
      .def(nb::init<uint64_t, uint64_t>(), nb::kw_only(), nb::arg("bytes_per_second"),
           nb::arg("requests_per_second"));
}

void BindCounters(nb::module_& m) {
  using disk::Counters;
  nb::class_<Counters>(m, "Counters")
      .def_ro("read_requests", &Counters::read_requests)
      .def_ro("bytes_wanted", &Counters::bytes_wanted)
      .def_ro("bytes_read", &Counters::bytes_read)
      .def_ro("write_requests", &Counters::write_requests)
      .def_ro("bytes_written", &Counters::bytes_written)
      .def_ro("retries", &Counters::retries)
      .def_ro("wait_ns", &Counters::wait_ns)
      .def_ro("latency", &Counters::latency)
      .def_ro("read_sizes", &Counters::read_sizes)
      .def_ro("write_sizes", &Counters::write_sizes);
}

void MakeEngine(Engine* self, bool uring, uint32_t workers, uint32_t queue_depth,
                uint64_t bounce_bytes, uint32_t unit_bytes, uint64_t gap_bytes, bool merge,
                uint32_t max_request_bytes, const std::optional<FaultOptions>& faults,
                std::shared_ptr<Throttle> throttle) {
  EngineOptions options;
  options.kind = uring ? EngineKind::kUring : EngineKind::kPool;
  options.workers = workers;
  options.queue_depth = queue_depth;
  options.bounce_bytes = bounce_bytes;
  options.unit_bytes = unit_bytes;
  options.gap_bytes = gap_bytes;
  options.merge = merge;
  options.max_request_bytes = max_request_bytes;
  options.faults = faults;
  options.throttle = std::move(throttle);
  nb::gil_scoped_release unlocked;
  new (self) Engine(options);
}

void BindEngine(nb::module_& m) {
  nb::class_<Pending>(m, "Pending")
      .def("wait", &Pending::Wait)
      .def("cancel", &Pending::Cancel)
      .def_prop_ro("done", &Pending::done);
  nb::class_<Engine>(m, "Engine")
      .def("__init__", &MakeEngine, nb::kw_only(), nb::arg("uring"), nb::arg("workers"),
           nb::arg("queue_depth"), nb::arg("bounce_bytes"), nb::arg("unit_bytes"),
           nb::arg("gap_bytes"), nb::arg("merge"), nb::arg("max_request_bytes"),
           nb::arg("faults") = nb::none(), nb::arg("throttle") = nb::none())
      .def("read_extents", &ReadExtents, nb::arg("file"), nb::arg("offsets").noconvert(),
           nb::arg("lengths").noconvert(), nb::arg("places").noconvert(),
           nb::arg("out").noconvert())
      .def("read_rows", &ReadRows, nb::arg("file"), nb::arg("base"), nb::arg("row_bytes"),
           nb::arg("ids").noconvert(), nb::arg("places").none().noconvert(),
           nb::arg("out").noconvert())
      .def("write_extents", &WriteExtents, nb::arg("file"), nb::arg("offsets").noconvert(),
           nb::arg("lengths").noconvert(), nb::arg("places").noconvert(),
           nb::arg("source").noconvert())
      .def("close", &Engine::Close, Unlocked())
      .def_prop_ro("memory_bytes", &Engine::memory_bytes)
      .def("counters", &Engine::counters);
}

}  // namespace

void BindDisk(nb::module_& m) {
  BindFile(m);
  BindFaults(m);
  BindThrottle(m);
  BindCounters(m);
  BindEngine(m);
  m.def("uring_compiled", &disk::UringCompiled);
  m.def("uring_refusal", &disk::UringRefusal);
  m.def("registered_bytes", &disk::RegisteredBytes);
  m.def("aligned_zeros", &AlignedZeros, nb::arg("bytes"));
  m.def(
      "give_to_children", [](const ConstBytes& array) { disk::AlignedMemory::Give(array.data()); },
      nb::arg("array").noconvert());
  // For what a forked child must not end: it has one reference more than there are.
  m.def(
      "never_free",
      [](nb::handle object) {
        nb::set_leak_warnings(false);
        object.inc_ref();
      },
      nb::arg("object"));
}

}  // namespace outcrop::bindings
