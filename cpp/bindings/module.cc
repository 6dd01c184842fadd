#include "bindings/bindings.h"

NB_MODULE(_core, m) {
  m.doc() = "Outcrop's core: disk, ingest and gather, as C++ does them.";
  outcrop::bindings::BindErrors(m);
  outcrop::bindings::BindDisk(m);
  outcrop::bindings::BindIngest(m);
  outcrop::bindings::BindSynth(m);
  outcrop::bindings::BindGather(m);
}
