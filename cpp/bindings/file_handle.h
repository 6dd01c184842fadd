// What disk.cc makes and others take.
#pragma once

#include <memory>

#include "disk/file.h"

namespace outcrop::bindings {

// A file as Python holds it. The core shares the file itself, never this object: whoever drops the
// last reference to a Python object needs the GIL, and workers must not.
struct FileHandle {
  std::shared_ptr<disk::File> file;
};

}  // namespace outcrop::bindings
