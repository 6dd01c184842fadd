// C++ exceptions -> outcrop.errors.
#include "bindings/bindings.h"
#include "disk/error.h"
#include "layout/blocks.h"
#include "sample/frontier.h"
#include "threads/home.h"
#include "threads/pool.h"

namespace outcrop::bindings {
namespace {

void SetDiskError(const disk::IoError& error) {
  const char* path = error.path().c_str();
  const char* reason = error.reason().c_str();
  if (error.stage() == disk::Stage::kOpen) {
    // OSError picks FileNotFoundError, PermissionError ... by errno.
    nb::object made = nb::borrow(PyExc_OSError)(error.code(), reason, path);
    return PyErr_SetObject(made.type().ptr(), made.ptr());
  }
  const char* name = error.stage() == disk::Stage::kRead ? "ReadError" : "WriteError";
  nb::object type = nb::module_::import_("outcrop.errors").attr(name);
  nb::object made = type(error.code(), reason, path, error.offset(), error.length());
  PyErr_SetObject(type.ptr(), made.ptr());
}

void SetCancelled(const std::exception& error) {
  nb::object type = nb::module_::import_("outcrop.errors").attr("CancelledError");
  PyErr_SetString(type.ptr(), error.what());
}

void SetCorrupt(const std::exception& error) {
  nb::object type = nb::module_::import_("outcrop.errors").attr("CorruptError");
  PyErr_SetString(type.ptr(), error.what());
}

void Translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const disk::IoError& error) {
    SetDiskError(error);
  } catch (const disk::Cancelled& error) {
    SetCancelled(error);
  } catch (const threads::Cancelled& error) {
    SetCancelled(error);
  } catch (const threads::Forked& error) {
    nb::object type = nb::module_::import_("outcrop.errors").attr("ForkedError");
    PyErr_SetString(type.ptr(), error.what());
  } catch (const sample::BadTopology& error) {
    SetCorrupt(error);
  } catch (const layout::BadBlock& error) {
    SetCorrupt(error);
  }
}

}  // namespace

void BindErrors(nb::module_&) { nb::register_exception_translator(Translate); }

}  // namespace outcrop::bindings
